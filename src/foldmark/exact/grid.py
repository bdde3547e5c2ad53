"""From the values of one group to its scale and zero point, before any code is computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import copysign, isinf, isnan
from typing import assert_never

from foldmark.errors import NonFiniteValue
from foldmark.exact.affine import Grid, offset_of, step_of
from foldmark.exact.arithmetic import add, divide, multiply, subtract
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.number import FloatFormat
from foldmark.exact.rounding import Rounding, round_to_int
from foldmark.exact.rule import (
    Clip,
    Extent,
    ExtremeTie,
    Infinity,
    NotANumber,
    Rule,
    ScaleRule,
    ScaleUse,
    TinyAction,
    TinyTest,
    ZeroForm,
    ZeroInRange,
    ZeroPointRule,
    constant_of,
    definite,
)

__all__ = ["Ends", "GridSteps", "choose_grid", "steps_to_grid"]


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of a group, and whether the low one counts as the one farther from zero."""

    low: float
    high: float
    low_is_farther: bool


@dataclass(frozen=True, slots=True)
class GridSteps:
    """Everything that was computed on the way to a grid, to be shown line by line.

    ends    as the scale was computed from them, after any treatment of a tiny range
    extent  what was divided
    scale   before it was rounded to the dtype it is stored in
    """

    ends: Ends
    extent: float
    scale: float
    grid: Grid


def choose_grid(values: Sequence[float], rule: Rule, data: FloatFormat = FLOAT32) -> Grid:
    """Return scale and zero point of a group, stored and as used for its codes.

    values  numbers of dtype `data`; an empty group has the ends 0 and 0

    Raises NonFiniteValue naming the first NaN or infinity that the rule does not allow.
    """
    return steps_to_grid(values, rule, data).grid


def steps_to_grid(values: Sequence[float], rule: Rule, data: FloatFormat = FLOAT32) -> GridSteps:
    """Return what `choose_grid` returns, with everything that led there.

    Raises NonFiniteValue naming the first NaN or infinity that the rule does not allow.
    """
    rule = rule.for_data(data)
    chosen = _choose_scale(_find_ends(values, rule), rule.scale)
    stored = definite(rule.scale.stored, data).round(chosen.scale)
    grid = _grid(chosen, stored, rule)
    return GridSteps(chosen.ends, chosen.extent, chosen.scale, grid)


def _grid(chosen: "_Chosen", stored: float, rule: Rule) -> Grid:
    used = stored if rule.affine.scale == ScaleUse.STORED else chosen.scale
    step = step_of(used, chosen.extent, rule.affine)
    if chosen.zero_point is not None:
        return Grid(stored, chosen.zero_point, step, chosen.zero_point)
    divisor = stored if rule.zero_point.scale == ScaleUse.STORED else chosen.scale
    zero_point = _choose_zero_point(chosen.ends, divisor, rule.zero_point)
    if not rule.affine.zero_is_real:
        return Grid(stored, zero_point, step, zero_point)
    kept = definite(rule.zero_point.stored, FLOAT32).round(zero_point)
    real = kept if rule.affine.scale == ScaleUse.STORED else zero_point
    return Grid(stored, kept, step, offset_of(used, real, rule.affine))


def _find_ends(values: Sequence[float], rule: Rule) -> Ends:
    for index, value in enumerate(values):
        if isnan(value) and rule.affine.nan == NotANumber.RAISE:
            raise NonFiniteValue("not a number", where=f"index {index}", got=str(value))
        if isinf(value) and rule.affine.infinity == Infinity.RAISE:
            raise NonFiniteValue("infinite", where=f"index {index}", got=str(value))
    numbers = [value for value in values if not isnan(value)]
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    if rule.scale.zero_in_range == ZeroInRange.FORCED:
        low, high = min(low, 0.0), max(high, 0.0)
    return Ends(low, high, _low_is_farther(low, high, numbers, rule.scale.tie))


def _low_is_farther(low: float, high: float, numbers: list[float], tie: ExtremeTie) -> bool:
    match tie:
        case ExtremeTie.LOW:
            return abs(low) >= high
        case ExtremeTie.HIGH:
            return abs(low) > high
        case ExtremeTie.FIRST:
            farthest = max((abs(n) for n in numbers), default=0.0)
            return next((n < 0 for n in numbers if abs(n) == farthest), False)
        case _:  # pragma: no cover
            assert_never(tie)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """An unrounded scale, what it was computed from, and the zero point if that is settled too."""

    ends: Ends
    extent: float
    scale: float
    zero_point: int | None


