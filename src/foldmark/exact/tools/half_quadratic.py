"""Half-quadratic quantization (HQQ): a real zero point moved by proximal steps.

Codes are clip(round(x * s + z), 0, 15) with an inverse scale s and a real zero z in code units;
1 / s is stored. Each step shrinks the error w_e = shrink(x - (q - z) / s), with
shrink(e) = sign(e) * max(|e| - |e + eps|^(p - 1) / beta, 0) and p = 0.7, and sets
z = mean(q - (x - w_e) * s). The first step that does not improve ends it, and its zero is kept.

Sums are taken in order, as torch does for groups of up to 8; for longer ones its order depends on
the CPU's vector width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import copysign, inf
from typing import Final

from foldmark.exact.catalog import UINT4
from foldmark.exact.group import QuantizedGroup
from foldmark.exact.number import FloatFormat
from foldmark.exact.rounding import Rounding, round_to_int
from foldmark.exact.single import add, divide, multiply, single, subtract, total
from foldmark.exact.tools.entry import Entry, Procedure

__all__ = [
    "ENTRIES",
    "HQQ_START",
    "HQQ_STEPS",
    "ONNXRUNTIME_STEPS",
    "HalfQuadratic",
    "quantize_half_quadratic",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfQuadratic:
    """What differs between the two programs that do this.

    tiny_span    spans up to this one are flat: `flat_inverse` is then the inverse scale
    zero_rounded whether the first zero is rounded
    steps        greatest number of proximal steps
    offset       what is added to |e| before the power
    growth       what beta is multiplied with after each step
    """

    tiny_span: float
    zero_rounded: Rounding | None
    steps: int
    offset: float
    growth: float
    first_error: float


ONNXRUNTIME_STEPS: Final = HalfQuadratic(
    tiny_span=0.0,
    zero_rounded=Rounding.HALF_EVEN,
    steps=20,
    offset=1e-8,
    growth=1.01,
    first_error=1e4,
)
HQQ_STEPS: Final = HalfQuadratic(
    tiny_span=1e-4, zero_rounded=None, steps=20, offset=0.0, growth=1.0, first_error=inf
)
HQQ_START: Final = HalfQuadratic(
    tiny_span=1e-4, zero_rounded=None, steps=0, offset=0.0, growth=1.0, first_error=inf
)


def quantize_half_quadratic(values: Sequence[float], variant: HalfQuadratic) -> QuantizedGroup:
    """Return codes 0..15, the stored scale 1 / s and the real zero z of a float32 group."""
    low, high = min(values), max(values)
    span = subtract(high, low)
    inverse = 1.0 if span <= single(variant.tiny_span) else _inverse_of(span)
    zero = multiply(-low, inverse)
    if variant.zero_rounded is not None:
        zero = float(round_to_int(Fraction(zero), variant.zero_rounded))
    zero = _improve(values, inverse, zero, variant)
    codes = tuple(_codes(values, inverse, zero))
    return QuantizedGroup(codes, divide(1.0, inverse), zero)


def _inverse_of(span: float) -> float:
    """Return min(15 / span, 20000); torch divides a number by a tensor as reciprocal * number."""
    return min(multiply(divide(1.0, span), 15.0), 2e4)


def _improve(values: Sequence[float], inverse: float, zero: float, variant: HalfQuadratic) -> float:
    beta, best = 10.0, variant.first_error
    for _ in range(variant.steps):
        codes = _codes(values, inverse, zero)
        restored = [divide(subtract(float(q), zero), inverse) for q in codes]
        errors = [subtract(x, r) for x, r in zip(values, restored, strict=True)]
        shrunk = [_shrink(e, beta, variant.offset) for e in errors]
        moved = (
            subtract(float(q), multiply(subtract(x, w), inverse))
            for q, x, w in zip(codes, values, shrunk, strict=True)
        )
        zero = divide(total(moved), float(len(values)))
        beta *= variant.growth
        error = divide(total(abs(e) for e in errors), float(len(values)))
        if error >= best:
            break
        best = error
    return zero


def _shrink(error: float, beta: float, offset: float) -> float:
    size = abs(error)
    shifted = add(size, single(offset))
    if shifted == 0:
        return 0.0
    pull = multiply(single(1.0 / beta), single(shifted ** single(0.7 - 1)))
    return copysign(max(subtract(size, pull), 0.0), error)


def _codes(values: Sequence[float], inverse: float, zero: float) -> list[int]:
    scaled = (add(multiply(x, inverse), zero) for x in values)
    return [UINT4.clip(round_to_int(Fraction(v), Rounding.HALF_EVEN)) for v in scaled]


def _onnxruntime(values: Sequence[float], data: FloatFormat) -> QuantizedGroup:
    del data  # computed in float32 whatever the dtype of the data
    return quantize_half_quadratic(values, ONNXRUNTIME_STEPS)


def _hqq(values: Sequence[float], data: FloatFormat) -> QuantizedGroup:
    del data
    return quantize_half_quadratic(values, HQQ_STEPS)


def _hqq_start(values: Sequence[float], data: FloatFormat) -> QuantizedGroup:
    del data
    return quantize_half_quadratic(values, HQQ_START)


ONNXRUNTIME_HQQ_4: Final = Procedure(
    name="ONNXRUNTIME_HQQ_4",
    codes=UINT4,
    quantize=_onnxruntime,
    description="a real zero point moved by up to 20 proximal steps from a rounded start",
    source="onnxruntime/quantization/matmul_nbits_quantizer.py: HQQWeightOnlyQuantizer",
    versions="onnxruntime 1.32.0, CPU",
)
HQQ_4: Final = Procedure(
    name="HQQ_4",
    codes=UINT4,
    quantize=_hqq,
    description="a real zero point moved by up to 20 proximal steps",
    source="hqq/core/quantize.py, optimize.py: optimize_weights_proximal_legacy",
    versions="hqq 0.2.8.post1, CPU",
)
HQQ_4_UNOPTIMIZED: Final = Procedure(
    name="HQQ_4_UNOPTIMIZED",
    codes=UINT4,
    quantize=_hqq_start,
    description="a real zero point, and the inverse scale 15 times the reciprocal of the range",
    source="hqq/core/quantize.py, optimize=False",
    versions="hqq 0.2.8.post1, CPU",
)

ENTRIES: Final[tuple[Entry, ...]] = (ONNXRUNTIME_HQQ_4, HQQ_4, HQQ_4_UNOPTIMIZED)
