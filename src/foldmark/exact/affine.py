"""One value to its code and back, given scale and zero point: the affine map of every tool.

Values and scales are Python floats that belong to the dtype they come from. Each operation is
rounded once, to the precision that the rule names.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite, isinf, isnan, nan
from typing import assert_never

from foldmark.errors import InvalidScheme, NonFiniteValue
from foldmark.exact.arithmetic import add, divide, fused_multiply_add, multiply, subtract
from foldmark.exact.catalog import FLOAT32, INT32
from foldmark.exact.number import FloatFormat
from foldmark.exact.rounding import Rounding, round_to_int
from foldmark.exact.rule import (
    AffineRule,
    Clip,
    Infinity,
    NotANumber,
    Scaling,
    ZeroDivisor,
    ZeroOrder,
    definite,
)

__all__ = [
    "Grid",
    "code_of",
    "codes_of",
    "dequantize",
    "dequantize_value",
    "fake_quantize",
    "fake_quantize_value",
    "grid_of",
    "offset_of",
    "quantize",
    "quantize_value",
    "real_code_of",
    "step_of",
]


@dataclass(frozen=True, slots=True)
class Grid:
    """What was fixed for one group of values before any code was computed.

    scale       as stored beside the codes
    zero_point  as stored beside the codes: a code, or a real number where the rule says so
    step        what a value is divided by (Scaling.DIVIDE) or multiplied with (the others)
    offset      the zero point that the codes are computed with; a real one already moved to code 0
    """

    scale: float
    zero_point: float
    step: float
    offset: float


def step_of(scale: float, extent: float, rule: AffineRule, data: FloatFormat = FLOAT32) -> float:
    """Return the divisor or multiplier that brings values to the scale of codes.

    scale   the scale that codes are computed with
    extent  what the scale was computed from; only the RATIO scalings look at it
    """
    precision = definite(rule.precision, data)
    match rule.scaling:
        case Scaling.DIVIDE:
            return precision.round(scale)
        case Scaling.RECIPROCAL:
            return _over(1.0, precision.round(scale), rule, precision)
        case Scaling.RATIO:
            return _over(float(rule.ratio), precision.round(extent), rule, precision)
        case Scaling.RATIO_OF_RECIPROCAL:
            reciprocal = _over(1.0, precision.round(extent), rule, precision)
            return multiply(reciprocal, float(rule.ratio), precision)
        case _:  # pragma: no cover
            assert_never(rule.scaling)


def grid_of(scale: float, zero_point: float, rule: AffineRule, data: FloatFormat = FLOAT32) -> Grid:
    """Return the grid that a given scale and zero point fix.

    Raises InvalidScheme for the RATIO scalings, which need the extent that the scale came from,
    unless the scale is the extent (codes_per_scale = ratio).
    """
    ratio = rule.scaling in (Scaling.RATIO, Scaling.RATIO_OF_RECIPROCAL)
    if ratio and rule.codes_per_scale != rule.ratio:
        raise InvalidScheme(
            "codes of this rule follow from the data's extent, which a scale does not tell",
            got=rule.scaling.name,
            todo="quantize the whole group with quantize_group",
        )
    step = step_of(scale, scale, rule, data)
    return Grid(scale, zero_point, step, offset_of(scale, zero_point, rule, data))


def offset_of(
    scale: float, zero_point: float, rule: AffineRule, data: FloatFormat = FLOAT32
) -> float:
    """Return the zero point as codes use it: a real one is moved from `middle` to code 0."""
    if not rule.zero_is_real or rule.middle == 0:
        return zero_point
    precision = definite(rule.precision, data)
    return subtract(zero_point, multiply(float(rule.middle), scale, precision), precision)


def code_of(value: float, grid: Grid, rule: AffineRule, data: FloatFormat = FLOAT32) -> int:
    """Return the code of one value.

    With v = value / step or value * step:  clip(round(v) + offset), in the order and with the
    roundings that the rule says. Raises NonFiniteValue where the rule has no code for the value.
    """
    if rule.infinity == Infinity.RAISE and isinf(value):
        raise NonFiniteValue("infinity has no code under this rule", got=str(value))
    number = real_code_of(value, grid, rule, data)
    if isnan(number) and not rule.casts_nan:
        return _code_of_nan(rule)
    added = int(grid.offset) if rule.order == ZeroOrder.AFTER_ROUNDING else 0
    if rule.infinity == Infinity.CAST_TO_INT32:
        return rule.codes.clip(INT32.wrap(_cast_to_int32(number, rule.rounding) + added))
    if isinf(number):
        return rule.codes.maximum if number > 0 else rule.codes.minimum
    code = round_to_int(Fraction(number), rule.rounding) + added
    return rule.codes.clip(code) if rule.clip == Clip.SATURATE else code


def quantize_value(
    value: float, scale: float, zero_point: float, rule: AffineRule, data: FloatFormat = FLOAT32
) -> int:
    """Return the code of one value of dtype `data`. Raises NonFiniteValue as the rule says."""
    return code_of(value, grid_of(scale, zero_point, rule, data), rule, data)


def dequantize_value(
    code: int, scale: float, zero_point: float, rule: AffineRule, data: FloatFormat = FLOAT32
) -> float:
    """Return the number of dtype `data` that a code stands for.

    fl(fl(code - z) * scale), or fl(fl((code - middle) * scale) + z) with a real zero point z;
    computed in the rule's precision and then rounded to `data`.
    """
    precision = definite(rule.precision, data)
    if rule.zero_is_real:
        steps = multiply(float(code - rule.middle), scale, precision)
        return data.round(add(steps, zero_point, precision))
    steps = multiply(subtract(float(code), zero_point, precision), scale, precision)
    return data.round(divide(steps, float(rule.codes_per_scale), precision))


def fake_quantize_value(
    value: float, scale: float, zero_point: float, rule: AffineRule, data: FloatFormat = FLOAT32
) -> float:
    """Return what `value` becomes when it is quantized and dequantized again."""
    code = quantize_value(value, scale, zero_point, rule, data)
    return dequantize_value(code, scale, zero_point, rule, data)


def quantize(
    values: Sequence[float],
    scale: float,
    zero_point: float,
    rule: AffineRule,
    data: FloatFormat = FLOAT32,
) -> list[int]:
    """Return the codes of a list of values that share one scale and zero point.

    Raises NonFiniteValue naming the first index that has no code.
    """
    return codes_of(values, grid_of(scale, zero_point, rule, data), rule, data)


def codes_of(
    values: Iterable[float], grid: Grid, rule: AffineRule, data: FloatFormat = FLOAT32
) -> list[int]:
    """Return the codes of a list of values on a grid. Raises NonFiniteValue with the index."""
    codes = []
    for index, value in enumerate(values):
        try:
            codes.append(code_of(value, grid, rule, data))
        except NonFiniteValue as error:
            raise NonFiniteValue(
                error.what, where=f"index {index}", got=str(value), todo=error.todo
            ) from None
    return codes


def dequantize(
    codes: Iterable[int],
    scale: float,
    zero_point: float,
    rule: AffineRule,
    data: FloatFormat = FLOAT32,
) -> list[float]:
    """Return the numbers that a list of codes stands for."""
    return [dequantize_value(code, scale, zero_point, rule, data) for code in codes]


def fake_quantize(
    values: Sequence[float],
    scale: float,
    zero_point: float,
    rule: AffineRule,
    data: FloatFormat = FLOAT32,
) -> list[float]:
    """Return what a list of values becomes when quantized and dequantized again."""
    codes = quantize(values, scale, zero_point, rule, data)
    return dequantize(codes, scale, zero_point, rule, data)


def real_code_of(value: float, grid: Grid, rule: AffineRule, data: FloatFormat = FLOAT32) -> float:
    """Return the number that is rounded to an integer next: v, or v with the zero point in it."""
    precision = definite(rule.precision, data)
    value = precision.round(value)
    match rule.order:
        case ZeroOrder.AFTER_ROUNDING:
            return _scaled(value, grid, rule, precision)
        case ZeroOrder.BEFORE_ROUNDING:
            return add(_scaled(value, grid, rule, precision), grid.offset, precision)
        case ZeroOrder.WITH_HALF:
            return add(_scaled(value, grid, rule, precision), grid.offset + 0.5, precision)
        case ZeroOrder.FUSED:
            return fused_multiply_add(value, grid.step, grid.offset, precision)
        case ZeroOrder.SUBTRACTED:
            moved = subtract(value, precision.round(grid.offset), precision)
            return _scaled(moved, grid, rule, precision)
        case ZeroOrder.SUBTRACTED_WITH_HALF:
            moved = subtract(value, precision.round(grid.offset), precision)
            return add(_scaled(moved, grid, rule, precision), 0.5, precision)
        case _:  # pragma: no cover
            assert_never(rule.order)


def _scaled(value: float, grid: Grid, rule: AffineRule, precision: FloatFormat) -> float:
    if rule.scaling == Scaling.DIVIDE:
        return _over(value, grid.step, rule, precision)
    return multiply(value, grid.step, precision)


def _over(numerator: float, divisor: float, rule: AffineRule, precision: FloatFormat) -> float:
    if divisor == 0 and rule.zero_divisor == ZeroDivisor.ZERO:
        return 0.0
    return divide(numerator, divisor, precision)


def _code_of_nan(rule: AffineRule) -> int:
    match rule.nan:
        case NotANumber.LOWEST:
            return rule.codes.minimum
        case NotANumber.HIGHEST:
            return rule.codes.maximum
        case NotANumber.ZERO:
            return rule.codes.clip(0)
        case NotANumber.RAISE:
            raise NonFiniteValue("not a number has no code under this rule", got=str(nan))
        case _:  # pragma: no cover
            assert_never(rule.nan)


def _cast_to_int32(number: float, rounding: Rounding) -> int:
    """Return what x86 makes of a float cast to int32: -2^31 for all that does not fit."""
    whole = round_to_int(Fraction(number), rounding) if isfinite(number) else inf
    return int(whole) if INT32.minimum <= whole <= INT32.maximum else INT32.minimum
