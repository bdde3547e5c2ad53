"""Recipes as values and as text."""

from dataclasses import replace

import pytest

from foldmark.calibrate.observers import Method, Observer, Symmetry
from foldmark.errors import FileUnreadable, InvalidRecipe
from foldmark.recipes.recipe import (
    Form,
    MethodName,
    Mode,
    Override,
    Recipe,
    Rounding,
    TensorCodes,
)
from foldmark.recipes.recipe_file import BUILT_IN, find_recipe, parse_recipe, recipe_text
from foldmark.surgery.activations import ActivationCodes

FULL = Recipe(
    name='odd "name"',
    operators=("MatMul",),
    include=("layer\\.[0-9]+",),
    exclude=("head",),
    per_channel=False,
    activations=ActivationCodes.INT8,
    observer=Observer(Method.PERCENTILE, Symmetry.SYMMETRIC, percentile=99.9),
    methods=(MethodName.SMOOTHQUANT, MethodName.BIAS_CORRECTION),
    overrides=(
        Override("a", keep_float=True),
        Override("b", per_channel=True, rule="X"),
        Override("c", rounding=Rounding.ADAROUND),
    ),
    codes=(TensorCodes('odd "tensor"', ActivationCodes.INT16),),
)


@pytest.mark.parametrize("recipe", [FULL, *BUILT_IN.values()], ids=lambda r: r.name)
def test_text_and_back(recipe):
    assert parse_recipe(recipe_text(recipe), "r.toml") == recipe


@pytest.mark.parametrize("base", list(BUILT_IN))
def test_a_built_in_name_with_methods(base):
    """Every method, in every mode it has a place in, has a name on the command line."""
    for method in MethodName:
        try:
            want = replace(BUILT_IN[base], name=f"{base}+{method.value}", methods=(method,))
        except InvalidRecipe:
            continue
        assert find_recipe(f"{base}+{method.value}") == want
        text = f'base = "{base}+{method.value}"\nname = "{base}+{method.value}"'
        assert parse_recipe(text, "mine.toml") == want


def test_a_method_that_is_none():
    with pytest.raises(InvalidRecipe, match="a method can't be that; got 'magic'"):
        find_recipe("static+magic")


def test_a_base_and_a_change():
    found = parse_recipe('base = "dynamic"\nper_channel = false', "mine.toml")
    assert found == Recipe(name="mine", mode=Mode.DYNAMIC, per_channel=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mode = ", "not TOML"),
        ('mode = "statik"', "expected static, dynamic"),
        ("colour = 3", "colour means nothing"),
        ("weight_bits = true", "wrong kind"),
        ("weight_bits = 5", "4 or 8 bits"),
        ("weight_bits = 4", "no integer kernel takes 4-bit"),
        ('include = ["("]', "not a regular expression"),
        ('methods = ["awq"]', "no place in static"),
        ("[[rules]]\nkeep_float = true", "says what it matches"),
        ('[[rules]]\nmatch = "a"\nrounding = "up"', "expected nearest, mse-clipping"),
        ('mode = "weight-only"\n[[rules]]\nmatch = "a"\nrounding = "mse-clipping"', "no place"),
        ('base = "nothing"', "no such base"),
        ('[[codes]]\ncodes = "uint16"', "say whose they are"),
        ('[[codes]]\ntensor = "t"\ncodes = "uint4"', "expected uint8, int8, uint16, int16"),
        ('[[codes]]\ntensor = "t"\ncodes = "int8"\nlow = 1', "low means nothing"),
        ('mode = "dynamic"\n[[codes]]\ntensor = "t"\ncodes = "int8"', "in dynamic quantization"),
        ("[observer]\nbits = 1", "2 to 16 bits"),
        ("operators = [1]", "not a text"),
    ],
)
def test_mistakes_are_named(text, words):
    with pytest.raises(InvalidRecipe, match=words):
        parse_recipe(text, "r.toml")


def test_qoperator_is_static():
    with pytest.raises(InvalidRecipe, match="QOperator"):
        Recipe(mode=Mode.DYNAMIC, form=Form.QOPERATOR)


def test_no_such_recipe():
    with pytest.raises(FileUnreadable, match="weight-only-4"):
        find_recipe("nowhere.toml")
