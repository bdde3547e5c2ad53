"""What a rule's fields may be: the space that the search for an unknown rule walks through.

Stage by stage, because each stage leaves its own trace: scales, then zero points, then codes.
"""

from collections.abc import Iterator
from fractions import Fraction
from itertools import product

from foldmark.exact.catalog import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from foldmark.exact.number import FloatFormat, IntegerFormat
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import (
    AffineRule,
    Clip,
    Extent,
    ExtremeTie,
    Infinity,
    NotANumber,
    Rule,
    ScaleRule,
    ScaleUse,
    Scaling,
    TinyRange,
    ZeroDivisor,
    ZeroForm,
    ZeroInRange,
    ZeroOrder,
    ZeroPointRule,
)
from foldmark.rules import CATALOGUE

__all__ = ["affine_rules", "catalogue_rules", "scale_rules", "tiny_treatments", "zero_point_rules"]


def catalogue_rules(codes: IntegerFormat) -> Iterator[Rule]:
    """Yield the catalogue's rules whose codes are as wide as these."""
    for entry in CATALOGUE.values():
        if isinstance(entry, Rule) and entry.codes.bits == codes.bits:
            yield entry


def _denominators(codes: IntegerFormat) -> Iterator[tuple[Extent, Fraction]]:
    half = 1 << (codes.bits - 1)
    steps = 2 * half - 1
    for denominator in (Fraction(half - 1), Fraction(steps, 2), Fraction(half)):
        yield Extent.MAGNITUDE, denominator
    yield Extent.SIGNED_MAGNITUDE, Fraction(half)
    yield Extent.LARGER_SIDE, Fraction(half - 1)
    yield Extent.SPAN, Fraction(steps)
    yield Extent.SPAN, Fraction(steps - 1)
    yield Extent.MIRRORED_SPAN, Fraction(steps)
    if codes.bits == 8:  # reduced ranges, for processors whose sums of two products saturate
        for denominator in (Fraction(127, 2), Fraction(64)):
            yield Extent.MAGNITUDE, denominator
        yield Extent.SPAN, Fraction(127)


def scale_rules(
    codes: IntegerFormat, stored: FloatFormat, data: tuple[FloatFormat, ...]
) -> Iterator[ScaleRule]:
    """Yield every scale rule of the search.

    Args:
        codes: what is stored.
        stored: what scales are stored in.
        data: what the weights may have been.
    """
    half = 1 << (codes.bits - 1)
    precisions = dict.fromkeys((FLOAT32, FLOAT64, *data))
    # What a narrow type stores was rounded to it; float32 may hold what was rounded before.
    kept = (FLOAT32, FLOAT16, BFLOAT16) if stored == FLOAT32 else (stored,)
    for (extent, denominator), precision, dtype in product(_denominators(codes), precisions, kept):
        below = Fraction(half) if extent is Extent.LARGER_SIDE else Fraction(0)
        zeros = ZeroInRange if extent is Extent.SPAN else (ZeroInRange.FORCED,)
        ties = ExtremeTie if extent is Extent.SIGNED_MAGNITUDE else (ExtremeTie.LOW,)
        for zero, tie in product(zeros, ties):
            yield ScaleRule(
                extent=extent,
                denominator=denominator,
                denominator_below=below,
                zero_in_range=zero,
                tie=tie,
                precision=precision,
                stored=dtype,
            )


def tiny_treatments() -> tuple[tuple[TinyRange, ...], ...]:
    """Return every treatment of a zero or tiny range that a tool of the catalogue has."""
    rules = [entry for entry in CATALOGUE.values() if isinstance(entry, Rule)]
    return tuple(dict.fromkeys([(), *(rule.scale.tiny for rule in rules)]))


def zero_point_rules(
    codes: IntegerFormat, real: bool, fixed: int | None, stored: FloatFormat
) -> Iterator[ZeroPointRule]:
    """Yield every zero point rule of the search.

    Args:
        codes: what is stored.
        real: whether zero points are real numbers.
        fixed: the zero point that all blocks share, None when they differ.
        stored: what real zero points are stored in.
    """
    lowest, highest = codes.minimum, codes.maximum
    middle = lowest + (1 << (codes.bits - 1))
    if real:
        for form, at in ((ZeroForm.LOW, 0), (ZeroForm.MIDDLE, middle)):
            yield ZeroPointRule(form=form, fixed=at, lowest=lowest, highest=highest, stored=stored)
        return
    if fixed is not None:
        yield ZeroPointRule(fixed=fixed, lowest=lowest, highest=highest)
    computed = (
        ZeroForm.ROUND_DIFFERENCE,
        ZeroForm.ROUND_QUOTIENT,
        ZeroForm.SMALLER_ERROR,
        ZeroForm.FROM_ENDS,
    )
    roundings = (Rounding.HALF_EVEN, Rounding.HALF_AWAY)
    for form, rounding, use, precision in product(
        computed, roundings, ScaleUse, (FLOAT32, FLOAT64)
    ):
        yield ZeroPointRule(
            form=form,
            lowest=lowest,
            highest=highest,
            scale=use,
            precision=precision,
            rounding=rounding,
            clip=Clip.SATURATE,
        )


def affine_rules(
    codes: IntegerFormat, real: bool, ratio: Fraction, data: tuple[FloatFormat, ...]
) -> Iterator[AffineRule]:
    """Yield every way from values to codes of the search, the commonest first.

    Args:
        codes: what is stored.
        real: whether zero points are real numbers.
        ratio: the code that the extent is meant to get.
        data: what the weights may have been.
    """
    half = 1 << (codes.bits - 1)
    narrow = IntegerFormat(f"{codes.name} narrow", codes.bits, codes.minimum + 1, codes.maximum)
    ranges = (codes, narrow) if codes.minimum == -half else (codes,)
    for order, rounding in _orders(real):
        for scaling, use, precision, kept in product(
            Scaling, ScaleUse, dict.fromkeys((FLOAT32, FLOAT64, *data)), ranges
        ):
            if order is ZeroOrder.FUSED and scaling is Scaling.DIVIDE:
                continue
            by_ratio = scaling in (Scaling.RATIO, Scaling.RATIO_OF_RECIPROCAL)
            yield AffineRule(
                codes=kept,
                scaling=scaling,
                ratio=ratio if by_ratio else Fraction(1),
                scale=use,
                order=order,
                rounding=rounding,
                precision=precision,
                zero_divisor=ZeroDivisor.ZERO,
                nan=NotANumber.LOWEST,
                infinity=Infinity.SATURATE,
            )


def _orders(real: bool) -> Iterator[tuple[ZeroOrder, Rounding]]:
    """Yield orders of operations with the roundings that tools combine them with."""
    nearest = (Rounding.HALF_EVEN, Rounding.HALF_AWAY, Rounding.HALF_UP)
    if real:
        yield from ((ZeroOrder.SUBTRACTED, rounding) for rounding in nearest)
        yield ZeroOrder.SUBTRACTED_WITH_HALF, Rounding.TOWARD_ZERO
        return
    for order in (ZeroOrder.AFTER_ROUNDING, ZeroOrder.BEFORE_ROUNDING, ZeroOrder.FUSED):
        yield from ((order, rounding) for rounding in nearest)
    yield ZeroOrder.WITH_HALF, Rounding.TOWARD_ZERO
    for rounding in (Rounding.TOWARD_ZERO, Rounding.FLOOR, Rounding.CEILING):
        yield ZeroOrder.AFTER_ROUNDING, rounding
