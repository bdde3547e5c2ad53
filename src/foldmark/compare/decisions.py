"""The decisions in which two rules part, and a rule that takes one over from another."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from foldmark.compare.difference import (
    Features,
    affine_features,
    scale_features,
    words_for,
    zero_features,
)
from foldmark.exact.rule import (
    AffineRule,
    Extent,
    Infinity,
    NotANumber,
    Rule,
    ScaleRule,
    ZeroForm,
    ZeroOrder,
    ZeroPointRule,
)
from foldmark.formats.values import Layout

__all__ = [
    "Parts",
    "Whole",
    "apart",
    "closest_rules",
    "features_of",
    "said",
    "taken_over",
    "whole_rule",
]

# So many rules of a side, all equally good, are tried against the other's.
_PAIRED = 150

Whole = tuple[ScaleRule | None, ZeroPointRule | None, AffineRule]


def closest_rules(left: tuple[Whole, ...], right: tuple[Whole, ...]) -> tuple[Whole, Whole] | None:
    """Return a rule of each side that differ in as few decisions as possible, None without any."""
    best: tuple[int, Whole, Whole] | None = None
    ours = [(rule, features_of(rule)) for rule in left[:_PAIRED]]
    theirs = [(rule, features_of(rule)) for rule in right[:_PAIRED]]
    for (one, mine), (other, yours) in product(ours, theirs):
        count = sum(mine.get(name) != yours.get(name) for name in mine | yours)
        if best is None or count < best[0]:
            best = (count, one, other)
    return None if best is None else best[1:]


def features_of(rule: Whole) -> Features:
    """Return every decision of a rule by name."""
    scale, zero, affine = rule
    found: Features = dict(affine_features(affine, affine.codes))
    found["codes"] = affine.codes.bits
    if scale is not None:
        found |= scale_features(scale)
    if zero is not None:
        found |= zero_features(zero, affine.codes)
    return found


def whole_rule(whole: Whole) -> Rule | None:
    """Return a rule in parts as one, every number let through; None where a part is missing."""
    scale, zero, affine = whole
    if scale is None or zero is None:
        return None
    middle = zero.fixed if zero.form is ZeroForm.MIDDLE else 0
    return Rule(
        name="mixed",
        scale=scale,
        zero_point=zero,
        affine=replace(affine, middle=middle, nan=NotANumber.LOWEST, infinity=Infinity.SATURATE),
        source="",
        versions="",
    )


@dataclass(frozen=True)
class Parts:
    """A rule in parts, with its block."""

    block: tuple[int, ...]
    scale: ScaleRule
    zero: ZeroPointRule
    affine: AffineRule


_Edit = Callable[[Parts, Parts], Parts]


def _scale(*names: str) -> _Edit:
    def edit(one: Parts, other: Parts) -> Parts:
        changes = {name: getattr(other.scale, name) for name in names}
        return replace(one, scale=replace(one.scale, **changes))

    return edit


def _zero(*names: str) -> _Edit:
    def edit(one: Parts, other: Parts) -> Parts:
        changes = {name: getattr(other.zero, name) for name in names}
        return replace(one, zero=replace(one.zero, **changes))

    return edit


def _affine(*names: str) -> _Edit:
    def edit(one: Parts, other: Parts) -> Parts:
        changes = {name: getattr(other.affine, name) for name in names}
        return replace(one, affine=replace(one.affine, **changes))

    return edit


def _range(one: Parts, other: Parts) -> Parts:
    """Take the other's whole way from a block's ends to its grid of codes."""
    scale = replace(
        one.scale,
        extent=other.scale.extent,
        denominator=other.scale.denominator,
        denominator_below=other.scale.denominator_below,
        zero_in_range=other.scale.zero_in_range,
        tie=other.scale.tie,
    )
    affine = replace(
        one.affine,
        codes=other.affine.codes,
        ratio=other.affine.ratio,
    )
    if affine.zero_is_real != other.affine.zero_is_real:
        affine = replace(affine, order=other.affine.order)
    return replace(one, scale=scale, zero=other.zero, affine=affine)


def _order_and_scaling(one: Parts, other: Parts) -> Parts:
    return _affine("order", "scaling", "ratio")(one, other)


# A decision by name -> how a rule takes it over from another.
_EDITS: dict[str, _Edit] = {
    "block shape": lambda one, other: replace(one, block=other.block),
    "number format": _range,
    "range": _range,
    "divisor": lambda one, other: _affine("ratio")(
        _scale("denominator", "denominator_below")(one, other), other
    ),
    "zero in the range": _scale("zero_in_range"),
    "tie of the extremes": _scale("tie"),
    "precision of the scale": _scale("precision", "extent_precision"),
    "scale stored as": _scale("stored"),
    "tiny ranges": _scale("tiny"),
    "scale of the zero point": _zero("scale"),
    "precision of the zero point": _zero("precision"),
    "rounding of the zero point": _zero("rounding"),
    "rounding": _affine("rounding"),
    "order": _affine("order"),
    "order and scaling": _order_and_scaling,
    "scaling": _affine("scaling", "ratio"),
    "scale of the codes": _affine("scale"),
    "precision": _affine("precision"),
    "code range": _affine("codes"),
}
# Decisions that make sense together only, when one of the first three differs.
_GRID = ("number format", "range", "zero point")
_OF_THE_GRID = {
    *_GRID,
    "codes",
    "divisor",
    "zero point at",
    "zero in the range",
    "tie of the extremes",
    "scale of the zero point",
    "precision of the zero point",
    "rounding of the zero point",
    "code range",
}


def taken_over(name: str, one: Parts, other: Parts) -> Parts:
    """Return a rule with one decision taken over from another."""
    return _EDITS[name](one, other)


def apart(one: Parts, other: Parts) -> list[str]:
    """Name the units in which two rules differ, in the order in which they act."""
    mine, yours = (features_of((r.scale, r.zero, r.affine)) for r in (one, other))
    names = {n for n in mine.keys() | yours.keys() if mine.get(n) != yours.get(n)}
    if "codes" in names:
        names = names - _OF_THE_GRID | {"number format"}
    elif names & set(_GRID):
        names = names - _OF_THE_GRID | {"range"}
    if one.block != other.block:
        names.add("block shape")
    fused = ZeroOrder.FUSED in (one.affine.order, other.affine.order)
    if {"order", "scaling"} <= names or (fused and "scaling" in names):
        names = names - {"order", "scaling"} | {"order and scaling"}
    return [name for name in _EDITS if name in names]


def said(rules: Parts, name: str, shape: tuple[int, ...]) -> str:
    """Return in words what a rule does about a decision."""
    if name == "block shape":
        return Layout("", rules.block).granularity(shape)
    if name == "range":
        return _range_words(rules)
    if name == "number format":
        return f"{_codes_words(rules)}, {_range_words(rules)}"
    parts = name.split(" and ") if name == "order and scaling" else [name]
    features = features_of((rules.scale, rules.zero, rules.affine))
    return ", ".join(words_for(features.get(part)) for part in parts)


def _codes_words(rules: Parts) -> str:
    return f"{'int' if rules.affine.codes.signed else 'uint'}{rules.affine.codes.bits}"


def _range_words(rules: Parts) -> str:
    extent = words_for(rules.scale.extent)
    extent = f"({extent})" if " - " in extent else extent
    words = f"{extent} / {words_for(rules.scale.denominator)}"
    # Only a zero point that does not go with such a range is worth a word.
    fixed, magnitude = rules.zero.form is ZeroForm.FIXED, rules.scale.extent is Extent.MAGNITUDE
    return words if fixed == magnitude else f"{words}, {'fixed' if fixed else 'own'} zero point"
