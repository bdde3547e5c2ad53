"""Scales found by a search, on rows: ONNX Runtime's k-quant, GPTQ's mse option, MLX's edge rule.

Exact twin: foldmark.exact.tools.searches, where each is explained.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.kernels.compiled import compiled
from foldmark.kernels.fold import QuantizedGroup
from foldmark.kernels.tools.blocks import Singles, quantize_rows_by

__all__ = [
    "quantize_gptq_mse_asymmetric",
    "quantize_gptq_mse_symmetric",
    "quantize_k_quant",
    "quantize_mlx",
]

Bytes = NDArray[np.uint8]


def quantize_k_quant(values: NDArray[Any]) -> QuantizedGroup:
    """Quantize rows by weighted least squares over 20 candidate scales; integer zero points.

    Exact twin: foldmark.exact.tools.searches.quantize_k_quant.
    """
    return quantize_rows_by(_k_quant, values, np.uint8)


def quantize_gptq_mse_asymmetric(values: NDArray[Any]) -> QuantizedGroup:
    """Quantize rows with ranges shrunk to the least sum of |error|^2.4, zero point free.

    Exact twin: foldmark.exact.tools.searches.quantize_gptq_mse_asymmetric.
    """
    return quantize_rows_by(partial(_gptq_mse, -1), values, np.uint8)


def quantize_gptq_mse_symmetric(values: NDArray[Any]) -> QuantizedGroup:
    """Quantize rows with ranges shrunk to the least sum of |error|^2.4, zero point 8.

    Exact twin: foldmark.exact.tools.searches.quantize_gptq_mse_symmetric.
    """
    return quantize_rows_by(partial(_gptq_mse, 8), values, np.uint8)


def quantize_mlx(values: NDArray[Any]) -> QuantizedGroup:
    """Quantize rows so that the end farther from zero, and nearly zero itself, are codes.

    Exact twin: foldmark.exact.tools.searches.quantize_mlx.
    """
    return quantize_rows_by(partial(_mlx, False), values, np.float32)


def quantize_mlx_metal(values: NDArray[Any]) -> QuantizedGroup:
    """Quantize rows as `quantize_mlx`, high ends from 0 on, ties away from zero.

    Exact twin: foldmark.exact.tools.searches.quantize_mlx_metal.
    """
    return quantize_rows_by(partial(_mlx, True), values, np.float32)


@compiled
def _held(number: float) -> float:
    """Round half to even and hold in 0..15; NaN is 0."""
    whole = 0.0 if np.isnan(number) else np.rint(number)
    return min(max(whole, 0.0), 15.0)


@compiled
def _pairwise(numbers: Singles) -> Any:
    """Return the sum in numpy's order: eight lanes up to 128 numbers, halves beyond."""
    count = numbers.size
    if count < 8:
        few = np.float32(0)
        for i in range(count):
            few = few + numbers[i]
        return few
    if count > 128:
        half = count // 2 - count // 2 % 8
        return _pairwise(numbers[:half]) + _pairwise(numbers[half:])
    lanes = np.zeros(8, np.float32)
    whole = count - count % 8
    for i in range(whole):
        lanes[i % 8] = lanes[i % 8] + numbers[i]
    left = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
    result = left + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))
    for i in range(whole, count):
        result = result + numbers[i]
    return result


