"""From what was remembered of a tensor to the range that gets codes."""

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

import numba
import numpy as np
from numpy.typing import NDArray

from foldmark.calibrate.histogram import Histogram
from foldmark.calibrate.statistics import Detail, Statistics
from foldmark.errors import InvalidScheme, NoData

__all__ = ["Method", "Observer", "Range", "Symmetry", "choose_range"]


class Method(Enum):
    """How a range is chosen."""

    MIN_MAX = "min-max"
    MOVING_AVERAGE = "moving-average"
    ENTROPY = "entropy"
    MSE = "mse"
    PERCENTILE = "percentile"


class Symmetry(Enum):
    """Which ranges are allowed."""

    AFFINE = "the two ends are free; zero is inside"
    SYMMETRIC = "low = -high"


@dataclass(frozen=True)
class Observer:
    """A way to choose ranges.

    Attributes:
        method: how.
        symmetry: whether the range is mirrored.
        bits: bits of the codes that the range will get; entropy and mse depend on it.
        percentile: for Method.PERCENTILE, the share of values kept, in percent.
        constant: c of the moving average.
    """

    method: Method = Method.MIN_MAX
    symmetry: Symmetry = Symmetry.AFFINE
    bits: int = 8
    percentile: float = 99.999
    constant: float = 0.01

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 2 <= self.bits <= 16:
            raise InvalidScheme("codes have 2 to 16 bits", got=str(self.bits))
        if not 50 <= self.percentile <= 100:
            raise InvalidScheme("a percentile keeps 50 to 100 percent", got=f"{self.percentile:g}")
        if not 0 < self.constant <= 1:
            raise InvalidScheme(
                "a moving average's constant is in (0, 1]", got=f"{self.constant:g}"
            )

    @property
    def detail(self) -> Detail:
        """What must be remembered for it."""
        ends = self.method in (Method.MIN_MAX, Method.MOVING_AVERAGE)
        return Detail.ENDS if ends else Detail.HISTOGRAM


@dataclass(frozen=True)
class Range:
    """The real numbers that get codes: low <= 0 <= high, in the tensor's unit."""

    low: float
    high: float


def choose_range(statistics: Statistics, observer: Observer, name: str = "") -> Range:
    """Return the range of a tensor, zero always inside.

    Raises:
        NoData: nothing was seen of the tensor.
        InvalidScheme: the method needs a histogram that was not kept.
    """
    if not statistics.batches:
        raise NoData("this tensor was never seen", where=f"tensor {name!r}")
    if observer.detail is Detail.HISTOGRAM and statistics.detail is not Detail.HISTOGRAM:
        raise InvalidScheme(
            f"{observer.method.value} needs a histogram, and only the ends were kept",
            where=f"tensor {name!r}",
        )
    low, high = _ends(statistics, observer)
    low, high = min(low, 0.0), max(high, 0.0)
    if observer.symmetry is Symmetry.SYMMETRIC:
        high = max(-low, high)
        low = -high
    return Range(low, high)


def _ends(statistics: Statistics, observer: Observer) -> tuple[float, float]:
    inside = statistics.minimum, statistics.maximum
    match observer.method:
        case Method.MIN_MAX:
            return inside
        case Method.MOVING_AVERAGE:
            return statistics.average_minimum, statistics.average_maximum
        case Method.PERCENTILE:
            found = _percentile(statistics.histogram, observer)
        case Method.MSE:
            found = _least_squares(statistics, observer)
        case Method.ENTROPY:
            found = _least_divergence(statistics.histogram, observer)
        case _:  # pragma: no cover
            assert_never(observer.method)
    return max(found[0], inside[0]), min(found[1], inside[1])


def _magnitudes(histogram: Histogram) -> tuple[NDArray[np.int64], float]:
    """Return the histogram of |x| from zero upward, and the width of its bins."""
    bins = max(histogram.first + len(histogram.counts), -histogram.first, 1)
    counts = np.zeros(bins, np.int64)
    places = histogram.first + np.arange(len(histogram.counts))
    folded = np.where(places >= 0, places, -1 - places)
    np.add.at(counts, folded, histogram.counts)
    return counts, histogram.width


def _percentile(histogram: Histogram, observer: Observer) -> tuple[float, float]:
    """Return the ends that keep `percentile` percent of the values, to a bin's width.

    Symmetric: of |x|, all cut from the top. Affine: half of the rest is cut from each side.
    """
    if observer.symmetry is Symmetry.SYMMETRIC:
        counts, width = _magnitudes(histogram)
        reached = np.cumsum(counts) >= observer.percentile / 100 * counts.sum()
        top = (int(np.argmax(reached)) + 1) * width
        return -top, top
    share = np.cumsum(histogram.counts) / histogram.total
    rest = (1 - observer.percentile / 100) / 2
    low = int(np.argmax(share > rest))
    high = int(np.argmax(share >= 1 - rest - 1e-15))
    return histogram.edges[low], histogram.edges[high + 1]


_CANDIDATES = 128  # positions tried for each end
_REFINED = 48  # pairs of ends that are compared by quantizing