def _choose_scale(ends: Ends, rule: ScaleRule) -> _Chosen:
    precision = definite(rule.precision, FLOAT32)
    extent = _extent(ends, rule)
    scale = _divided(extent, rule)
    zero_point = None
    for tiny in rule.tiny:
        tested = abs(extent) if tiny.test == TinyTest.EXTENT else abs(scale)
        if tested >= precision.round(constant_of(tiny.below, precision), Rounding.CEILING):
            continue
        value = precision.round(constant_of(tiny.value, precision))
        zero_point = tiny.zero_point
        match tiny.action:
            case TinyAction.EXTENT:
                extent, scale = value, _divided(value, rule)
            case TinyAction.ENDS:
                ends = Ends(-value, value, True)
                extent = _extent(ends, rule)
                scale = _divided(extent, rule)
            case TinyAction.SCALE:
                scale = value
            case TinyAction.STRETCH:
                ends, scale = _stretched(ends, scale, value, rule), value
            case _:  # pragma: no cover
                assert_never(tiny.action)
    return _Chosen(ends, extent, scale, zero_point)


def _extent(ends: Ends, rule: ScaleRule) -> float:
    precision = definite(rule.extent_precision or rule.precision, FLOAT32)
    low, high = precision.round(ends.low), precision.round(ends.high)
    match rule.extent:
        case Extent.SPAN:
            return subtract(high, low, precision)
        case Extent.MAGNITUDE:
            return max(abs(low), abs(high))
        case Extent.SIGNED_MAGNITUDE:
            return (low if low > 0 else -low) if ends.low_is_farther else -high
        case Extent.LARGER_SIDE:
            below = divide(low, -float(rule.denominator_below), precision)
            return max(below, divide(high, float(rule.denominator), precision))
        case Extent.MIRRORED_SPAN:
            top = max(abs(low), high)
            return subtract(top, -top if low < 0 else low, precision)
        case _:  # pragma: no cover
            assert_never(rule.extent)


def _divided(extent: float, rule: ScaleRule) -> float:
    """Return the scale; LARGER_SIDE has divided already, each side by its own steps."""
    if rule.extent == Extent.LARGER_SIDE:
        return extent
    return divide(extent, float(rule.denominator), definite(rule.precision, FLOAT32))


def _stretched(ends: Ends, old: float, new: float, rule: ScaleRule) -> Ends:
    """Return the ends that give the scale `new`; an end at zero stays there."""
    whole = multiply(new, float(rule.denominator), FLOAT32)
    if ends.low == 0:
        return Ends(0.0, whole, False)
    if ends.high == 0:
        return Ends(-whole, 0.0, True)
    growth = divide(new, FLOAT32.round(old), FLOAT32)
    low, high = multiply(ends.low, growth, FLOAT32), multiply(ends.high, growth, FLOAT32)
    return Ends(low, high, ends.low_is_farther)


def _choose_zero_point(ends: Ends, scale: float, rule: ZeroPointRule) -> float:
    precision = definite(rule.precision, FLOAT32)
    divisor = precision.round(scale)
    low, high = precision.round(ends.low), precision.round(ends.high)
    match rule.form:
        case ZeroForm.FIXED:
            return rule.fixed
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
    return min(max(code, rule.lowest), rule.highest) if rule.clip == Clip.SATURATE else code


def _from_ends(low: float, high: float, rule: ZeroPointRule, precision: FloatFormat) -> float:
    low_part = multiply(float(rule.lowest), high, precision)
    high_part = multiply(float(rule.highest), low, precision)
    numerator = subtract(low_part, high_part, precision)
    return divide(numerator, subtract(high, low, precision), precision)


def _from_smaller_error(
    low: float, high: float, scale: float, rule: ZeroPointRule, precision: FloatFormat
) -> float:
    """Return the zero point from whichever end has the smaller terms, before rounding."""
    from_low, from_high = divide(low, scale, precision), divide(high, scale, precision)
    low_error = add(abs(float(rule.lowest)), abs(from_low), precision)
    high_error = add(abs(float(rule.highest)), abs(from_high), precision)
    if low_error < high_error:
        return subtract(float(rule.lowest), from_low, precision)
    return subtract(float(rule.highest), from_high, precision)


def _whole(real: float, rule: ZeroPointRule) -> int:
    """Round to an integer; NaN (0 / 0, a zero scale) is 0, infinity lies beyond every code."""
    if isnan(real):
        return 0
    if isinf(real):
        return int(copysign(1 << 32, real))
    return round_to_int(Fraction(real), rule.rounding)
