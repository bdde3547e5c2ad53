"""PyTorch's HistogramObserver: the range with the least modelled squared error.

The values are counted in 2048 bins. Starting from all of them, one end bin after the other is
given up, in quantile steps of 1e-5, whichever end skips more bins, until the modelled error of 256
even destination bins grows. float32 where torch has tensors, float64 where it has numbers.

The error's sum over bins is taken exactly here; torch's order depends on the CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor, inf
from typing import Final

from foldmark.errors import NonFiniteValue
from foldmark.exact.affine import codes_of
from foldmark.exact.catalog import UINT8
from foldmark.exact.grid import choose_grid
from foldmark.exact.group import QuantizedGroup
from foldmark.exact.number import FloatFormat
from foldmark.exact.single import add, divide, multiply, single, subtract
from foldmark.exact.tools.entry import Entry, Procedure
from foldmark.exact.tools.pytorch import TORCH_OBSERVER_UINT8

__all__ = ["ENTRIES", "quantize_by_histogram", "search_range"]

_BINS = 2048
_DESTINATIONS = 256
_QUANTILE_STEP = 1e-5


@dataclass(frozen=True, slots=True)
class _Histogram:
    """Counts of even bins between two float32 ends, and their float32 running sums."""

    low: float
    high: float
    counts: tuple[float, ...]
    cumulative: tuple[float, ...]


def quantize_by_histogram(values: Sequence[float], data: FloatFormat) -> QuantizedGroup:
    """Quantize a group to uint8 with the range that the histogram search finds.

    Raises NonFiniteValue naming the first index that is not finite.
    """
    grid = choose_grid(search_range(values), TORCH_OBSERVER_UINT8, data)
    codes = codes_of(values, grid, TORCH_OBSERVER_UINT8.affine, data)
    return QuantizedGroup(tuple(codes), grid.scale, grid.zero_point)


def search_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the low and high end that the search settles on, in float32.

    Raises NonFiniteValue naming the first index that is not finite.
    """
    for index, value in enumerate(values):
        if not -inf < value < inf:
            raise NonFiniteValue("not finite", where=f"index {index}", got=str(value))
    histogram = _count(values)
    first, last = _search(histogram)
    width = divide(subtract(histogram.high, histogram.low), float(_BINS))
    return (
        add(histogram.low, multiply(width, float(first))),
        add(histogram.low, multiply(width, float(last + 1))),
    )


def _count(values: Sequence[float]) -> _Histogram:
    low, high = min(values), max(values)
    left, right = (low, high) if low < high else (subtract(low, 1.0), add(high, 1.0))
    counts = [0.0] * _BINS
    for value in values:
        place = divide(multiply(subtract(value, left), float(_BINS)), subtract(right, left))
        counts[min(int(place), _BINS - 1)] += 1.0
    cumulative, so_far = [], 0.0
    for count in counts:
        so_far = add(so_far, count)
        cumulative.append(so_far)
    return _Histogram(low, high, tuple(counts), tuple(cumulative))


def _search(histogram: _Histogram) -> tuple[int, int]:
    """Return the first and last bin that are kept."""
    everything = histogram.cumulative[-1]
    below, above = 0.0, 1.0
    first, last, least = 0, _BINS - 1, inf
    while below < above:
        next_below, next_above = below + _QUANTILE_STEP, above - _QUANTILE_STEP
        left, right = first, last
        while left < last and histogram.cumulative[left] < single(next_below * everything):
            left += 1
        while right > first and histogram.cumulative[right] > single(next_above * everything):
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
    width = (histogram.high - histogram.low) / _BINS
    destination = width * (last - first + 1) / _DESTINATIONS
    if destination == 0:
        return 0.0
    terms = (
        Fraction(_bin_error(index - first, count, width, destination))
        for index, count in enumerate(histogram.counts)
        if count
    )
    return single(float(sum(terms, Fraction(0))))


def _bin_error(index: int, count: float, width: float, destination: float) -> float:
    """Return the error of one source bin, its values spread evenly over it."""
    begin = multiply(float(index), single(width))
    end = add(begin, single(width))
    step, half = single(destination), single(destination / 2)
    begin_level, end_level = _level(begin, step), _level(end, step)
    begin_centre = multiply(add(begin_level, 0.5), step)
    end_centre = add(multiply(end_level, step), half)
    density = divide(count, single(width))
    error = _spread(subtract(begin, begin_centre), half, density)
    between = subtract(subtract(end_level, begin_level), 1.0)
    error = add(error, multiply(between, _spread(-half, half, density)))
    return add(error, _spread(-half, subtract(end, end_centre), density))


def _level(position: float, step: float) -> float:
    return float(min(max(floor(Fraction(position) / Fraction(step)), 0), _DESTINATIONS - 1))


def _spread(begin: float, end: float, density: float) -> float:
    """Return density * (end^3 - begin^3) / 3."""
    cubes = subtract(_cube(end), _cube(begin))
    return multiply(density, divide(cubes, 3.0))


def _cube(number: float) -> float:
    return multiply(multiply(number, number), number)


TORCH_HISTOGRAM_UINT8: Final = Procedure(
    name="TORCH_HISTOGRAM_UINT8",
    codes=UINT8,
    quantize=quantize_by_histogram,
    description="the range with the least modelled squared error over 2048 bins",
    source="torch/ao/quantization/observer.py: HistogramObserver; codes by quantize_per_tensor",
    versions="torch 2.13.0, one batch",
)

ENTRIES: Final[tuple[Entry, ...]] = (TORCH_HISTOGRAM_UINT8,)
