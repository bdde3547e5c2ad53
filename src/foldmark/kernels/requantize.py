"""From accumulators back to codes, on arrays: by a float multiplier, or by fixed point.

Exact twin: foldmark.exact.requantize, where the builds are told apart.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.number import IntegerFormat
from foldmark.exact.requantize import FixedPointMultiplier, FixedPointRounding
from foldmark.kernels.blocks import PIECE
from foldmark.kernels.codes import codes_dtype
from foldmark.kernels.compiled import compiled
from foldmark.kernels.loops import Codes
from foldmark.kernels.threads import each

__all__ = [
    "multiply_by_quantized_multiplier",
    "multiply_by_reduced_multiplier",
    "requantize_fixed_point",
    "requantize_float",
    "rounding_divide_by_power_of_two",
    "saturating_rounding_doubling_high_multiply",
]

Integers = NDArray[np.integer[Any]]
_HIGH: Final = (1 << 31) - 1


def requantize_float(
    accumulator: Integers, scale: float, zero_point: int, codes: IntegerFormat
) -> Codes:
    """Return clip(round(fl(accumulator * scale)) + zero_point), half to even, in float32.

    accumulator  any shape  int32
    scale        float32, scale_a * scale_b / scale_out

    Exact twin: foldmark.exact.requantize.requantize_float.
    """
    flat = np.ascontiguousarray(accumulator).reshape(-1)
    out = np.empty(flat.size, codes_dtype(codes))
    factor = np.float32(scale)

    def run(first: int) -> None:
        part = slice(first, first + PIECE)
        whole = np.rint(flat[part].astype(np.float32) * factor).astype(np.float64) + zero_point
        out[part] = np.clip(whole, codes.minimum, codes.maximum)

    each(run, range(0, flat.size, PIECE))
    return out.reshape(accumulator.shape)


def saturating_rounding_doubling_high_multiply(a: Integers, b: Integers) -> NDArray[np.int64]:
    """Return round(a * b / 2^31), ties toward plus infinity; the one overflow saturates.

    Exact twin: foldmark.exact.requantize.saturating_rounding_doubling_high_multiply.
    """
    product = np.multiply(a, b, dtype=np.int64)
    return np.minimum((product + (1 << 30)) >> 31, _HIGH)


def rounding_divide_by_power_of_two(x: Integers, exponent: int) -> NDArray[np.int64]:
    """Return round(x / 2^exponent), ties away from zero.

    Exact twin: foldmark.exact.requantize.rounding_divide_by_power_of_two.
    """
    wide = x.astype(np.int64)
    if exponent == 0:
        return wide
    return np.sign(wide) * ((np.abs(wide) + (1 << (exponent - 1))) >> exponent)


def multiply_by_quantized_multiplier(
    x: Integers,
    multiplier: FixedPointMultiplier,
    rounding: FixedPointRounding = FixedPointRounding.DOUBLE,
) -> NDArray[np.int64]:
    """Return x * multiplier, rounded as the build rounds.

    x   any shape  int32
    ->  same shape, int64 holding int32 numbers

    Exact twin: foldmark.exact.requantize.multiply_by_quantized_multiplier.
    """
    flat = np.ascontiguousarray(x, dtype=np.int64).reshape(-1)
    out = np.empty(flat.size, np.int64)
    kind = list(FixedPointRounding).index(rounding)

    def run(first: int) -> None:
        part = slice(first, first + PIECE)
        _fixed_point(flat[part], multiplier.mantissa, multiplier.shift, kind, out[part])

    each(run, range(0, flat.size, PIECE))
    return out.reshape(x.shape)


def multiply_by_reduced_multiplier(
    x: Integers, multiplier: FixedPointMultiplier
) -> NDArray[np.int64]:
    """Return x * multiplier for an accumulator of up to 48 bits (int16 activations).

    Exact twin: foldmark.exact.requantize.multiply_by_reduced_multiplier.
    """
    top = multiplier.mantissa >= 0x7FFF0000
    reduced = 0x7FFF if top else (multiplier.mantissa + (1 << 15)) >> 16
    total = 15 - multiplier.shift
    product = x.astype(np.int64) * reduced
    return (product + ((1 << total) >> 1)) >> total


def requantize_fixed_point(
    accumulator: Integers,
    multiplier: FixedPointMultiplier,
    zero_point: int,
    codes: IntegerFormat,
    rounding: FixedPointRounding = FixedPointRounding.DOUBLE,
) -> Codes:
    """Return clip(accumulator * multiplier + zero_point), the product in fixed point.

    Exact twin: foldmark.exact.requantize.requantize_fixed_point.
    """
    product = multiply_by_quantized_multiplier(accumulator, multiplier, rounding) + zero_point
    return np.clip(product, codes.minimum, codes.maximum).astype(codes_dtype(codes))


@compiled
def _fixed_point(
    x: NDArray[np.int64], mantissa: int, shift: int, kind: int, out: NDArray[np.int64]
) -> None:
    """Write x * mantissa / 2^(31 - shift); kind is the place in FixedPointRounding."""
    left, right, total = max(shift, 0), max(-shift, 0), 31 - shift
    half = (1 << right) >> 1
    for i in range(x.size):
        if kind == 1:
            out[i] = (x[i] * mantissa + ((1 << total) >> 1)) >> total
            continue
        shifted = np.int64(np.int32(x[i] << left))
        high = (shifted * mantissa + (1 << 30)) >> 31
        high = high if high < 1 << 31 else np.int64((1 << 31) - 1)
        if kind == 0 and high < 0:
            out[i] = -((-high + half) >> right)
        else:
            out[i] = (high + half) >> right
