"""Half-quadratic quantization on rows: a real zero point moved by proximal steps.

Exact twin: foldmark.exact.tools.half_quadratic, where it is explained.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.rounding import Rounding
from foldmark.exact.tools.half_quadratic import HalfQuadratic
from foldmark.kernels.compiled import compiled
from foldmark.kernels.fold import QuantizedGroup
from foldmark.kernels.tools.blocks import Singles, quantize_rows_by

__all__ = ["quantize_half_quadratic"]


def quantize_half_quadratic(values: NDArray[Any], variant: HalfQuadratic) -> QuantizedGroup:
    """Return codes 0..15, the stored scales 1 / s and the real zeros z of float32 rows.

    Exact twin: foldmark.exact.tools.half_quadratic.quantize_half_quadratic.
    """
    loop = partial(
        _half_quadratic,
        np.float32(variant.tiny_span),
        variant.zero_rounded == Rounding.HALF_EVEN,
        variant.steps,
        np.float32(variant.offset),
        variant.growth,
        variant.first_error,
    )
    return quantize_rows_by(loop, values, np.float32)


@compiled
def _half_quadratic(
    tiny_span: np.float32,
    zero_rounded: bool,
    steps: int,
    offset: np.float32,
    growth: float,
    first_error: float,
    rows: Singles,
    codes: NDArray[np.uint8],
    scales: Singles,
    zeros: Singles,
) -> None:
    count = np.float32(rows.shape[1])
    for r in range(rows.shape[0]):
        x = rows[r]
        low, high = x[0], x[0]
        for i in range(x.size):
            low, high = min(low, x[i]), max(high, x[i])
        span = high - low
        inverse = np.float32(1)
        if not span <= tiny_span:
            inverse = min((np.float32(1) / span) * np.float32(15), np.float32(2e4))
        zero = -low * inverse
        if zero_rounded:
            zero = np.rint(zero)
        beta, best = 10.0, np.float64(first_error)
        for _ in range(steps):
            moved, lost = np.float32(0), np.float32(0)
            pull = np.float32(1.0 / beta)
            for i in range(x.size):
                level = _level(x[i], inverse, zero)
                error = x[i] - (level - zero) / inverse
                shrunk = _shrink(error, pull, offset)
                moved = moved + (level - (x[i] - shrunk) * inverse)
                lost = lost + abs(error)
            zero = moved / count
            beta *= growth
            mean = lost / count
            if mean >= best:
                break
            best = np.float64(mean)
        for i in range(x.size):
            codes[r, i] = np.uint8(_level(x[i], inverse, zero))
        scales[r], zeros[r] = np.float32(1) / inverse, zero


@compiled
def _level(number: np.float32, inverse: np.float32, zero: np.float32) -> Any:
    return min(max(np.rint(number * inverse + zero), np.float32(0)), np.float32(15))


@compiled
def _shrink(error: np.float32, pull: np.float32, offset: np.float32) -> Any:
    size = abs(error)
    shifted = size + offset
    if shifted == 0:
        return np.float32(0)
    power = np.float32(np.float64(shifted) ** np.float64(np.float32(0.7 - 1)))
    return np.float32(np.copysign(max(size - pull * power, np.float32(0)), error))
