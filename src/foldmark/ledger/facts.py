"""What a site's tensor looks like on its grid, gathered batch by batch."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from foldmark.graphs.sites import Site, SiteKind
from foldmark.ledger.axes import channel_axis
from foldmark.ledger.grid import Grid, code_limits, without_zero
from foldmark.ledger.pieces import pieces

__all__ = ["ScaleSetter", "SiteFacts", "SiteFactsCollector"]

# The share of values, nearest to zero, that "the rest" means in "codes used by the rest".
_REST = 0.99
_SMALLEST_ROWS = 0.1
# Empty octaves between the largest values and the rest that make them a group of their own.
_GAP = 2
_OCTAVES = 256
# Channels are two groups when one reaches this many times as far as the next.
_APART = 2.0


@dataclass(frozen=True)
class ScaleSetter:
    """The element furthest from zero, which sets the scale of all that share it.

    Attributes:
        index: its place in the tensor; for activations the first entry is the sample.
        value: what it holds.
        channel: its index along `axis`, None when the tensor has no such axis.
        axis: the axis of channels.
        scale: the step of its grid; None for float formats.
        channels: how many channels reach about as far as its own, where a gap separates them
            from the other channels; 1 when it stands alone.
        scale_without: the step that the rest would need: without those channels, or without
            the element where each channel has a scale of its own, or without the values as
            large as it where a gap separates them from all others.
        alike: share of values on the element's side of such a gap; None without a gap.
        rest_below: largest absolute value on the other side.
        codes_of_rest: how many different codes the rest uses: the values on the other side of
            the gap, else the 99 % nearest to zero.
        codes: how many codes there are.
    """

    index: tuple[int, ...]
    value: float
    channel: int | None
    axis: int | None
    channels: int
    scale: float | None
    scale_without: float | None
    alike: float | None
    rest_below: float | None
    codes_of_rest: int | None
    codes: int | None


@dataclass(frozen=True)
class SiteFacts:
    """What was seen of a site's tensor.

    Attributes:
        setter: the element that sets the scale; None for an empty tensor.
        clipped: share of values outside the grid's range.
        relative_error: root of (sum of squared errors / sum of squares).
        relative_error_smallest: the same over the tenth of the channels with the smallest norm.
        seen: smallest and largest value.
        covered: smallest and largest value that the codes can hold (per channel: the widest).
        typical: median over channels of the largest absolute value.
        channel_lows: smallest value of each channel (of the whole where there are none).
        channel_highs: largest value of each channel.
    """

    setter: ScaleSetter | None
    clipped: float
    relative_error: float
    relative_error_smallest: float
    seen: tuple[float, float]
    covered: tuple[float, float]
    typical: float
    channel_lows: NDArray[np.float64] = field(repr=False, compare=False)
    channel_highs: NDArray[np.float64] = field(repr=False, compare=False)


@dataclass
class SiteFactsCollector:
    """Gathers a site's facts; memory does not grow with the samples."""

    site: Site
    count: int = 0
    clipped: int = 0
    extreme: float = 0.0
    extreme_index: tuple[int, ...] | None = None
    covered: tuple[float, float] = (0.0, 0.0)
    step: float | None = None
    group_rest: float = 0.0
    axis: int | None = None
    lows: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    highs: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    squares: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    errors: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    histogram: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    octaves: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_OCTAVES, np.int64))
    peaks: NDArray[np.float32] = field(default_factory=lambda: np.zeros(_OCTAVES, np.float32))

    def add(
        self,
        before: NDArray[np.generic],
        delta: NDArray[np.generic],
        grid: Grid,
        first_sample: int,
    ) -> None:
        """Add one batch of the site's tensor and of its error."""
        if before.size == 0:
            return
        x = before.astype(np.float32, copy=False)
        error = delta.astype(np.float32, copy=False)
        self.axis = channel_axis(self.site, x.ndim)
        others = tuple(i for i in range(x.ndim) if i != self.axis)
        self.lows = _widened(self.lows, x.min(others).reshape(-1), np.minimum)
        self.highs = _widened(self.highs, x.max(others).reshape(-1), np.maximum)
        self.squares = _widened(self.squares, self._powers(x, others), np.add)
        self.errors = _widened(self.errors, self._powers(error, others), np.add)
        self.count += x.size
        length = len(x) if x.ndim else 1
        for piece in pieces(x.shape):
            part = grid.of_piece(piece, 0, length)
            self._add_piece(x[piece] if x.ndim else x, error[piece] if x.ndim else error, part)
        self._add_extreme(x, grid, first_sample)

    def _powers(self, x: NDArray[np.floating], others: tuple[int, ...]) -> NDArray[np.float64]:
        """Return the sum of squares of each channel."""
        along = self.axis or 0
        parts = [
            _power(x[(slice(None),) * along + (piece,)] if x.ndim else x, others)
            for piece in pieces(x.shape, along)
        ]
        if self.axis is None:
            return np.asarray(sum(parts[1:], start=parts[0]))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _add_piece(self, x: NDArray[np.float32], error: NDArray[np.float32], grid: Grid) -> None:
        """Count what lies outside, how large values are, and the codes that they take."""
        with np.errstate(over="ignore"):
            low, high = grid.low.astype(np.float32), grid.high.astype(np.float32)
        half = 0.0 if grid.step is None else (np.abs(grid.step) / 2).astype(np.float32)
        outside = (x < low - half) | (x > high + half)
        self.clipped += int(outside.sum())
        self.covered = (
            min(self.covered[0], float(low.min())),
            max(self.covered[1], float(high.max())),
        )
        size = np.abs(x)
        # The exponent field of a float32 is its octave.
        octave = np.ascontiguousarray(size).view(np.int32).reshape(-1) >> 23
        self.octaves += np.bincount(octave, minlength=_OCTAVES)
        np.maximum.at(self.peaks, octave, size.reshape(-1))
        self._add_codes(x + error, grid)

    def _add_extreme(self, x: NDArray[np.float32], grid: Grid, first_sample: int) -> None:
        ends = (int(x.argmax()), int(x.argmin()))
        flat = x.reshape(-1)
        sizes = [abs(float(flat[place])) for place in ends]
        place = min(ends) if sizes[0] == sizes[1] else ends[int(np.argmax(sizes))]
        value = float(flat[place])
        if self.extreme_index is not None and abs(value) <= abs(self.extreme):
            return
        index = tuple(int(i) for i in np.unravel_index(place, x.shape))
        self.extreme = value
        if grid.step is not None:
            self.step = float(np.broadcast_to(grid.step, x.shape)[index])
        if self.site.encoding.axis is not None and self.axis is not None:
            own = np.abs(x.take(index[self.axis], axis=self.axis)).reshape(-1)
            self.group_rest = float(np.partition(own, -2)[-2]) if own.size > 1 else 0.0
        if self.site.kind not in (SiteKind.WEIGHT, SiteKind.BIAS) and index:
            index = (index[0] + first_sample, *index[1:])
        self.extreme_index = index

    def _add_codes(self, after: NDArray[np.floating], grid: Grid) -> None:
        form = self.site.encoding.number_format
        if grid.step is None or grid.zero is None or form.lstrip("u").startswith("int32"):
            return
        lowest, highest = code_limits(form)
        step = without_zero(grid.step).astype(np.float32)
        codes = np.rint(after / step).astype(np.int64)
        # Counted by distance from the code of zero, so that grids of several scales agree.
        width = highest - lowest
        counts = np.bincount(
            np.clip(codes + width, 0, 2 * width).reshape(-1), minlength=2 * width + 1
        )
        self.histogram = counts if not self.histogram.size else self.histogram + counts

    def facts(self) -> SiteFacts:
        """Return what was gathered."""
        total = float(np.sqrt(self.errors.sum() / max(self.squares.sum(), 1e-300)))
        return SiteFacts(
            setter=self._setter(),
            clipped=self.clipped / max(self.count, 1),
            relative_error=total,
            relative_error_smallest=self._smallest(total),
            seen=(float(self.lows.min(initial=np.inf)), float(self.highs.max(initial=-np.inf))),
            covered=self.covered,
            typical=float(np.median(self._sizes())) if self.lows.size else 0.0,
            channel_lows=self.lows,
            channel_highs=self.highs,
        )

    def _sizes(self) -> NDArray[np.float64]:
        return np.maximum(np.abs(self.lows), np.abs(self.highs))

    def _smallest(self, total: float) -> float:
        alive = self.squares > 0
        if alive.sum() < 2:
            return total
        squares, errors = self.squares[alive], self.errors[alive]
        few = np.argsort(squares)[: max(1, int(len(squares) * _SMALLEST_ROWS))]
        return float(np.sqrt(errors[few].sum() / squares[few].sum()))

    def _setter(self) -> ScaleSetter | None:
        if self.extreme_index is None:
            return None
        channel = self.extreme_index[self.axis] if self.axis is not None else None
        codes = None
        if self.histogram.size:
            lowest, highest = code_limits(self.site.encoding.number_format)
            codes = highest - lowest + 1
        channels = self._channels_alike()
        without = self._step_without(channel, channels)
        gap = self._gap()
        if gap is not None and self.step is not None:
            beyond = self.step * gap[1] / max(abs(self.extreme), 1e-300)
            if without is not None and beyond > 0.9 * without:
                gap = None
            else:
                without = beyond
        return ScaleSetter(
            index=self.extreme_index,
            value=self.extreme,
            channel=channel,
            axis=self.axis,
            channels=channels,
            scale=self.step,
            scale_without=without,
            alike=None if gap is None else gap[0],
            rest_below=None if gap is None else gap[1],
            codes_of_rest=self._codes_of_rest(None if gap is None else gap[1]),
            codes=codes,
        )

    def _gap(self) -> tuple[float, float] | None:
        """Return (share of values above the gap, largest value below it), None without one."""
        full = np.flatnonzero(self.octaves[1:]) + 1  # octave 0 holds 0 itself
        wide = np.flatnonzero(np.diff(full) > _GAP)
        if not wide.size:
            return None
        below = int(full[wide[-1]])
        share = float(self.octaves[below + 1 :].sum() / self.octaves.sum())
        return (share, float(self.peaks[below])) if share < 1 - 1 / 64 else None

    def _channels_alike(self) -> int:
        """Return how many channels stand above the widest gap between channels, else 1."""
        sizes = np.sort(self._sizes())[::-1]
        if sizes.size < 3:
            return 1
        steps = sizes[:-1] / np.maximum(sizes[1:], 1e-30)
        # A few dead channels at the far end are no reason to call the others large.
        count = int(steps[: max(1, sizes.size * 3 // 4)].argmax()) + 1
        return count if steps[count - 1] > _APART else 1

    def _step_without(self, channel: int | None, channels: int) -> float | None:
        if self.step is None or channel is None:
            return None
        if self.site.encoding.axis is not None:
            return self.step * self.group_rest / max(abs(self.extreme), 1e-300)
        others = np.argsort(-self._sizes(), kind="stable")[channels:]
        if not others.size:
            return None
        whole = self._range(self.lows, self.highs)
        return self.step * self._range(self.lows[others], self.highs[others]) / max(whole, 1e-300)

    def _range(self, lows: NDArray[np.float64], highs: NDArray[np.float64]) -> float:
        low, high = self.covered
        if abs(low + high) <= 0.02 * (high - low):
            return float(max(np.abs(lows).max(), np.abs(highs).max()))
        return float(max(highs.max(), 0) - min(lows.min(), 0))

    def _codes_of_rest(self, below: float | None) -> int | None:
        if not self.histogram.size:
            return None
        middle = self.histogram.size // 2
        # Pairs of codes at the same distance from zero, from the nearest outwards.
        pairs = self.histogram[middle:].copy()
        pairs[1:] += self.histogram[:middle][::-1]
        reach = int(np.searchsorted(np.cumsum(pairs), _REST * pairs.sum()))
        if below is not None and self.step:
            reach = min(reach, round(below / self.step))
        return int((self.histogram[middle - reach : middle + reach + 1] > 0).sum())


def _power(x: NDArray[np.floating], axes: tuple[int, ...]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        power: NDArray[np.float64] = np.asarray((x * x).sum(axes, dtype=np.float64)).reshape(-1)
    if np.isfinite(power).all():
        return power
    return np.asarray(np.square(x, dtype=np.float64).sum(axes)).reshape(-1)


def _widened(
    kept: NDArray[np.float64], new: NDArray[np.floating], join: np.ufunc
) -> NDArray[np.float64]:
    if not kept.size:
        return new.astype(np.float64)
    if kept.size == new.size:
        joined: NDArray[np.float64] = join(kept, new)
        return joined
    # The axis has another length in this batch (tokens): the common part is joined.
    longer = kept if kept.size > new.size else new.astype(np.float64)
    longer = longer.copy()
    common = min(kept.size, new.size)
    longer[:common] = join(kept[:common], new[:common])
    return longer
