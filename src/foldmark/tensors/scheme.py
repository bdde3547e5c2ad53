"""A scheme: which rule turns numbers into codes, and which numbers share a scale."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from foldmark.errors import InvalidScheme
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.number import IntegerFormat
from foldmark.exact.rule import (
    AffineRule,
    Extent,
    Rule,
    ScaleRule,
    TinyAction,
    TinyRange,
    TinyTest,
    ZeroForm,
    ZeroPointRule,
)
from foldmark.tensors.block import BlockShape

__all__ = ["Scheme", "asymmetric", "symmetric"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """A rule and the shape of the blocks that it is applied to, one scale each."""

    rule: Rule
    block: BlockShape = field(default_factory=BlockShape)

    @property
    def codes(self) -> IntegerFormat:
        """The number format of the codes."""
        return self.rule.codes

    @property
    def stores_zero_point(self) -> bool:
        """Whether zero points are kept beside the codes, because they depend on the data."""
        return self.rule.zero_point.form != ZeroForm.FIXED

    def __str__(self) -> str:
        """Say the scheme in words."""
        return f"{self.codes.name}, {self.block}, by {self.rule.name}"


# A range too small for a scale with a full mantissa: every number gets the code of zero.
_NOTHING_THERE: Final = TinyRange(
    test=TinyTest.SCALE,
    below=float(FLOAT32.smallest_normal),
    action=TinyAction.SCALE,
    value=1.0,
)
_SOURCE: Final = "foldmark.tensors.scheme"
_VERSIONS: Final = "foldmark 0.1"


def symmetric(codes: IntegerFormat, block: BlockShape | None = None) -> Scheme:
    """Return foldmark's own symmetric scheme: real zero is code 0 and no zero point is kept.

    scale = max|w| / maximum, in float32 for data of any dtype; code = round(w / scale), ties to
    even. NaN and infinities are refused.

    Raises InvalidScheme for unsigned codes, which have no code of zero in their middle.
    """
    if not codes.signed:
        raise InvalidScheme(
            "symmetric codes are signed", got=codes.name, todo="use a signed format or asymmetric()"
        )
    rule = Rule(
        name=f"foldmark symmetric {codes.name}",
        scale=ScaleRule(
            extent=Extent.MAGNITUDE,
            denominator=Fraction(codes.maximum),
            stored=FLOAT32,
            tiny=(_NOTHING_THERE,),
        ),
        zero_point=ZeroPointRule(fixed=0, lowest=codes.minimum, highest=codes.maximum),
        affine=AffineRule(codes=codes),
        source=_SOURCE,
        versions=_VERSIONS,
    )
    return Scheme(rule, block or BlockShape())


def asymmetric(codes: IntegerFormat, block: BlockShape | None = None) -> Scheme:
    """Return foldmark's own asymmetric scheme: all codes for the range, real zero among them.

    With low <= 0 <= high the ends of the block, widened to include zero:
    scale = (high - low) / (maximum - minimum), zero_point = round(minimum - low / scale),
    code = round(w / scale) + zero_point, ties to even, in float32. NaN and infinities are refused.
    """
    rule = Rule(
        name=f"foldmark asymmetric {codes.name}",
        scale=ScaleRule(
            extent=Extent.SPAN,
            denominator=Fraction(codes.steps),
            stored=FLOAT32,
            tiny=(_NOTHING_THERE,),
        ),
        zero_point=ZeroPointRule(
            form=ZeroForm.ROUND_DIFFERENCE, lowest=codes.minimum, highest=codes.maximum
        ),
        affine=AffineRule(codes=codes),
        source=_SOURCE,
        versions=_VERSIONS,
    )
    return Scheme(rule, block or BlockShape())
