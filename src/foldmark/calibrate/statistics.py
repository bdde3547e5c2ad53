"""What calibration remembers of a tensor: constant memory, however many batches pass."""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from foldmark.calibrate.histogram import Histogram
from foldmark.errors import NonFiniteValue

__all__ = ["DEFAULT_CONSTANT", "Channels", "Detail", "Statistics"]

DEFAULT_CONSTANT = 0.01


class Detail(Enum):
    """How much is remembered."""

    ENDS = "smallest and largest value, and their moving averages"
    HISTOGRAM = "the ends and a histogram"


@dataclass
class Statistics:
    """Running statistics of one tensor, or of one channel of it.

    Attributes:
        detail: whether a histogram is kept.
        constant: c of the moving averages: old + c (new - old) after the first batch.
        batches: batches seen.
        values: values seen.
        minimum, maximum: over everything seen; infinity and -infinity before anything is.
        average_minimum, average_maximum: moving averages of the batches' ends.
        histogram: counts, empty without the detail.
    """

    detail: Detail = Detail.HISTOGRAM
    constant: float = DEFAULT_CONSTANT
    batches: int = 0
    values: int = 0
    minimum: float = np.inf
    maximum: float = -np.inf
    average_minimum: float = 0.0
    average_maximum: float = 0.0
    histogram: Histogram = field(default_factory=Histogram)

    def update(self, values: NDArray[np.generic], name: str = "", batch: int | None = None) -> None:
        """Take in one batch; an empty one changes nothing.

        Raises NonFiniteValue with the tensor's name and the batch when a value is not finite.
        """
        if not values.size:
            return
        real = values.astype(np.float32, copy=False)
        low, high = float(real.min()), float(real.max())
        self.update_ends(low, high, real.size, name, batch)
        if self.detail is Detail.HISTOGRAM:
            self.histogram.add(real, low, high)

    def update_ends(
        self, low: float, high: float, count: int, name: str = "", batch: int | None = None
    ) -> None:
        """Take in one batch of which the ends are known; one of no values changes nothing.

        Raises NonFiniteValue as `update` does.
        """
        if not count:
            return
        if not (np.isfinite(low) and np.isfinite(high)):
            where = f"tensor {name!r}" + ("" if batch is None else f", batch {batch}")
            kind = "NaN" if np.isnan(low) or np.isnan(high) else "infinity"
            raise NonFiniteValue(
                f"the float model gives {kind} here", where=where, todo="look at the inputs there"
            )
        first = not self.batches
        self.minimum, self.maximum = min(self.minimum, low), max(self.maximum, high)
        step = 1.0 if first else self.constant
        self.average_minimum += step * (low - self.average_minimum)
        self.average_maximum += step * (high - self.average_maximum)
        self.batches += 1
        self.values += count

    def merge(self, other: "Statistics") -> None:
        """Take in what another run saw.

        Ends and histogram are then those of both runs in any order. The moving averages are
        weighted by the batches of each run.
        """
        if not other.batches:
            return
        share = other.batches / (self.batches + other.batches)
        self.average_minimum += share * (other.average_minimum - self.average_minimum)
        self.average_maximum += share * (other.average_maximum - self.average_maximum)
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)
        self.batches += other.batches
        self.values += other.values
        self.histogram.merge(other.histogram)


@dataclass
class Channels:
    """Statistics of every channel of a tensor.

    Attributes:
        axis: counts the channels; negative from the end.
        detail: whether each channel keeps a histogram.
        constant: c of the moving averages.
        each: by channel; empty before anything was seen.
        varies: the number of channels changed from batch to batch, or there is no such axis:
            nothing is kept then.
    """

    axis: int
    detail: Detail = Detail.HISTOGRAM
    constant: float = DEFAULT_CONSTANT
    each: list[Statistics] = field(default_factory=list)
    varies: bool = False

    def update(self, values: NDArray[np.generic], name: str = "", batch: int | None = None) -> None:
        """Take in one batch; an empty one changes nothing.

        Raises NonFiniteValue as `Statistics.update` does.
        """
        if not values.size or self.varies:
            return
        rank = values.ndim
        slices = np.moveaxis(values, self.axis, 0) if -rank <= self.axis < rank else values[:0]
        if not self._holds(len(slices)):
            return
        for statistics, part in zip(self.each, slices, strict=True):
            statistics.update(part, name, batch)

    def merge(self, other: "Channels") -> None:
        """Take in what another run saw."""
        if other.varies or not self._holds(len(other.each)):
            self.each, self.varies = [], True
            return
        for mine, theirs in zip(self.each, other.each, strict=True):
            mine.merge(theirs)

    def _holds(self, channels: int) -> bool:
        """Make room for the first batch; drop all when a later one has other channels."""
        if not self.each:
            self.each = [Statistics(self.detail, self.constant) for _ in range(channels)]
        self.varies = self.varies or len(self.each) != channels or not channels
        if self.varies:
            self.each = []
        return not self.varies
