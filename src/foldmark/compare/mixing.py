"""A weight as it would be if one side had made some of the decisions and the other the rest.

Every decision that two rules make differently becomes a unit that can be swapped alone: the
float weight is encoded again by the mixed rule. What a side's rule does not explain (error
feedback, learned rounding, a wrong row) is kept as what it adds to the numbers, and is a unit of
its own, so that swapping nothing gives A's numbers and swapping everything gives B's.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

import numpy as np

from foldmark.compare.difference import (
    Features,
    affine_features,
    scale_features,
    words_for,
    zero_features,
)
from foldmark.compare.fit import Fit
from foldmark.errors import FoldmarkError
from foldmark.exact.number import IntegerFormat
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import (
    AffineRule,
    Extent,
    Infinity,
    NotANumber,
    Rule,
    ScaleRule,
    Scaling,
    ZeroForm,
    ZeroOrder,
    ZeroPointRule,
)
from foldmark.formats.values import Array, Layout
from foldmark.kernels.affine import dequantize, quantize
from foldmark.kernels.fold import quantize_array
from foldmark.kernels.group import dequantize_group

__all__ = [
    "Made",
    "Mixture",
    "Unit",
    "Whole",
    "closest_rules",
    "explains",
    "features_of",
    "rules_of",
    "whole_rule",
]

# So many rules of a side, all equally good, are tried against the other's.
_PAIRED = 150
# A residual below this part of the largest number is float arithmetic, not another code.
_NOTHING = 1e-5

Whole = tuple[ScaleRule | None, ZeroPointRule | None, AffineRule]


@dataclass(frozen=True, eq=False)
class Made:
    """A weight as one side stores it, in the layout of the float model.

    Attributes:
        numbers: what it stands for, float32.
        block: elements along each axis that share a scale; None when it is not quantized.
        scale, zero_point: as stored, one a block; None when it is not quantized.
        codes: the codes that its storage allows.
        whole: rules that explain it equally well; empty when none does.
        method: what made codes that no rounding makes, in words; "" for rounding.
    """

    numbers: Array
    block: tuple[int, ...] | None = None
    scale: Array | None = None
    zero_point: Array | None = None
    codes: IntegerFormat | None = None
    whole: tuple[Whole, ...] = ()
    method: str = ""


@dataclass(frozen=True)
class Unit:
    """A decision that is swapped as one.

    Attributes:
        name: what reports call it.
        left, right: what each side does, in words.
    """

    name: str
    left: str
    right: str


def closest_rules(left: tuple[Whole, ...], right: tuple[Whole, ...]) -> tuple[Whole, Whole] | None:
    """Return a rule of each side that differ in as few decisions as possible, None without any."""
    best: tuple[int, Whole, Whole] | None = None
    ours = [(rule, features_of(rule)) for rule in left[:_PAIRED]]
    theirs = [(rule, features_of(rule)) for rule in right[:_PAIRED]]
    for (one, mine), (other, yours) in product(ours, theirs):
        apart = sum(mine.get(name) != yours.get(name) for name in mine | yours)
        if best is None or apart < best[0]:
            best = (apart, one, other)
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


@dataclass(frozen=True)
class _Rules:
    """A rule in parts, with its block; what mixing edits."""

    block: tuple[int, ...]
    scale: ScaleRule
    zero: ZeroPointRule
    affine: AffineRule


_Edit = Callable[[_Rules, _Rules], _Rules]


def _scale(*names: str) -> _Edit:
    def edit(one: _Rules, other: _Rules) -> _Rules:
        changes = {name: getattr(other.scale, name) for name in names}
        return replace(one, scale=replace(one.scale, **changes))

    return edit


def _zero(*names: str) -> _Edit:
    def edit(one: _Rules, other: _Rules) -> _Rules:
        changes = {name: getattr(other.zero, name) for name in names}
        return replace(one, zero=replace(one.zero, **changes))

    return edit


def _affine(*names: str) -> _Edit:
    def edit(one: _Rules, other: _Rules) -> _Rules:
        changes = {name: getattr(other.affine, name) for name in names}
        return replace(one, affine=replace(one.affine, **changes))

    return edit


def _range(one: _Rules, other: _Rules) -> _Rules:
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


def _order_and_scaling(one: _Rules, other: _Rules) -> _Rules:
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
GRID, METHOD, FLOAT = "scales", "method", "left in float"


@dataclass(eq=False)
class Mixture:
    """One weight on its way from A's rule to B's.

    Args:
        name: of the weight in the float model.
        exact: its float values.
        left, right: how the two sides store it.
    """

    name: str
    exact: Array
    left: Made
    right: Made
    _residuals: dict[str, Array] = field(default_factory=dict)

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The decisions that can be swapped, in the order in which they act."""
        return tuple(Unit(name, *self._words(name)) for name in self._names)

    def numbers(self, taken: Iterable[str]) -> Array:
        """Return the weight with these decisions taken from B and the others from A."""
        swapped = frozenset(taken) & frozenset(self._names)
        if not swapped:
            return self.left.numbers
        if swapped == frozenset(self._names):
            return self.right.numbers
        unexplained = self._residual(self.right if METHOD in swapped else self.left)
        mixed: Array = self._encoded(swapped - {METHOD}) + unexplained
        return mixed

    def _words(self, name: str) -> tuple[str, str]:
        """Return in words what each side does."""
        if name == METHOD:
            return self.left.method or "rounding", self.right.method or "rounding"
        if name == FLOAT:
            return ("quantized", "float") if self.left.block else ("float", "quantized")
        if name == GRID or self._pair is None:
            return "its own scales", "its own scales"
        one, other = (_said(rules, name, self.exact.shape) for rules in self._pair)
        return one, other

    @cached_property
    def _pair(self) -> tuple[_Rules, _Rules] | None:
        """A rule of each side in parts; None where a side's scales follow from none."""
        found = closest_rules(self.left.whole, self.right.whole)
        if found is None or self.left.block is None or self.right.block is None:
            return None
        sides = []
        for block, (scale, zero, affine) in zip(
            (self.left.block, self.right.block), found, strict=True
        ):
            if scale is None or zero is None:
                return None
            sides.append(_Rules(block, scale, zero, affine))
        return sides[0], sides[1]

    @cached_property
    def _names(self) -> tuple[str, ...]:
        if np.array_equal(self.left.numbers, self.right.numbers):
            return ()
        if self.left.block is None or self.right.block is None:
            return (FLOAT,)
        if self.left.scale is None or self.right.scale is None:
            return (METHOD,)
        names = _apart(*self._pair) if self._pair is not None else [GRID]
        largest = float(np.abs(self.exact).max(initial=0.0))
        rest = self._residual(self.right) - self._residual(self.left)
        if float(np.abs(rest).max(initial=0.0)) > _NOTHING * largest:
            names.append(METHOD)
        return tuple(names) or (METHOD,)

    def _residual(self, side: Made) -> Array:
        """Return what a side's numbers have beyond what its own rule gives."""
        key = "left" if side is self.left else "right"
        if key not in self._residuals:
            whole = frozenset() if key == "left" else _ALL
            self._residuals[key] = side.numbers - self._encoded(whole)
        return self._residuals[key]

    def _encoded(self, swapped: frozenset[str]) -> Array:
        """Return the float weight quantized by a mixture, and dequantized."""
        if self._pair is None:
            side = self.right if GRID in swapped or swapped is _ALL else self.left
            return _on_grid(self.exact, side)
        one, other = self._pair
        if swapped is _ALL:
            return _by_rule(self.exact, other)
        for name in _apart(one, other):
            if name in swapped:
                one = _EDITS[name](one, other)
        return _by_rule(self.exact, one)


