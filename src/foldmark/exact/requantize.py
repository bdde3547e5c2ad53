"""From an int32 accumulator back to codes: by a float multiplier, or by fixed point.

Float (ONNX Runtime): one float32 product, one rounding. Fixed point (gemmlowp, TensorFlow Lite):
the real multiplier is m / 2^31 * 2^shift with an int32 m, so that no float unit is needed; what is
rounded, and how often, differs between builds.
"""

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from math import frexp

from foldmark.errors import InvalidScheme
from foldmark.exact.arithmetic import multiply
from foldmark.exact.catalog import FLOAT32, INT32
from foldmark.exact.number import IntegerFormat
from foldmark.exact.rounding import Rounding, round_to_int

__all__ = [
    "FixedPointMultiplier",
    "FixedPointRounding",
    "multiply_by_quantized_multiplier",
    "multiply_by_reduced_multiplier",
    "quantize_multiplier",
    "requantize_fixed_point",
    "requantize_float",
    "rounding_divide_by_power_of_two",
    "saturating_rounding_doubling_high_multiply",
]


def requantize_float(accumulator: int, scale: float, zero_point: int, codes: IntegerFormat) -> int:
    """Return clip(round(fl(accumulator * scale)) + zero_point), half to even, in float32.

    scale  float32, scale_a * scale_b / scale_out

    Source: ONNX Runtime, MlasRequantizeOutput.
    """
    product = multiply(FLOAT32.round(float(accumulator)), scale, FLOAT32)
    return codes.clip(round_to_int(Fraction(product), Rounding.HALF_EVEN) + zero_point)


class FixedPointRounding(Enum):
    """How often, and which way, a fixed-point product is rounded."""

    DOUBLE = "high multiply with ties up, then shift with ties away from zero: the default build"
    SINGLE = "one shift of the 64-bit product, ties up: TFLITE_SINGLE_ROUNDING"
    DOUBLE_UP = "high multiply and shift, both with ties up: the four-row NEON code"


@dataclass(frozen=True, slots=True)
class FixedPointMultiplier:
    """The real number mantissa / 2^31 * 2^shift; mantissa is an int32 in [2^30, 2^31), or 0."""

    mantissa: int
    shift: int


def quantize_multiplier(real: float) -> FixedPointMultiplier:
    """Return the fixed-point multiplier nearest to a real number >= 0.

    real = q * 2^shift with q in [1/2, 1); mantissa = round(q * 2^31), ties away. A mantissa of 2^31
    is halved and the shift raised; below 2^-31 the multiplier is zero.

    Raises InvalidScheme for a negative number. Source: TensorFlow Lite, QuantizeMultiplier.
    """
    if real < 0:
        raise InvalidScheme("a multiplier must not be negative", got=str(real))
    if real == 0:
        return FixedPointMultiplier(0, 0)
    fraction, shift = frexp(real)
    mantissa = round_to_int(Fraction(fraction) * (1 << 31), Rounding.HALF_AWAY)
    if mantissa == 1 << 31:
        mantissa, shift = 1 << 30, shift + 1
    return FixedPointMultiplier(0, 0) if shift < -31 else FixedPointMultiplier(mantissa, shift)


def saturating_rounding_doubling_high_multiply(a: int, b: int) -> int:
    """Return round(a * b / 2^31), ties toward plus infinity; the one overflow saturates.

    The overflow is INT32_MIN * INT32_MIN, which gives INT32_MAX. Source: gemmlowp.
    """
    if a == b == INT32.minimum:
        return INT32.maximum
    return round_to_int(Fraction(a * b, 1 << 31), Rounding.HALF_UP)


def rounding_divide_by_power_of_two(x: int, exponent: int) -> int:
    """Return round(x / 2^exponent), ties away from zero. Source: gemmlowp."""
    return round_to_int(Fraction(x, 1 << exponent), Rounding.HALF_AWAY)


def multiply_by_quantized_multiplier(
    x: int,
    multiplier: FixedPointMultiplier,
    rounding: FixedPointRounding = FixedPointRounding.DOUBLE,
) -> int:
    """Return x * multiplier as an int32, rounded as the build rounds.

    Double rounding gives 1 for x = 1 and a multiplier of 0.3: 0.6 rounds to 1 when doubled, and
    1 / 2 rounds away from zero. Source: TensorFlow Lite, MultiplyByQuantizedMultiplier.
    """
    left, right = max(multiplier.shift, 0), max(-multiplier.shift, 0)
    match rounding:
        case FixedPointRounding.DOUBLE:
            high = _high(x << left, multiplier.mantissa)
            return rounding_divide_by_power_of_two(high, right)
        case FixedPointRounding.SINGLE:
            total = 31 - multiplier.shift
            exact = Fraction(x * multiplier.mantissa, 1 << total)
            return round_to_int(exact, Rounding.HALF_UP)
        case FixedPointRounding.DOUBLE_UP:
            high = _high(x << left, multiplier.mantissa)
            return round_to_int(Fraction(high, 1 << right), Rounding.HALF_UP)


def multiply_by_reduced_multiplier(x: int, multiplier: FixedPointMultiplier) -> int:
    """Return x * multiplier for an int64 accumulator (int16 activations by int8 weights).

    The mantissa is first reduced to 16 bits: (m + 2^15) >> 16, or 0x7fff at the top; then one
    shift with ties up. Source: TensorFlow Lite, MultiplyByQuantizedMultiplier for int64.
    """
    top = multiplier.mantissa >= 0x7FFF0000
    reduced = 0x7FFF if top else (multiplier.mantissa + (1 << 15)) >> 16
    return round_to_int(Fraction(x * reduced, 1 << (15 - multiplier.shift)), Rounding.HALF_UP)


def requantize_fixed_point(
    accumulator: int,
    multiplier: FixedPointMultiplier,
    zero_point: int,
    codes: IntegerFormat,
    rounding: FixedPointRounding = FixedPointRounding.DOUBLE,
) -> int:
    """Return clip(accumulator * multiplier + zero_point), the product in fixed point."""
    product = multiply_by_quantized_multiplier(accumulator, multiplier, rounding)
    return codes.clip(product + zero_point)


def _high(x: int, mantissa: int) -> int:
    return saturating_rounding_doubling_high_multiply(INT32.wrap(x), mantissa)
