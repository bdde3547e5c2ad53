"""A rule applied to one small group, written out line by line so that it can be done by hand."""

from collections.abc import Sequence
from fractions import Fraction
from math import isfinite, isnan

from foldmark.exact.affine import Grid, code_of, real_code_of
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.grid import GridSteps, steps_to_grid
from foldmark.exact.number import FloatFormat
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import (
    AffineRule,
    Extent,
    Rule,
    ScaleRule,
    ScaleUse,
    Scaling,
    ZeroForm,
    ZeroInRange,
    ZeroOrder,
    definite,
)

__all__ = ["shortest", "work_codes", "work_group"]

_ROUNDING = {
    Rounding.HALF_EVEN: "to nearest, ties to even",
    Rounding.HALF_AWAY: "to nearest, ties away from zero",
    Rounding.HALF_UP: "to nearest, ties up",
    Rounding.HALF_DOWN: "to nearest, ties down",
    Rounding.TOWARD_ZERO: "toward zero",
    Rounding.FLOOR: "down",
    Rounding.CEILING: "up",
}


def work_group(values: Sequence[float], rule: Rule, data: FloatFormat = FLOAT32) -> list[str]:
    """Return the lines from the values of one group to scale, zero point and codes."""
    definite_rule = rule.for_data(data)
    steps = steps_to_grid(values, rule, data)
    return [
        *_scale_lines(steps, definite_rule, data),
        *_zero_point_lines(steps, definite_rule),
        *work_codes(values, steps.grid, definite_rule.affine, data),
    ]


def work_codes(
    values: Sequence[float], grid: Grid, rule: AffineRule, data: FloatFormat = FLOAT32
) -> list[str]:
    """Return the lines from scale and zero point to the code of each value."""
    rule = rule.for_data(data)
    precision = definite(rule.precision, data)
    lines = []
    if rule.scaling != Scaling.DIVIDE:
        lines.append(f"multiplier = {shortest(grid.step, precision)} ({_formula(rule)})")
    for value in dict.fromkeys(values):
        lines.append(_code_line(value, grid, rule, data))
    return lines


def shortest(number: float, precision: FloatFormat = FLOAT32) -> str:
    """Return the shortest decimal that means this number among those of its format."""
    if not isfinite(number) or not precision.holds(number):
        return repr(number)
    for digits in range(1, 18):
        text = f"{number:.{digits}g}"
        if precision.round(float(text)) == number:
            return min(text, repr(number).removesuffix(".0"), key=len)
    return repr(number)


def _scale_lines(steps: GridSteps, rule: Rule, data: FloatFormat) -> list[str]:
    scale = rule.scale
    extent_precision = definite(scale.extent_precision or scale.precision, data)
    precision, stored = definite(scale.precision, data), definite(scale.stored, data)
    forced = "" if scale.zero_in_range == ZeroInRange.FREE else ", zero included"
    low, high = (shortest(end, extent_precision) for end in (steps.ends.low, steps.ends.high))
    extent = shortest(steps.extent, extent_precision)
    lines = [f"low = {low}, high = {high}{forced}", f"extent = {_extent(scale)} = {extent}"]
    quotient = f"{extent} / {_number(scale.denominator)}"
    if scale.extent == Extent.LARGER_SIDE:
        quotient = "that extent"
    result = shortest(steps.scale, precision)
    lines.append(f"scale = {quotient} = {result} in {precision.name}")
    if rule.affine.scale == ScaleUse.UNROUNDED or shortest(steps.grid.scale, stored) != result:
        unrounded = rule.affine.scale == ScaleUse.UNROUNDED
        used = "codes use it unrounded" if unrounded else "codes use it so"
        kept = shortest(steps.grid.scale, stored)
        lines.append(f"scale is stored as {kept} ({stored.name}); {used}")
    return lines


def _extent(scale: ScaleRule) -> str:
    match scale.extent:
        case Extent.SPAN:
            return "high - low"
        case Extent.MAGNITUDE:
            return "max(|low|, |high|)"
        case Extent.SIGNED_MAGNITUDE:
            return "|low| if farther from zero, else -high"
        case Extent.LARGER_SIDE:
            below, above = _number(scale.denominator_below), _number(scale.denominator)
            return f"max(low / -{below}, high / {above})"
        case Extent.MIRRORED_SPAN:
            return "high - low, a negative low mirrored"


def _zero_point_lines(steps: GridSteps, rule: Rule) -> list[str]:
    zero = rule.zero_point
    if zero.form == ZeroForm.FIXED:
        return [f"zero point = {_number(Fraction(steps.grid.zero_point))}, fixed"]
    shown = shortest(steps.grid.zero_point, definite(zero.stored, FLOAT32))
    which = "stored" if zero.scale == ScaleUse.STORED else "unrounded"
    return [f"zero point = {zero.form.value} = {shown}, with the {which} scale"]


def _code_line(value: float, grid: Grid, rule: AffineRule, data: FloatFormat) -> str:
    precision = definite(rule.precision, data)
    real = real_code_of(value, grid, rule, data)
    code = code_of(value, grid, rule, data)
    step, offset = shortest(grid.step, precision), shortest(float(grid.offset), precision)
    operator = "/" if rule.scaling == Scaling.DIVIDE else "*"
    with_half = _number(Fraction(grid.offset) + Fraction(1, 2))
    inside = {
        ZeroOrder.AFTER_ROUNDING: f"x {operator} {step}",
        ZeroOrder.BEFORE_ROUNDING: f"x {operator} {step} + {offset}",
        ZeroOrder.FUSED: f"x {operator} {step} + {offset} rounded once",
        ZeroOrder.WITH_HALF: f"x {operator} {step} + {with_half}",
        ZeroOrder.SUBTRACTED: f"(x - {offset}) {operator} {step}",
        ZeroOrder.SUBTRACTED_WITH_HALF: f"(x - {offset}) {operator} {step} + 0.5",
    }[rule.order]
    result = f"x = {shortest(value, data)}: {inside} = {shortest(real, precision)}"
    if isnan(real):
        return f"{result}, code {code}"
    added = f" + {offset}" if rule.order == ZeroOrder.AFTER_ROUNDING and grid.offset else ""
    return f"{result}, rounded {_ROUNDING[rule.rounding]}{added}: code {code}"


def _formula(rule: AffineRule) -> str:
    match rule.scaling:
        case Scaling.RECIPROCAL:
            return "1 / scale, rounded"
        case Scaling.RATIO:
            return f"{_number(rule.ratio)} / extent, rounded"
        case _:
            return f"1 / extent, rounded, times {_number(rule.ratio)}, rounded"


def _number(exact: Fraction) -> str:
    return str(exact.numerator) if exact.denominator == 1 else repr(float(exact))
