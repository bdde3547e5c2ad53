"""A histogram that grows by merging bins, so that it never depends on order or batch size.

Bins are [i w, (i + 1) w) with w a power of two: grids of any two widths nest. When the values
outgrow the bins, w doubles and neighbours are added, which loses nothing that the wider grid
could have told. The result is a function of the set of values alone.
"""

from dataclasses import dataclass, field
from math import floor, frexp, ldexp

import numpy as np
from numpy.typing import NDArray

from foldmark.kernels.cold import BUDGET
from foldmark.kernels.compiled import compiled, read_only

__all__ = ["MOST_BINS", "Histogram"]

MOST_BINS = 4096
_SMALLEST_EXPONENT = -140
_AT_ONCE = 1 << 16  # values that numpy places at once, within the cache


@dataclass
class Histogram:
    """Counts of values on a grid of width 2**exponent.

    Attributes:
        exponent: of the width.
        first: index i of the first bin, which starts at i * width.
        counts: (bins,)  int64, at most 4096 bins.
        zeros: how many of the values are exactly zero; they lose nothing by quantization.
        low, high: the smallest and the largest value.
    """

    exponent: int = _SMALLEST_EXPONENT
    first: int = 0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    zeros: int = 0
    low: float = np.inf
    high: float = -np.inf

    @property
    def width(self) -> float:
        """Width of a bin, in the unit of the values."""
        return ldexp(1.0, self.exponent)

    @property
    def total(self) -> int:
        """How many values were counted."""
        return int(self.counts.sum())

    @property
    def edges(self) -> NDArray[np.float64]:
        """Edges of the bins, (bins + 1,), in the unit of the values."""
        places = self.first + np.arange(len(self.counts) + 1, dtype=np.float64)
        return places * self.width

    @property
    def centers(self) -> NDArray[np.float64]:
        """Middles of the bins, (bins,), in the unit of the values."""
        places = self.first + np.arange(len(self.counts), dtype=np.float64)
        return (places + 0.5) * self.width

    def add(self, values: NDArray[np.floating], low: float, high: float) -> None:
        """Count values, whose smallest and largest are `low` and `high`, both finite."""
        if not values.size:
            return
        flat = np.ascontiguousarray(values, np.float32).ravel()
        self._cover(low, high)
        if BUDGET.take(flat.size):
            self._count_plainly(flat)
        else:
            inverse = np.float64(1 / self.width)
            self.zeros += _count(read_only(flat), inverse, self.first, self.counts)

    def _count_plainly(self, flat: NDArray[np.float32]) -> None:
        """Count by numpy: sooner done than a compiled loop is loaded."""
        self.zeros += int(flat.size - np.count_nonzero(flat))
        bins = len(self.counts)
        for start in range(0, flat.size, _AT_ONCE):
            places = np.floor(flat[start : start + _AT_ONCE] * np.float64(1 / self.width))
            places -= self.first
            self.counts += np.bincount(places.astype(np.intp), minlength=bins)

    def merge(self, other: "Histogram") -> None:
        """Add another histogram's counts; the result is that of all values together."""
        if not len(other.counts):
            return
        self._cover(other.low, other.high)
        places = (other.first + np.arange(len(other.counts))) >> (self.exponent - other.exponent)
        np.add.at(self.counts, places - self.first, other.counts)
        self.zeros += other.zeros

    def _cover(self, low: float, high: float) -> None:
        """Widen and extend the grid until it holds both ends in at most MOST_BINS bins."""
        self.low, self.high = min(self.low, low), max(self.high, high)
        low, high = self.low, self.high
        exponent = max(self.exponent, _exponent_for(low, high))
        first, last = floor(ldexp(low, -exponent)), floor(ldexp(high, -exponent))
        counts = np.zeros(last - first + 1, np.int64)
        places = (self.first + np.arange(len(self.counts))) >> (exponent - self.exponent)
        np.add.at(counts, places - first, self.counts)
        self.exponent, self.first, self.counts = exponent, first, counts


def _exponent_for(low: float, high: float) -> int:
    """Return the least exponent whose grid needs at most MOST_BINS bins from low to high."""
    span = max(high - low, abs(low) / (1 << 40), abs(high) / (1 << 40), 2.0**_SMALLEST_EXPONENT)
    exponent = max(frexp(span / MOST_BINS)[1] - 1, _SMALLEST_EXPONENT)
    while floor(ldexp(high, -exponent)) - floor(ldexp(low, -exponent)) >= MOST_BINS:
        exponent += 1
    return exponent


@compiled
def _count(
    values: NDArray[np.float32], inverse: float, first: int, counts: NDArray[np.int64]
) -> int:
    """Count values into bins; return how many are zero. The product is exact: a power of two."""
    zeros = 0
    for value in values:
        counts[int(np.floor(value * inverse)) - first] += 1
        zeros += value == 0
    return zeros
