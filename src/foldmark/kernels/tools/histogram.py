"""PyTorch's HistogramObserver: the range with the least modelled squared error.

Exact twin: foldmark.exact.tools.histogram, where it is explained. Counting and modelling are
compiled; the search itself is a few thousand comparisons.
"""

from dataclasses import dataclass
from math import fsum, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.tools.pytorch import TORCH_OBSERVER_UINT8
from foldmark.kernels.affine import codes_of
from foldmark.kernels.compiled import compiled
from foldmark.kernels.floats import require_finite
from foldmark.kernels.fold import QuantizedGroup
from foldmark.kernels.grid import choose_grid
from foldmark.kernels.tools.blocks import Singles

__all__ = ["quantize_by_histogram", "search_range"]

_BINS = 2048
_DESTINATIONS = 256
_QUANTILE_STEP = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class _Histogram:
    low: np.float32
    high: np.float32
    counts: Singles
    cumulative: Singles


def quantize_by_histogram(values: NDArray[Any]) -> QuantizedGroup:
    """Quantize an array to uint8 with the range that the histogram search finds.

    Raises NonFiniteValue naming the first index that is not finite.
    Exact twin: foldmark.exact.tools.histogram.quantize_by_histogram.
    """
    ends = np.array(search_range(values)).astype(values.dtype)
    grid = choose_grid(ends, TORCH_OBSERVER_UINT8)
    codes = codes_of(values.reshape(-1), grid, TORCH_OBSERVER_UINT8.affine)
    return QuantizedGroup(codes.reshape(values.shape), grid.scale, grid.zero_point)


def search_range(values: NDArray[Any]) -> tuple[float, float]:
    """Return the low and high end that the search settles on, in float32.

    Raises NonFiniteValue naming the first index that is not finite.
    Exact twin: foldmark.exact.tools.histogram.search_range.
    """
    require_finite(values)
    histogram = _count(values.reshape(-1).astype(np.float32, copy=False))
    first, last = _search(histogram)
    width = (histogram.high - histogram.low) / np.float32(_BINS)
    low = histogram.low + width * np.float32(first)
    return float(low), float(histogram.low + width * np.float32(last + 1))


def _count(values: Singles) -> _Histogram:
    low, high = values.min(), values.max()
    left, right = (low, high) if low < high else (low - np.float32(1), high + np.float32(1))
    counts = np.zeros(_BINS, np.float32)
    _fill(values, left, right, counts)
    return _Histogram(low, high, counts, np.cumsum(counts, dtype=np.float32))


def _search(histogram: _Histogram) -> tuple[int, int]:
    """Return the first and last bin that are kept."""
    cumulative = histogram.cumulative.tolist()
    everything = cumulative[-1]
    below, above = 0.0, 1.0
    first, last, least = 0, _BINS - 1, inf
    while below < above:
        next_below, next_above = below + _QUANTILE_STEP, above - _QUANTILE_STEP
        left, right = first, last
        bottom, top = np.float32(next_below * everything), np.float32(next_above * everything)
        while left < last and cumulative[left] < bottom:
            left += 1
        while right > first and cumulative[right] > top:
            right -= 1
        if left - first > last - right:
            candidate, below = (left, last), next_below
        else:
            candidate, above = (first, right), next_above
        if candidate == (first, last):
            continue
        error = _modelled_error(histogram, *candidate)
        if error > least:
            break
        least, (first, last) = error, candidate
    return first, last


def _modelled_error(histogram: _Histogram, first: int, last: int) -> float:
    """Return the squared error if the bins first..last were quantized to 256 even levels."""
    width = (float(histogram.high) - float(histogram.low)) / _BINS
    destination = width * (last - first + 1) / _DESTINATIONS
    if destination == 0:
        return 0.0
    errors = np.zeros(_BINS, np.float32)
    step, half = np.float32(destination), np.float32(destination / 2)
    _bin_errors(histogram.counts, first, np.float32(width), step, half, errors)
    return float(np.float32(fsum(errors.tolist())))


@compiled
def _fill(values: Singles, left: np.float32, right: np.float32, counts: Singles) -> None:
    bins, span = np.float32(counts.size), right - left
    for i in range(values.size):
        place = int(((values[i] - left) * bins) / span)
        counts[min(place, counts.size - 1)] += np.float32(1)


@compiled
def _bin_errors(
    counts: Singles,
    first: int,
    width: np.float32,
    step: np.float32,
    half: np.float32,
    errors: Singles,
) -> None:
    for i in range(counts.size):
        if counts[i] == 0:
            continue
        begin = np.float32(i - first) * width
        end = begin + width
        begin_level, end_level = _level(begin, step), _level(end, step)
        density = counts[i] / width
        begin_centre = (begin_level + np.float32(0.5)) * step
        error = _spread(begin - begin_centre, half, density)
        between = (end_level - begin_level) - np.float32(1)
        error = error + between * _spread(-half, half, density)
        errors[i] = error + _spread(-half, end - (end_level * step + half), density)


@compiled
def _level(position: np.float32, step: np.float32) -> Any:
    # The quotient of two float32 in float64 has the floor of the exact one: it can't round up to
    # a whole number that the exact quotient stays below.
    level = np.floor(np.float64(position) / np.float64(step))
    return np.float32(min(max(level, 0.0), 255.0))


@compiled
def _spread(begin: np.float32, end: np.float32, density: np.float32) -> Any:
    cubes = (end * end) * end - (begin * begin) * begin
    return density * (cubes / np.float32(3))
