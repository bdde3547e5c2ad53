"""From the ends of blocks to their scales and zero points: the arithmetic of `exact.grid`.

Everything is an array over blocks, held as float64 and rounded after each operation to the
precision that the rule names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.catalog import FLOAT32
from foldmark.exact.number import FloatFormat
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import (
    Clip,
    Extent,
    ExtremeTie,
    Rule,
    ScaleRule,
    ScaleUse,
    TinyAction,
    TinyRange,
    TinyTest,
    ZeroForm,
    ZeroInRange,
    ZeroPointRule,
    constant_of,
    definite,
)
from foldmark.kernels.affine import Grid, offset_of, step_of
from foldmark.kernels.arithmetic import add, divide, multiply, subtract
from foldmark.kernels.precision import Numbers, rounded
from foldmark.kernels.rounding import round_to_int

__all__ = ["choose"]


@dataclass(frozen=True, slots=True, eq=False)
class _Ends:
    low: Numbers
    high: Numbers
    low_is_farther: NDArray[np.bool_]


def choose(
    low: NDArray[Any],
    high: NDArray[Any],
    rule: Rule,
    first_is_low: Callable[[NDArray[np.bool_]], NDArray[np.bool_]],
) -> Grid:
    """Return the grid of every block, all of it float64, for a rule made definite.

    low, high     the ends of the blocks, float32 or float64
    first_is_low  given a mask of blocks whose ends are equally far from zero, says for which of
                  them the low end comes first in the data
    """
    ends, extent, scale, fixed = _choose_scale(
        _find_ends(low, high, rule, first_is_low), rule.scale
    )
    kept = definite(rule.scale.stored, FLOAT32)
    stored = rounded(scale, kept)
    used = stored if rule.affine.scale == ScaleUse.STORED else scale
    divisor = stored if rule.zero_point.scale == ScaleUse.STORED else scale
    zero_point = _choose_zero_point(ends, divisor, rule.zero_point)
    offset = zero_point
    if rule.affine.zero_is_real:
        zero_point = rounded(zero_point, definite(rule.zero_point.stored, FLOAT32))
        real = zero_point if rule.affine.scale == ScaleUse.STORED else offset
        offset = offset_of(used, real, rule.affine)
    is_fixed = ~np.isnan(fixed)
    if is_fixed.any():
        zero_point = np.where(is_fixed, fixed, zero_point)
        offset = np.where(is_fixed, fixed, offset)
    return Grid(stored, zero_point, step_of(used, extent, rule.affine), offset)


def _find_ends(
    low: NDArray[Any],
    high: NDArray[Any],
    rule: Rule,
    first_is_low: Callable[[NDArray[np.bool_]], NDArray[np.bool_]],
) -> _Ends:
    low, high = low.astype(np.float64), high.astype(np.float64)
    if rule.scale.zero_in_range == ZeroInRange.FORCED:
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    match rule.scale.tie:
        case ExtremeTie.LOW:
            return _Ends(low, high, np.abs(low) >= high)
        case ExtremeTie.HIGH:
            return _Ends(low, high, np.abs(low) > high)
        case ExtremeTie.FIRST:
            farther = (low < 0) & (-low > high)
            tied = (low < 0) & (-low == high)
            return _Ends(low, high, np.where(tied, first_is_low(tied), farther))
        case _:  # pragma: no cover
            assert_never(rule.scale.tie)


def _choose_scale(ends: _Ends, rule: ScaleRule) -> tuple[_Ends, Numbers, Numbers, Numbers]:
    """Return ends, extent, unrounded scale, and zero points that a tiny range sets (else NaN)."""
    precision = definite(rule.precision, FLOAT32)
    extent = _extent(ends, rule)
    scale = _divided(extent, rule)
    fixed = np.full(extent.shape, np.nan)
    for tiny in rule.tiny:
        tested = np.abs(extent if tiny.test == TinyTest.EXTENT else scale)
        below = precision.round(constant_of(tiny.below, precision), Rounding.CEILING)
        applies = ~(tested >= below)  # NaN counts as tiny
        if not applies.any():
            continue
        value = np.full(extent.shape, precision.round(constant_of(tiny.value, precision)))
        fixed = np.where(applies, _or_nan(tiny), fixed)
        new_ends, new_extent, new_scale = _replaced(tiny.action, value, ends, extent, scale, rule)
        extent = np.where(applies, new_extent, extent)
        scale = np.where(applies, new_scale, scale)
        ends = _Ends(
            np.where(applies, new_ends.low, ends.low),
            np.where(applies, new_ends.high, ends.high),
            np.where(applies, new_ends.low_is_farther, ends.low_is_farther),
        )
    return ends, extent, scale, fixed


def _replaced(
    action: TinyAction,
    value: Numbers,
    ends: _Ends,
    extent: Numbers,
    scale: Numbers,
    rule: ScaleRule,
) -> tuple[_Ends, Numbers, Numbers]:
    """Return ends, extent and scale after an action on all blocks."""
    match action:
        case TinyAction.EXTENT:
            return ends, value, _divided(value, rule)
        case TinyAction.ENDS:
            ends = _Ends(-value, value, np.ones(value.shape, bool))
            extent = _extent(ends, rule)
            return ends, extent, _divided(extent, rule)
        case TinyAction.SCALE:
            return ends, extent, value
        case TinyAction.STRETCH:
            return _stretched(ends, scale, value, rule), extent, value
        case _:  # pragma: no cover
            assert_never(action)


def _extent(ends: _Ends, rule: ScaleRule) -> Numbers:
    precision = definite(rule.extent_precision or rule.precision, FLOAT32)
    low, high = rounded(ends.low, precision), rounded(ends.high, precision)
    match rule.extent:
        case Extent.SPAN:
            return subtract(high, low, precision)
        case Extent.MAGNITUDE:
            return np.maximum(np.abs(low), np.abs(high))
        case Extent.SIGNED_MAGNITUDE:
            return np.where(ends.low_is_farther, np.where(low > 0, low, -low), -high)
        case Extent.LARGER_SIDE:
            below = divide(low, -float(rule.denominator_below), precision)
            return np.maximum(below, divide(high, float(rule.denominator), precision))
        case Extent.MIRRORED_SPAN:
            top = np.maximum(np.abs(low), high)
            return subtract(top, np.where(low < 0, -top, low), precision)
        case _:  # pragma: no cover
            assert_never(rule.extent)


def _divided(extent: Numbers, rule: ScaleRule) -> Numbers:
    """Return the scale; LARGER_SIDE has divided already, each side by its own steps."""
    if rule.extent == Extent.LARGER_SIDE:
        return extent
    return divide(extent, float(rule.denominator), definite(rule.precision, FLOAT32))


def _or_nan(tiny: TinyRange) -> float:
    return np.nan if tiny.zero_point is None else float(tiny.zero_point)


def _stretched(ends: _Ends, old: Numbers, new: Numbers, rule: ScaleRule) -> _Ends:
    """Return the ends that give the scale `new`; an end at zero stays there."""
    whole = multiply(new, float(rule.denominator), FLOAT32)
    growth = divide(new, rounded(old, FLOAT32), FLOAT32)
    low, high = multiply(ends.low, growth, FLOAT32), multiply(ends.high, growth, FLOAT32)
    no_low, no_high = ends.low == 0, ends.high == 0
    low = np.where(no_low, 0.0, np.where(no_high, -whole, low))
    high = np.where(no_low, whole, np.where(no_high, 0.0, high))
    farther = np.where(no_low, False, np.where(no_high, True, ends.low_is_farther))
    return _Ends(low, high, farther)


def _choose_zero_point(ends: _Ends, scale: Numbers, rule: ZeroPointRule) -> Numbers:
    precision = definite(rule.precision, FLOAT32)
    divisor = rounded(scale, precision)
    low, high = rounded(ends.low, precision), rounded(ends.high, precision)
    match rule.form:
        case ZeroForm.FIXED:
            return np.full(scale.shape, float(rule.fixed))
        case ZeroForm.LOW:
            return low
        case ZeroForm.MIDDLE:
            return add(low, multiply(float(rule.fixed), divisor, precision), precision)
        case ZeroForm.ROUND_DIFFERENCE:
            quotient = divide(low, divisor, precision)
            code = _whole(subtract(float(rule.lowest), quotient, precision), rule)
        case ZeroForm.ROUND_QUOTIENT:
            code = rule.lowest - _whole(divide(low, divisor, precision), rule)
        case ZeroForm.SMALLER_ERROR:
            code = _whole(_from_smaller_error(low, high, divisor, rule, precision), rule)
        case ZeroForm.FROM_ENDS:
            code = _whole(_from_ends(low, high, rule, precision), rule)
        case _:  # pragma: no cover
            assert_never(rule.form)
    return np.clip(code, rule.lowest, rule.highest) if rule.clip == Clip.SATURATE else code


def _from_ends(low: Numbers, high: Numbers, rule: ZeroPointRule, precision: FloatFormat) -> Numbers:
    low_part = multiply(float(rule.lowest), high, precision)
    high_part = multiply(float(rule.highest), low, precision)
    numerator = subtract(low_part, high_part, precision)
    return divide(numerator, subtract(high, low, precision), precision)


def _from_smaller_error(
    low: Numbers, high: Numbers, scale: Numbers, rule: ZeroPointRule, precision: FloatFormat
) -> Numbers:
    """Return the zero point from whichever end has the smaller terms, before rounding."""
    lowest, highest = float(rule.lowest), float(rule.highest)
    from_low, from_high = divide(low, scale, precision), divide(high, scale, precision)
    low_error = add(abs(lowest), np.abs(from_low), precision)
    high_error = add(abs(highest), np.abs(from_high), precision)
    return np.where(
        low_error < high_error,
        subtract(lowest, from_low, precision),
        subtract(highest, from_high, precision),
    )


def _whole(real: Numbers, rule: ZeroPointRule) -> Numbers:
    """Round to integers; NaN (0 / 0, a zero scale) is 0, infinity lies beyond every code."""
    finite = np.where(np.isfinite(real), real, 0.0)
    whole = round_to_int(finite, rule.rounding).astype(np.float64)
    return np.where(np.isinf(real), np.copysign(2.0**32, real), whole)
