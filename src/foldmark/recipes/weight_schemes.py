"""How weights are stored by a recipe: its rule and block shape, and those of its rules."""

from foldmark import rules
from foldmark.errors import InvalidRecipe
from foldmark.exact.rule import Rule, ZeroForm
from foldmark.exact.tools.onnxruntime import ONNXRUNTIME_WEIGHT_INT8
from foldmark.recipes.recipe import Recipe
from foldmark.surgery.weights import WeightScheme, WeightSchemes

__all__ = ["weight_schemes"]


def weight_schemes(recipe: Recipe) -> WeightSchemes:
    """Return the scheme of weights, and those that rules give to operators by name.

    Raises InvalidRecipe for a rule that does not exist or whose codes no integer kernel takes.
    """
    default = WeightScheme(_rule(recipe.rule), recipe.per_channel)
    named = []
    for each in recipe.overrides:
        if each.keep_float:
            continue
        channel = recipe.per_channel if each.per_channel is None else each.per_channel
        named.append((each.match, WeightScheme(_rule(each.rule or recipe.rule), channel)))
    return WeightSchemes(default, tuple(named))


def _rule(name: str) -> Rule:
    """Return the rule of 8-bit weights that a recipe names.

    Raises InvalidRecipe for one that does not exist or whose codes no integer kernel takes.
    """
    if name == "onnxruntime":
        return ONNXRUNTIME_WEIGHT_INT8
    found = rules.CATALOGUE.get(name)
    if not isinstance(found, Rule):
        raise InvalidRecipe(
            "no such rule", where=f"rule {name!r}", todo="foldmark rules lists them"
        )
    fits = found.codes.bits == 8 and found.codes.minimum < 0
    if not fits or found.zero_point.form is not ZeroForm.FIXED or found.zero_point.fixed != 0:
        raise InvalidRecipe(
            "integer kernels take int8 weights with zero point 0",
            where=f"rule {name!r}",
            got=found.codes.name,
        )
    return found
