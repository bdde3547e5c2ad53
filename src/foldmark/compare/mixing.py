"""A weight as it would be if one side had made some of the decisions and the other the rest.

Every decision that two rules make differently becomes a unit that can be swapped alone: the
float weight is encoded again by the mixed rule. What a side's rule does not explain (error
feedback, learned rounding, a wrong row) is kept as what it adds to the numbers, and is a unit of
its own, so that swapping nothing gives A's numbers and swapping everything gives B's.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from foldmark.compare.decisions import (
    Parts,
    Whole,
    apart,
    closest_rules,
    said,
    taken_over,
    whole_rule,
)
from foldmark.compare.fit import Fit
from foldmark.errors import FoldmarkError
from foldmark.exact.number import IntegerFormat
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import AffineRule, Infinity, NotANumber, Scaling, ZeroOrder
from foldmark.formats.values import Array
from foldmark.kernels.affine import dequantize, quantize
from foldmark.kernels.fold import quantize_array
from foldmark.kernels.group import dequantize_group

__all__ = ["FLOAT", "Made", "Mixture", "Unit", "explains", "rules_of"]

# A residual below this part of the largest number is float arithmetic, not another code.
_NOTHING = 1e-5


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
        one, other = (said(rules, name, self.exact.shape) for rules in self._pair)
        return one, other

    @cached_property
    def _pair(self) -> tuple[Parts, Parts] | None:
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
            sides.append(Parts(block, scale, zero, affine))
        return sides[0], sides[1]

    @cached_property
    def _names(self) -> tuple[str, ...]:
        if np.array_equal(self.left.numbers, self.right.numbers):
            return ()
        if self.left.block is None or self.right.block is None:
            return (FLOAT,)
        if self.left.scale is None or self.right.scale is None:
            return (METHOD,)
        names = apart(*self._pair) if self._pair is not None else [GRID]
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
        for name in apart(one, other):
            if name in swapped:
                one = taken_over(name, one, other)
        return _by_rule(self.exact, one)


_ALL = frozenset({"everything"})


def _by_rule(exact: Array, rules: Parts) -> Array:
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
        numbers = _by_rule(exact, Parts(made.block, scale, zero, affine))
    except FoldmarkError:
        return False
    largest = float(np.abs(exact).max(initial=0.0))
    return bool(np.abs(numbers - made.numbers).max(initial=0.0) <= _NOTHING * largest)


def rules_of(fit: Fit | None) -> tuple[Whole, ...]:
    """Return the whole rules that explain a fit, the commonest first."""
    return () if fit is None or fit.inference is None else fit.inference.whole