@compiled
def _k_quant(rows: Singles, codes: Bytes, scales: Singles, zeros: Singles) -> None:
    count = rows.shape[1]
    weights, part, levels = (
        np.empty(count, np.float32),
        np.empty(count, np.float32),
        np.empty(count, np.float32),
    )
    for r in range(rows.shape[0]):
        x = rows[r]
        for i in range(count):
            part[i] = x[i] * x[i]
        average = np.float32(np.sqrt(_pairwise(part) / np.float32(count)))
        low, high = x[0], x[0]
        for i in range(count):
            weights[i] = average + abs(x[i])
            low, high = min(low, x[i]), max(high, x[i])
        sum_w = _pairwise(weights)
        for i in range(count):
            part[i] = weights[i] * x[i]
        sum_x = _pairwise(part)
        scale, minimum, best = np.float32(1), low, np.float32(np.inf)
        for step in range(-1, 20):
            factor = np.float32(15) if step < 0 else np.float32(-1 + 0.1 * step + 15)
            span = high - minimum
            inverse = factor / span if span != 0 else np.float32(1)
            for i in range(count):
                levels[i] = np.float32(_held(inverse * (x[i] - minimum)))
            if step < 0:
                slope, start = np.float32(1) / inverse, low
            else:
                for i in range(count):
                    part[i] = weights[i] * levels[i]
                sum_l = _pairwise(part)
                for i in range(count):
                    part[i] = (weights[i] * levels[i]) * levels[i]
                sum_l2 = _pairwise(part)
                for i in range(count):
                    part[i] = (weights[i] * levels[i]) * x[i]
                sum_xl = _pairwise(part)
                determinant = sum_w * sum_l2 - sum_l * sum_l
                slope = (sum_w * sum_xl - sum_x * sum_l) / determinant
                start = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
            for i in range(count):
                error = (slope * levels[i] + start) - x[i]
                part[i] = weights[i] * (error * error)
            error = _pairwise(part)
            if step < 0 or error < best:
                scale, minimum, best = slope, start, error
        zero = _held(-minimum / scale)
        for i in range(count):
            codes[r, i] = np.uint8(_held(np.float64(x[i]) / np.float64(scale) + np.float64(zero)))
        scales[r], zeros[r] = scale, zero


@compiled
def _gptq_mse(fixed: int, rows: Singles, codes: Bytes, scales: Singles, zeros: Singles) -> None:
    for r in range(rows.shape[0]):
        x = rows[r]
        low, high = np.float32(0), np.float32(0)
        for i in range(x.size):
            low, high = min(low, x[i]), max(high, x[i])
        if fixed >= 0:
            high = max(-low, high)
            low = -high if low < 0 else low
        if low == 0 and high == 0:
            low, high = np.float32(-1), np.float32(1)
        best = np.float64(np.inf)
        best_scale, best_zero = (high - low) / np.float32(15), np.float32(max(fixed, 0))
        for step in range(80):
            share = np.float32(1 - step / 100)
            shrunk_low, shrunk_high = share * low, share * high
            scale = (shrunk_high - shrunk_low) / np.float32(15)
            zero = np.float32(fixed) if fixed >= 0 else np.rint(-shrunk_low / scale)
            error = np.float32(0)
            for i in range(x.size):
                level = _held_after(x[i] / scale, zero)
                off = np.float64(abs(scale * (level - zero) - x[i]))
                error = error + np.float32(off ** np.float64(np.float32(2.4)))
            if error < best:
                best, best_scale, best_zero = np.float64(error), scale, zero
        for i in range(x.size):
            codes[r, i] = np.uint8(_held_after(x[i] / best_scale, best_zero))
        scales[r], zeros[r] = best_scale, best_zero


@compiled
def _held_after(number: np.float32, zero: np.float32) -> Any:
    """Round half to even, NaN to 0, add the zero point, and hold in 0..15."""
    whole = np.float32(0) if np.isnan(number) else np.rint(number)
    return min(max(whole + zero, np.float32(0)), np.float32(15))


@compiled
def _whole(number: np.float32, away: bool) -> Any:
    """Round to a whole number, ties to even or away from zero; NaN is 0."""
    if np.isnan(number):
        return np.float32(0)
    if not away:
        return np.rint(number)
    cut = np.trunc(number)
    half = np.float32(0.5)
    up = np.float32(1) if number - cut >= half else np.float32(0)
    return cut - np.float32(1) if number - cut <= -half else cut + up


@compiled
def _mlx(metal: bool, rows: Singles, codes: Bytes, scales: Singles, zeros: Singles) -> None:
    for r in range(rows.shape[0]):
        x = rows[r]
        low, high = x[0], x[0]
        for i in range(x.size):
            low, high = min(low, x[i]), max(high, x[i])
        high = max(high, np.float32(0)) if metal else high
        scale = max((high - low) / np.float32(15), np.float32(1e-7))
        edge = low
        if not abs(low) > abs(high):
            scale, edge = -scale, high
        steps = _whole(edge / scale, metal)
        bias = np.float32(0)
        if steps != 0:
            scale, bias = edge / steps, edge
        for i in range(x.size):
            code = _whole((x[i] - bias) / scale, metal)
            codes[r, i] = np.uint8(min(max(code, np.float32(0)), np.float32(15)))
        scales[r], zeros[r] = scale, bias
