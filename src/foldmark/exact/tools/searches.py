"""Scales found by a search: ONNX Runtime's k-quant, GPTQ's mse option, MLX's edge rule.

Each returns codes of 4 bits; float32, one rounding an operation.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import inf, isinf, isnan
from typing import Final

from foldmark.exact import arithmetic
from foldmark.exact.catalog import FLOAT64, UINT4
from foldmark.exact.group import QuantizedGroup
from foldmark.exact.number import FloatFormat
from foldmark.exact.rounding import Rounding, round_to_int
from foldmark.exact.single import (
    add,
    divide,
    multiply,
    numpy_sum,
    single,
    square_root,
    subtract,
    total,
)
from foldmark.exact.tools.entry import Entry, Procedure

__all__ = [
    "ENTRIES",
    "quantize_gptq_mse_asymmetric",
    "quantize_gptq_mse_symmetric",
    "quantize_k_quant",
    "quantize_mlx",
    "quantize_mlx_metal",
]


def quantize_k_quant(values: Sequence[float], data: FloatFormat) -> QuantizedGroup:
    """Quantize a group by weighted least squares over 20 candidate scales.

    Weights sqrt(mean x^2) + |x|; zero is not forced into the range, and the determinant of the
    regression is not guarded: a candidate of NaN never wins. The codes are then computed afresh in
    float64 from the winning scale and its rounded zero point.
    """
    x = [single(v) for v in values]
    mean_square = divide(numpy_sum([multiply(v, v) for v in x]), float(len(x)))
    average = square_root(mean_square)
    weights = [add(average, abs(v)) for v in x]
    scale, low = _best_line(x, weights)
    zero_point = UINT4.clip(_even(divide(-low, scale)))
    codes = (
        _even(arithmetic.add(arithmetic.divide(v, scale, FLOAT64), float(zero_point), FLOAT64))
        for v in x
    )
    return QuantizedGroup(tuple(UINT4.clip(q) for q in codes), data.round(scale), zero_point)


def _best_line(x: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """Return the scale and minimum with the least weighted squared error.

    Each candidate starts from the minimum of the best line so far, not from the least value.
    """
    low, high = min(x), max(x)
    sum_w = numpy_sum(weights)
    sum_x = numpy_sum([multiply(w, v) for w, v in zip(weights, x, strict=True)])
    inverse, codes = _candidate(x, 15.0, low, high)
    best = (divide(1.0, inverse), low)
    best_error = _line_error(best, codes, x, weights)
    for step in range(20):
        _, codes = _candidate(x, single(-1 + 0.1 * step + 15), best[1], high)
        weighted = [multiply(w, q) for w, q in zip(weights, codes, strict=True)]
        sum_l = numpy_sum(weighted)
        sum_l2 = numpy_sum([multiply(w, q) for w, q in zip(weighted, codes, strict=True)])
        sum_xl = numpy_sum([multiply(w, v) for w, v in zip(weighted, x, strict=True)])
        determinant = subtract(multiply(sum_w, sum_l2), multiply(sum_l, sum_l))
        slope = subtract(multiply(sum_w, sum_xl), multiply(sum_x, sum_l))
        start = subtract(multiply(sum_l2, sum_x), multiply(sum_l, sum_xl))
        line = (divide(slope, determinant), divide(start, determinant))
        error = _line_error(line, codes, x, weights)
        if error < best_error:
            best, best_error = line, error
    return best


def _candidate(
    x: Sequence[float], factor: float, low: float, high: float
) -> tuple[float, list[float]]:
    """Return an inverse scale, factor / (high - low), and the codes 0..15 that it gives."""
    span = subtract(high, low)
    inverse = divide(factor, span) if span else 1.0
    return inverse, [float(UINT4.clip(_even(multiply(inverse, subtract(v, low))))) for v in x]


def _line_error(
    line: tuple[float, float],
    codes: Sequence[float],
    x: Sequence[float],
    weights: Sequence[float],
) -> float:
    scale, minimum = line
    errors = [subtract(add(multiply(scale, q), minimum), v) for q, v in zip(codes, x, strict=True)]
    return numpy_sum([multiply(w, multiply(e, e)) for w, e in zip(weights, errors, strict=True)])


def quantize_gptq_mse_asymmetric(values: Sequence[float], data: FloatFormat) -> QuantizedGroup:
    """Quantize a group with the range shrunk to the least sum of |error|^2.4, zero point free.

    Both ends are multiplied by 1 - i / 100 for i = 0..79; a strictly smaller error wins.
    """
    low, high = min(0.0, *values), max(0.0, *values)
    if low == high == 0:
        low, high = -1.0, 1.0
    return _gptq_mse(values, low, high, None, data)


def quantize_gptq_mse_symmetric(values: Sequence[float], data: FloatFormat) -> QuantizedGroup:
    """Quantize a group with the range shrunk to the least sum of |error|^2.4, zero point 8.

    A row without a negative value keeps its low end at 0.
    """
    low, high = min(0.0, *values), max(0.0, *values)
    high = max(-low, high)
    low = -high if low < 0 else low
    if low == high == 0:
        low, high = -1.0, 1.0
    return _gptq_mse(values, low, high, 8, data)


def _gptq_mse(
    values: Sequence[float], low: float, high: float, fixed: int | None, data: FloatFormat
) -> QuantizedGroup:
    best_error, best_scale, best_zero = inf, divide(subtract(high, low), 15.0), fixed or 0
    for step in range(80):
        share = single(1 - step / 100)
        shrunk_low, shrunk_high = multiply(share, low), multiply(share, high)
        scale = divide(subtract(shrunk_high, shrunk_low), 15.0)
        zero = fixed if fixed is not None else _even(divide(-shrunk_low, scale))
        codes = _gptq_codes(values, scale, zero)
        restored = (multiply(scale, float(q - zero)) for q in codes)
        errors = (abs(subtract(r, x)) for r, x in zip(restored, values, strict=True))
        error = total(single(e ** single(2.4)) for e in errors)
        if error < best_error:
            best_error, best_scale, best_zero = error, scale, zero
    codes = _gptq_codes(values, best_scale, best_zero)
    return QuantizedGroup(tuple(codes), data.round(best_scale), best_zero)


def _gptq_codes(values: Sequence[float], scale: float, zero: int) -> list[int]:
    return [UINT4.clip(_even(divide(x, scale)) + zero) for x in values]


def quantize_mlx(values: Sequence[float], data: FloatFormat) -> QuantizedGroup:
    """Quantize a group so that the end farther from zero, and nearly zero itself, are codes.

    s = max((high - low) / 15, 1e-7), negated unless |low| > |high|; edge is the farther end and
    q0 = round(edge / s); unless q0 is 0, s = edge / q0. The stored bias is the edge (0 for q0 = 0),
    and value = code * s + bias.
    """
    return _mlx(min(values), max(values), Rounding.HALF_EVEN, values, data)


def quantize_mlx_metal(values: Sequence[float], data: FloatFormat) -> QuantizedGroup:
    """Quantize a group as `quantize_mlx`, with two choices of the Metal kernel.

    The high end starts at 0, so that a group of negative numbers reaches up to it; ties are rounded
    away from zero.
    """
    return _mlx(min(values), max(0.0, *values), Rounding.HALF_AWAY, values, data)


def _mlx(
    low: float, high: float, rounding: Rounding, values: Sequence[float], data: FloatFormat
) -> QuantizedGroup:
    scale = max(divide(subtract(high, low), 15.0), single(1e-7))
    low_is_farther = abs(low) > abs(high)
    scale, edge = (scale, low) if low_is_farther else (-scale, high)
    steps = _whole(divide(edge, scale), rounding)
    bias = 0.0
    if steps != 0:
        scale, bias = divide(edge, float(steps)), edge
    codes = (UINT4.clip(_whole(divide(subtract(x, bias), scale), rounding)) for x in values)
    return QuantizedGroup(tuple(codes), data.round(scale), data.round(bias))


def _even(number: float) -> int:
    return _whole(number, Rounding.HALF_EVEN)


def _whole(number: float, rounding: Rounding) -> int:
    """Round to an integer; infinity lies beyond every code, NaN is 0."""
    if isnan(number):
        return 0
    if isinf(number):
        return 1 << 32 if number > 0 else -(1 << 32)
    return round_to_int(Fraction(number), rounding)


_GPTQ = "quant.py of IST-DASLab/gptq: Quantizer.find_params, mse=True"
_GPTQ_VERSION = "IST-DASLab/gptq 2d65066e (2023-07-11)"

ONNXRUNTIME_K_QUANT_4: Final = Procedure(
    name="ONNXRUNTIME_K_QUANT_4",
    codes=UINT4,
    quantize=quantize_k_quant,
    description="the best of 21 weighted least-squares lines, its zero point then rounded",
    source="onnxruntime/quantization/neural_compressor/weight_only.py: quant_tensor_k_quant_cpu",
    versions="onnxruntime 1.32.0",
)
GPTQ_UINT4_ASYMMETRIC_MSE: Final = Procedure(
    name="GPTQ_UINT4_ASYMMETRIC_MSE",
    codes=UINT4,
    quantize=quantize_gptq_mse_asymmetric,
    description="the range shrunk by up to 79 % to the least sum of |error|^2.4",
    source=_GPTQ,
    versions=_GPTQ_VERSION,
)
GPTQ_UINT4_SYMMETRIC_MSE: Final = Procedure(
    name="GPTQ_UINT4_SYMMETRIC_MSE",
    codes=UINT4,
    quantize=quantize_gptq_mse_symmetric,
    description="the mirrored range shrunk by up to 79 % to the least sum of |error|^2.4",
    source=_GPTQ,
    versions=_GPTQ_VERSION,
)
MLX_AFFINE_4: Final = Procedure(
    name="MLX_AFFINE_4",
    codes=UINT4,
    quantize=quantize_mlx,
    description="the farther end is exactly a code, and zero nearly is; scales may be negative",
    source="mlx/backend/cpu/quantized.cpp: quantize",
    versions="mlx 0.32.4, CPU",
)
MLX_METAL_AFFINE_4: Final = Procedure(
    name="MLX_METAL_AFFINE_4",
    codes=UINT4,
    quantize=quantize_mlx_metal,
    description="as MLX_AFFINE_4, ties away from zero, a group of negative numbers up to zero",
    source="mlx/backend/metal/kernels/quantized.h: affine_quantize",
    versions="mlx 846d1762, Metal, read and not run",
)

ENTRIES: Final[tuple[Entry, ...]] = (
    ONNXRUNTIME_K_QUANT_4,
    GPTQ_UINT4_ASYMMETRIC_MSE,
    GPTQ_UINT4_SYMMETRIC_MSE,
    MLX_AFFINE_4,
    MLX_METAL_AFFINE_4,
)
