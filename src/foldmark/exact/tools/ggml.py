"""ggml (llama.cpp): the block types whose codes follow from one formula.

Scales and minima are stored in float16; codes are computed with the float32 ones.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from foldmark.exact.catalog import FLOAT16, INT8, UINT4, UINT5, UINT6
from foldmark.exact.group import QuantizedGroup
from foldmark.exact.number import FloatFormat, IntegerFormat
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import (
    AffineRule,
    Extent,
    ExtremeTie,
    NotANumber,
    Rule,
    ScaleRule,
    ScaleUse,
    Scaling,
    ZeroDivisor,
    ZeroForm,
    ZeroInRange,
    ZeroOrder,
    ZeroPointRule,
)
from foldmark.exact.tools.entry import Entry, Procedure
from foldmark.exact.tools.kquants import quantize_q4_k, quantize_q6_k

__all__ = ["ENTRIES"]

_VERSION = "ggml d99724f2 (2026-08-21), built without FMA contraction; gguf 0.19.0"
_QUANTS = "ggml/src/ggml-quants.c"


def _q8(name: str, scaling: Scaling, rounding: Rounding, source: str, versions: str) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(extent=Extent.MAGNITUDE, denominator=Fraction(127), stored=FLOAT16),
        zero_point=ZeroPointRule(lowest=-128, highest=127),
        affine=AffineRule(
            codes=INT8,
            scaling=scaling,
            ratio=Fraction(127),
            scale=ScaleUse.UNROUNDED,
            rounding=rounding,
            zero_divisor=ZeroDivisor.ZERO,
            nan=NotANumber.ZERO,
        ),
        source=source,
        versions=versions,
    )


def _signed(name: str, codes: IntegerFormat, middle: int) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.SIGNED_MAGNITUDE,
            denominator=Fraction(middle),
            zero_in_range=ZeroInRange.FREE,
            tie=ExtremeTie.FIRST,
            stored=FLOAT16,
        ),
        zero_point=ZeroPointRule(fixed=middle, lowest=codes.minimum, highest=codes.maximum),
        affine=AffineRule(
            codes=codes,
            scaling=Scaling.RECIPROCAL,
            scale=ScaleUse.UNROUNDED,
            order=ZeroOrder.WITH_HALF,
            rounding=Rounding.TOWARD_ZERO,
            zero_divisor=ZeroDivisor.ZERO,
            nan=NotANumber.ZERO,
        ),
        source=f"{_QUANTS}: quantize_row_{name[-4:].lower()}_ref",
        versions=_VERSION,
    )


def _with_minimum(name: str, codes: IntegerFormat) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.SPAN,
            denominator=Fraction(codes.maximum),
            zero_in_range=ZeroInRange.FREE,
            stored=FLOAT16,
        ),
        zero_point=ZeroPointRule(
            form=ZeroForm.LOW, lowest=0, highest=codes.maximum, stored=FLOAT16
        ),
        affine=AffineRule(
            codes=codes,
            scaling=Scaling.RECIPROCAL,
            scale=ScaleUse.UNROUNDED,
            order=ZeroOrder.SUBTRACTED_WITH_HALF,
            rounding=Rounding.TOWARD_ZERO,
            zero_divisor=ZeroDivisor.ZERO,
            nan=NotANumber.ZERO,
        ),
        source=f"{_QUANTS}: quantize_row_{name[-4:].lower()}_ref",
        versions=_VERSION,
    )


GGML_Q8_0: Final = _q8(
    "GGML_Q8_0",
    Scaling.RECIPROCAL,
    Rounding.HALF_AWAY,
    f"{_QUANTS}: quantize_row_q8_0_ref",
    _VERSION,
)
# What the kernels do to activations at run time is not what the file quantizer does.
GGML_Q8_0_ACTIVATION_X86: Final = _q8(
    "GGML_Q8_0_ACTIVATION_X86",
    Scaling.RATIO,
    Rounding.HALF_EVEN,
    "ggml/src/ggml-cpu/arch/x86/quants.c: quantize_row_q8_0",
    "ggml d99724f2 (2026-08-21), read and not run",
)
GGML_Q8_0_ACTIVATION_ARM: Final = _q8(
    "GGML_Q8_0_ACTIVATION_ARM",
    Scaling.RECIPROCAL,
    Rounding.HALF_EVEN,
    "ggml/src/ggml-cpu/arch/arm/quants.c: quantize_row_q8_0",
    "ggml d99724f2 (2026-08-21), read and not run",
)
GGML_Q4_0: Final = _signed("GGML_Q4_0", UINT4, 8)
GGML_Q5_0: Final = _signed("GGML_Q5_0", UINT5, 16)
GGML_Q4_1: Final = _with_minimum("GGML_Q4_1", UINT4)
GGML_Q5_1: Final = _with_minimum("GGML_Q5_1", UINT5)


def _q4_k(values: Sequence[float], data: FloatFormat) -> QuantizedGroup:
    """Return codes, d and -dmin of a super block; the small scales are in `quantize_q4_k`."""
    block = quantize_q4_k([data.round(v) for v in values])
    return QuantizedGroup(block.codes, block.d, -block.d_min)


def _q6_k(values: Sequence[float], data: FloatFormat) -> QuantizedGroup:
    """Return codes and d of a super block; the small scales are in `quantize_q6_k`."""
    block = quantize_q6_k([data.round(v) for v in values])
    return QuantizedGroup(block.codes, block.d, 32)


GGML_Q4_K: Final = Procedure(
    name="GGML_Q4_K",
    codes=UINT4,
    quantize=_q4_k,
    description="eight sub-blocks of 32, each the best of 22 weighted least-squares lines",
    source=f"{_QUANTS}: quantize_row_q4_K_ref",
    versions=_VERSION,
)
GGML_Q6_K: Final = Procedure(
    name="GGML_Q6_K",
    codes=UINT6,
    quantize=_q6_k,
    description="sixteen sub-blocks of 16, each the best of 19 weighted scales; scales in int8",
    source=f"{_QUANTS}: quantize_row_q6_K_ref",
    versions=_VERSION,
)

ENTRIES: Final[tuple[Entry, ...]] = (
    GGML_Q8_0,
    GGML_Q8_0_ACTIVATION_X86,
    GGML_Q8_0_ACTIVATION_ARM,
    GGML_Q4_0,
    GGML_Q5_0,
    GGML_Q4_1,
    GGML_Q5_1,
    GGML_Q4_K,
    GGML_Q6_K,
)