_ALL = frozenset({"everything"})


def _apart(one: _Rules, other: _Rules) -> list[str]:
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


def _said(rules: _Rules, name: str, shape: tuple[int, ...]) -> str:
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


def _codes_words(rules: _Rules) -> str:
    return f"{'int' if rules.affine.codes.signed else 'uint'}{rules.affine.codes.bits}"


def _range_words(rules: _Rules) -> str:
    extent = words_for(rules.scale.extent)
    extent = f"({extent})" if " - " in extent else extent
    words = f"{extent} / {words_for(rules.scale.denominator)}"
    # Only a zero point that does not go with such a range is worth a word.
    fixed, magnitude = rules.zero.form is ZeroForm.FIXED, rules.scale.extent is Extent.MAGNITUDE
    return words if fixed == magnitude else f"{words}, {'fixed' if fixed else 'own'} zero point"


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


def _by_rule(exact: Array, rules: _Rules) -> Array:
    rule = whole_rule((rules.scale, rules.zero, rules.affine))
    assert rule is not None
    with np.errstate(all="ignore"):
        group = quantize_array(exact, rules.block, rule)
        numbers = dequantize_group(group, rule, block=rules.block)
    return np.asarray(numbers, np.float32)


def _on_grid(exact: Array, side: Made) -> Array:
    """Round to nearest on a side's own scales and zero points."""
    assert side.block is not None and side.scale is not None and side.codes is not None
    affine = AffineRule(
        codes=side.codes,
        scaling=Scaling.DIVIDE,
        rounding=Rounding.HALF_EVEN,
        nan=NotANumber.LOWEST,
        infinity=Infinity.SATURATE,
    )
    zero = side.zero_point
    if zero is not None and zero.dtype.kind == "f":
        affine = replace(affine, order=ZeroOrder.SUBTRACTED)
    scale = side.scale.astype(np.float32)
    points = np.zeros(scale.shape, np.int32) if zero is None else np.broadcast_to(zero, scale.shape)
    with np.errstate(all="ignore"):
        codes = quantize(exact, scale, points, affine, side.block)
        return np.asarray(dequantize(codes, scale, points, affine, block=side.block), np.float32)


def explains(made: Made, exact: Array, whole: Whole) -> bool:
    """Say whether a rule that was found on another weight gives a side's numbers."""
    scale, zero, affine = whole
    if made.block is None or scale is None or zero is None:
        return False
    try:
        numbers = _by_rule(exact, _Rules(made.block, scale, zero, affine))
    except FoldmarkError:
        return False
    largest = float(np.abs(exact).max(initial=0.0))
    return bool(np.abs(numbers - made.numbers).max(initial=0.0) <= _NOTHING * largest)


def rules_of(fit: Fit | None) -> tuple[Whole, ...]:
    """Return the whole rules that explain a fit, the commonest first."""
    return () if fit is None or fit.inference is None else fit.inference.whole
