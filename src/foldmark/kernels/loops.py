"""The hot loops over pieces of values and codes; `codes` and `numbers` compose them.

All of them walk rows cut into segments, as drawn in `blocks`: `where` gives for every row the row
of the parameter table, `segment` the elements that share one parameter, 1 for one each.

    values, whole, codes, out  (rows, columns)
    where                      (rows,)
    step, offset, ...          (table rows, segments)
"""

from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.rounding import Rounding
from foldmark.kernels.compiled import compiled, fused
from foldmark.kernels.floats import Floats

__all__ = [
    "add",
    "divide",
    "divide_even",
    "multiply",
    "multiply_add",
    "multiply_even",
    "round_in_place",
    "store",
    "unfold",
]

Codes = NDArray[np.integer[Any]]


def round_in_place(values: Floats, rounding: Rounding) -> None:
    """Round a flat array of float32 or float64 to whole numbers where it stands."""
    match rounding:
        case Rounding.HALF_EVEN:
            np.rint(values, out=values)
        case Rounding.TOWARD_ZERO:
            np.trunc(values, out=values)
        case Rounding.FLOOR:
            np.floor(values, out=values)
        case Rounding.CEILING:
            np.ceil(values, out=values)
        case Rounding.HALF_AWAY:
            _half_away(values)
        case Rounding.HALF_UP:
            _half_up(values)
        case Rounding.HALF_DOWN:
            _half_down(values)
        case _:  # pragma: no cover
            assert_never(rounding)


# What truncation takes away is exact in the dtype of the value, and so is its comparison with
# one half; adding one half first, as is often written, would itself round.


@compiled
def _half_away(values: Floats) -> None:
    for i in range(values.size):
        whole = np.trunc(values[i])
        rest = values[i] - whole
        up = whole + values.dtype.type(1) if rest >= values.dtype.type(0.5) else whole
        values[i] = up - values.dtype.type(1) if rest <= values.dtype.type(-0.5) else up


@compiled
def _half_up(values: Floats) -> None:
    for i in range(values.size):
        whole = np.trunc(values[i])
        rest = values[i] - whole
        up = whole + values.dtype.type(1) if rest >= values.dtype.type(0.5) else whole
        values[i] = up - values.dtype.type(1) if rest < values.dtype.type(-0.5) else up


@compiled
def _half_down(values: Floats) -> None:
    for i in range(values.size):
        whole = np.trunc(values[i])
        rest = values[i] - whole
        up = whole + values.dtype.type(1) if rest > values.dtype.type(0.5) else whole
        values[i] = up - values.dtype.type(1) if rest <= values.dtype.type(-0.5) else up


@compiled
def divide(
    values: Floats, where: NDArray[np.int64], step: Floats, segment: int, out: Floats
) -> None:
    """Write values / step."""
    for r in range(values.shape[0]):
        source, target, steps = values[r], out[r], step[where[r]]
        if segment == 1:
            for i in range(source.size):
                target[i] = source[i] / steps[i]
            continue
        for s in range(steps.size):
            begin, end, divisor = s * segment, min(s * segment + segment, source.size), steps[s]
            x, y = source[begin:end], target[begin:end]
            for i in range(x.size):
                y[i] = x[i] / divisor


@compiled
def multiply(
    values: Floats, where: NDArray[np.int64], step: Floats, segment: int, out: Floats
) -> None:
    """Write values * step."""
    for r in range(values.shape[0]):
        source, target, steps = values[r], out[r], step[where[r]]
        if segment == 1:
            for i in range(source.size):
                target[i] = source[i] * steps[i]
            continue
        for s in range(steps.size):
            begin, end, factor = s * segment, min(s * segment + segment, source.size), steps[s]
            x, y = source[begin:end], target[begin:end]
            for i in range(x.size):
                y[i] = x[i] * factor


@compiled
def add(
    values: Floats, where: NDArray[np.int64], offset: Floats, segment: int, out: Floats
) -> None:
    """Write values + offset."""
    for r in range(values.shape[0]):
        source, target, offsets = values[r], out[r], offset[where[r]]
        if segment == 1:
            for i in range(source.size):
                target[i] = source[i] + offsets[i]
            continue
        for s in range(offsets.size):
            begin, end, addend = s * segment, min(s * segment + segment, source.size), offsets[s]
            x, y = source[begin:end], target[begin:end]
            for i in range(x.size):
                y[i] = x[i] + addend