def _least_squares(statistics: Statistics, observer: Observer) -> tuple[float, float]:
    """Return the ends with the least expected squared error.

    A value inside loses step^2 / 12, one that is exactly zero nothing, one outside what is cut:

        E(low, high) = inside * ((high - low) / (2^b - 1))^2 / 12
                       + sum_{x < low} (low - x)^2 + sum_{x > high} (x - high)^2

    The likeliest of all pairs of ends are then compared by quantizing the bins themselves.
    """
    histogram, steps = statistics.histogram, float((1 << observer.bits) - 1)
    counts, centers = histogram.counts.astype(np.float64), histogram.centers
    moments = [np.concatenate([[0.0], np.cumsum(counts * centers**power)]) for power in range(3)]
    bottom, top = min(statistics.minimum, 0.0), max(statistics.maximum, 0.0)
    shrink = np.linspace(0, 1, _CANDIDATES + 1)[1:]
    if observer.symmetry is Symmetry.SYMMETRIC:
        reach = max(-bottom, top) * shrink
        lows, highs = -reach, reach
    else:
        lows, highs = np.meshgrid(bottom * shrink, top * shrink, indexing="ij")
    below = np.clip(np.ceil(lows / histogram.width) - histogram.first, 0, len(counts)).astype(int)
    above = np.clip(np.floor(highs / histogram.width) - histogram.first, 0, len(counts)).astype(int)
    total = [each[-1] for each in moments]
    cut_low = lows**2 * moments[0][below] - 2 * lows * moments[1][below] + moments[2][below]
    cut_high = (
        highs**2 * (total[0] - moments[0][above])
        - 2 * highs * (total[1] - moments[1][above])
        + (total[2] - moments[2][above])
    )
    inside = np.maximum(moments[0][above] - moments[0][below] - histogram.zeros, 0)
    error = inside * ((highs - lows) / steps) ** 2 / 12 + cut_low + cut_high
    likely = np.argsort(error, axis=None, kind="stable")[:_REFINED]
    pairs = [(lows.flat[i], highs.flat[i]) for i in likely]
    pairs.append((float(lows.min()), float(highs.max())))
    # The values at the two ends are known; often many stand there (a ReLU6's 6).
    points = centers.copy()
    points[0], points[-1] = statistics.minimum, statistics.maximum
    losses = [_quantization_loss(points, counts, low, high, steps) for low, high in pairs]
    best = pairs[int(np.argmin(losses))]
    return float(best[0]), float(best[1])


@numba.njit(cache=True, nogil=True)
def _quantization_loss(
    points: NDArray[np.float64],
    counts: NDArray[np.float64],
    low: float,
    high: float,
    steps: float,
) -> float:
    """Return the squared error of quantizing `counts` values at each of `points`."""
    scale = (high - low) / steps
    if scale == 0:
        return float((counts * points**2).sum())
    zero = np.rint(-low / scale)
    loss = 0.0
    for i in range(len(points)):
        code = min(max(np.rint(points[i] / scale) + zero, 0.0), steps)
        loss += counts[i] * ((code - zero) * scale - points[i]) ** 2
    return loss


def _least_divergence(histogram: Histogram, observer: Observer) -> tuple[float, float]:
    """Return the ends +-T whose codes tell the distribution of |x| best.

    For each candidate T the reference P is the histogram up to T with the outliers added to
    its last bin; Q is the same histogram merged into the codes and spread out again over the
    bins that were not empty. T has the least KL(P || Q). Values that are exactly zero have a
    code of their own whatever T is, and are left out.
    """
    counts, width = _magnitudes(histogram)
    counts[0] = max(counts[0] - histogram.zeros, 0)
    # Half of the codes serve each side; all of them, when the values have one sign.
    one_sided = histogram.first >= 0 or histogram.first + len(histogram.counts) <= 0
    levels = (1 << observer.bits) - 1 if one_sided else (1 << (observer.bits - 1)) - 1
    if len(counts) <= levels or not counts.any():
        top = len(counts) * width
    else:
        top = _best_threshold(counts, levels) * width
    return -top, top


@numba.njit(cache=True, nogil=True)
def _best_threshold(counts: NDArray[np.int64], levels: int) -> int:
    """Return how many bins to keep, from `levels` to all, for the least divergence."""
    bins = len(counts)
    step = max(1, (bins - levels) // 128)
    total = counts.sum()
    best, least = bins, np.inf
    # The widest first: equal divergence keeps the wider range.
    for kept in range(bins, levels - 1, -step):
        outliers = 0
        for i in range(kept, bins):
            outliers += counts[i]
        if outliers == total:
            continue
        divergence = 0.0
        for level in range(levels):
            start, stop = level * kept // levels, (level + 1) * kept // levels
            mass, filled = 0, 0
            for i in range(start, stop):
                mass += counts[i]
                filled += counts[i] > 0
            for i in range(start, stop):
                p = counts[i] + (outliers if i == kept - 1 else 0)
                if p == 0:
                    continue
                # Q knows nothing of the outliers: a bin that only they fill costs dearly.
                q = mass / filled if counts[i] > 0 else 1e-4
                divergence += p / total * np.log(p / q * (total - outliers) / total)
        if divergence < least - 1e-12:
            best, least = kept, divergence
    return best
