"""The arithmetic of the course, as rules of `exact`: Python's own floats, a stored float64 scale.

The right answers of the course are what `exact` computes under these rules; a usual mistake is
mostly a neighbour of one of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from foldmark.exact.affine import dequantize, quantize
from foldmark.exact.catalog import FLOAT64, INT4_NARROW, INT8, INT8_NARROW, UINT8
from foldmark.exact.grid import choose_grid
from foldmark.exact.number import IntegerFormat
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import (
    AffineRule,
    Clip,
    Extent,
    Rule,
    ScaleRule,
    TinyAction,
    TinyRange,
    TinyTest,
    ZeroForm,
    ZeroOrder,
    ZeroPointRule,
)

__all__ = [
    "AFFINE",
    "NARROW",
    "NIBBLES",
    "SYMMETRIC",
    "choose",
    "codes_of",
    "fold",
    "folded",
    "unfold",
    "with_codes",
    "with_order",
    "with_rounding",
    "without_clip",
]

_SOURCE = "the foldmark course"
# A scale that comes out as exactly 0 becomes 1, with zero point 0.
_ZERO_SCALE: Final = TinyRange(
    test=TinyTest.SCALE, below=5e-324, action=TinyAction.SCALE, value=1.0, zero_point=0
)
NARROW: Final = INT8_NARROW


def _symmetric(name: str, codes: IntegerFormat) -> Rule:
    """Return scale = max|x| / maximum, a scale of 0 becoming 1, and codes round(x / scale)."""
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.MAGNITUDE,
            denominator=Fraction(codes.maximum),
            precision=FLOAT64,
            stored=FLOAT64,
            tiny=(_ZERO_SCALE,),
        ),
        zero_point=ZeroPointRule(form=ZeroForm.FIXED, fixed=0, precision=FLOAT64, stored=FLOAT64),
        affine=AffineRule(codes=codes, precision=FLOAT64),
        source=_SOURCE,
        versions="",
    )


SYMMETRIC: Final = _symmetric("course symmetric", INT8_NARROW)
NIBBLES: Final = _symmetric("course blocks", INT4_NARROW)
AFFINE: Final = Rule(
    name="course affine",
    scale=ScaleRule(
        extent=Extent.SPAN,
        denominator=Fraction(255),
        precision=FLOAT64,
        stored=FLOAT64,
        tiny=(_ZERO_SCALE,),
    ),
    zero_point=ZeroPointRule(
        form=ZeroForm.ROUND_DIFFERENCE,
        lowest=0,
        highest=255,
        precision=FLOAT64,
        stored=FLOAT64,
    ),
    affine=AffineRule(codes=UINT8, precision=FLOAT64),
    source=_SOURCE,
    versions="",
)


def with_rounding(rule: Rule, rounding: Rounding) -> Rule:
    """Return the rule with another rounding of codes."""
    return replace(rule, affine=replace(rule.affine, rounding=rounding))


def with_order(rule: Rule, order: ZeroOrder) -> Rule:
    """Return the rule with the zero point joining at another time."""
    return replace(rule, affine=replace(rule.affine, order=order))


def with_codes(rule: Rule, codes: IntegerFormat = INT8) -> Rule:
    """Return the rule with other codes to clip to."""
    return replace(rule, affine=replace(rule.affine, codes=codes))


def without_clip(rule: Rule) -> Rule:
    """Return the rule with codes left as they are."""
    return replace(rule, affine=replace(rule.affine, clip=Clip.NONE))


def choose(values: Sequence[float], rule: Rule = SYMMETRIC) -> tuple[float, int]:
    """Return the scale and zero point that the rule chooses for the values."""
    grid = choose_grid(values, rule, FLOAT64)
    return grid.scale, int(grid.zero_point)


def codes_of(
    values: Sequence[float], scale: float, zero_point: int = 0, rule: Rule = SYMMETRIC
) -> list[int]:
    """Return the codes of the values under a given scale and zero point."""
    return quantize(values, scale, zero_point, rule.affine, FLOAT64)


def unfold(codes: Sequence[int], scale: float, zero_point: int = 0) -> list[float]:
    """Return (code - zero_point) * scale for every code."""
    return dequantize(codes, scale, zero_point, AFFINE.affine, FLOAT64)


def fold(values: Sequence[float], rule: Rule = SYMMETRIC) -> tuple[list[int], float]:
    """Return the codes of the values under the scale that they set themselves, and that scale."""
    scale, zero_point = choose(values, rule)
    return codes_of(values, scale, zero_point, rule), scale


def folded(values: Sequence[float], rule: Rule = SYMMETRIC) -> list[float]:
    """Return what the values become when they are folded and unfolded again."""
    codes, scale = fold(values, rule)
    return unfold(codes, scale)