@compiled
def multiply_add(
    values: Floats,
    where: NDArray[np.int64],
    step: Floats,
    offset: Floats,
    segment: int,
    out: Floats,
) -> None:
    """Write values * step + offset, rounded once."""
    for r in range(values.shape[0]):
        source, target, steps, offsets = values[r], out[r], step[where[r]], offset[where[r]]
        for s in range(steps.size):
            begin, end = s * segment, min(s * segment + segment, source.size)
            x, y = source[begin:end], target[begin:end]
            for i in range(x.size):
                y[i] = fused(x[i], steps[s], offsets[s])


@compiled
def store(
    whole: Floats,
    where: NDArray[np.int64],
    offset: Floats,
    segment: int,
    low: float,
    high: float,
    out: Codes,
) -> None:
    """Write whole + offset as codes, held in low..high; all three of one float dtype."""
    for r in range(whole.shape[0]):
        source, target, offsets = whole[r], out[r], offset[where[r]]
        if segment == 1:
            for i in range(source.size):
                code = source[i] + offsets[i]
                code = code if code > low else low
                target[i] = np.int64(code if code < high else high)
            continue
        for s in range(offsets.size):
            begin, end, addend = s * segment, min(s * segment + segment, source.size), offsets[s]
            x, y = source[begin:end], target[begin:end]
            for i in range(x.size):
                code = x[i] + addend
                code = code if code > low else low
                y[i] = np.int64(code if code < high else high)


@compiled
def divide_even(
    values: NDArray[np.float32],
    where: NDArray[np.int64],
    step: NDArray[np.float32],
    offset: NDArray[np.float32],
    segment: int,
    low: np.float32,
    high: np.float32,
    out: Codes,
) -> None:
    """Write the codes round(values / step) + offset, ties to even, held in low..high."""
    for r in range(values.shape[0]):
        source, target, steps, offsets = values[r], out[r], step[where[r]], offset[where[r]]
        if segment == 1:
            for i in range(source.size):
                code = np.rint(source[i] / steps[i]) + offsets[i]
                code = code if code > low else low
                target[i] = np.int32(code if code < high else high)
            continue
        for s in range(steps.size):
            begin, end = s * segment, min(s * segment + segment, source.size)
            x, y, divisor, addend = source[begin:end], target[begin:end], steps[s], offsets[s]
            for i in range(x.size):
                code = np.rint(x[i] / divisor) + addend
                code = code if code > low else low
                y[i] = np.int32(code if code < high else high)


@compiled
def multiply_even(
    values: NDArray[np.float32],
    where: NDArray[np.int64],
    step: NDArray[np.float32],
    offset: NDArray[np.float32],
    segment: int,
    low: np.float32,
    high: np.float32,
    out: Codes,
) -> None:
    """Write the codes round(values * step) + offset, ties to even, held in low..high."""
    for r in range(values.shape[0]):
        source, target, steps, offsets = values[r], out[r], step[where[r]], offset[where[r]]
        if segment == 1:
            for i in range(source.size):
                code = np.rint(source[i] * steps[i]) + offsets[i]
                code = code if code > low else low
                target[i] = np.int32(code if code < high else high)
            continue
        for s in range(steps.size):
            begin, end = s * segment, min(s * segment + segment, source.size)
            x, y, factor, addend = source[begin:end], target[begin:end], steps[s], offsets[s]
            for i in range(x.size):
                code = np.rint(x[i] * factor) + addend
                code = code if code > low else low
                y[i] = np.int32(code if code < high else high)


@compiled
def unfold(
    codes: Codes,
    where: NDArray[np.int64],
    scale: NDArray[np.float32],
    zero_point: NDArray[np.float32],
    segment: int,
    out: NDArray[np.float32],
) -> None:
    """Write (codes - zero_point) * scale."""
    for r in range(codes.shape[0]):
        source, target, scales, zeros = codes[r], out[r], scale[where[r]], zero_point[where[r]]
        if segment == 1:
            for i in range(source.size):
                target[i] = (np.float32(source[i]) - zeros[i]) * scales[i]
            continue
        for s in range(scales.size):
            begin, end = s * segment, min(s * segment + segment, source.size)
            x, y, factor, zero = source[begin:end], target[begin:end], scales[s], zeros[s]
            for i in range(x.size):
                y[i] = (np.float32(x[i]) - zero) * factor
