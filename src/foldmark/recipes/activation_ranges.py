"""Which codes activations get by a recipe, and the range that each stands for."""

from collections.abc import Sequence
from dataclasses import replace

import onnx

from foldmark.calibrate.calibration import Calibration, calibrate
from foldmark.calibrate.observers import Method, Observer, Range, Symmetry
from foldmark.errors import InvalidRecipe
from foldmark.recipes.recipe import MethodName, Recipe
from foldmark.recipes.work import Work
from foldmark.surgery.activations import ActivationCodes, ActivationScheme, Plan

__all__ = ["all_codes", "named_codes", "ranges_for"]


def all_codes(recipe: Recipe) -> list[ActivationCodes]:
    """Return the codes that activations get, the most usual first."""
    return list(dict.fromkeys((recipe.activations, *(each.codes for each in recipe.codes))))


def named_codes(recipe: Recipe, plans: Sequence[Plan]) -> dict[str, ActivationCodes]:
    """Return the codes that the recipe names; each must be of an activation that has its own."""
    shared = {name: plan.source(name).tensor for plan in plans for name in plan.pairs}
    own = set(shared.values())
    for each in recipe.codes:
        if each.tensor not in own:
            instead = shared.get(each.tensor)
            some = f"one of {', '.join(sorted(own)[:3])}, ..."
            raise InvalidRecipe(
                "codes are given for a tensor that has none of its own",
                where=f"recipe {recipe.name!r}",
                got=repr(each.tensor),
                expected=f"{instead!r}, whose codes it has" if instead else some,
            )
    return {each.tensor: each.codes for each in recipe.codes}


def ranges_for(
    work: Work, model: onnx.ModelProto, tensors: list[str], activations: ActivationScheme
) -> tuple[dict[str, Range], tuple[str, ...]]:
    """Return the ranges of tensors, and those of which the data showed nothing."""
    observer = _observer(work.recipe.observer, work.recipe.activations)
    if not tensors:
        return {}, ()
    if work.ranges is not None and MethodName.HADAMARD in work.recipe.methods:
        raise InvalidRecipe(
            "a rotation changes the ranges of what it rotates",
            where=f"recipe {work.recipe.name!r}",
            todo="give --data instead of --ranges",
        )
    settled = _settled(work.recipe, tensors)
    if work.ranges is not None:
        return _chosen(work.ranges, observer, activations) | settled, work.ranges.unseen
    found = calibrate(
        model,
        work.samples("static quantization"),
        observer=observer,
        tensors=tensors,
        batch_size=work.batch_size,
        progress=work.progress,
    )
    flat = [name for name, each in found.tensors.items() if each.minimum == each.maximum == 0]
    for name in flat:
        work.account.note(f"{name}: zero in all samples; its codes have no range to stand for")
    if observer.method is not Method.MIN_MAX:
        same, count = found.unchanged(observer)
        if same:
            work.account.note(f"{observer.method.value} gave min-max on {same} of {count} tensors")
    return _chosen(found, observer, activations) | settled, found.unseen


def _settled(recipe: Recipe, tensors: list[str]) -> dict[str, Range]:
    """Return the ranges that the recipe settles; each must be of an activation that gets codes."""
    for each in recipe.ranges:
        if each.tensor not in tensors:
            raise InvalidRecipe(
                "a range is given for a tensor that needs none",
                where=f"recipe {recipe.name!r}",
                got=repr(each.tensor),
                expected=f"one of {', '.join(tensors[:3])}, ...",
            )
    return {each.tensor: Range(each.low, each.high) for each in recipe.ranges}


def _chosen(
    seen: Calibration, observer: Observer, activations: ActivationScheme
) -> dict[str, Range]:
    """Return all ranges: by the observer, or the whole where a tensor has 16 bits of its own."""
    ranges = seen.ranges(observer)
    for codes in set(activations.named.values()):
        whole = replace(observer, method=Method.MIN_MAX) if codes.bits == 16 else observer
        own = seen.ranges(_observer(whole, codes))
        names = [name for name, each in activations.named.items() if each is codes]
        ranges |= {name: own[name] for name in names if name in own}
    return ranges


def _observer(observer: Observer, codes: ActivationCodes) -> Observer:
    """Return an observer for the bits of codes; int16 has no free ends."""
    if codes is ActivationCodes.INT16:
        observer = replace(observer, symmetry=Symmetry.SYMMETRIC)
    return replace(observer, bits=16) if codes.bits == 16 else observer
