"""What an error is made of: rounding, clipping, zero point, scale, codes."""

from enum import Enum

import numpy as np
from numpy.typing import NDArray

from foldmark.ledger.grid import Grid, without_zero

__all__ = ["Cause", "split_error"]

# A code counts as misplaced when it is this much of a step further away than the nearest one:
# far above what float32 arithmetic adds at 16 bits, far below a whole step.
_SLACK = 0.02
# A gain counts as the scale's fault when it stands this far above the noise of rounding.
_SIGMAS = 8.0
_LEAST_GAIN = 2e-3


class Cause(Enum):
    """Why a value is not represented exactly."""

    ROUNDING = "rounding"
    """Between two codes, the nearer one taken."""
    CLIPPING = "clipping"
    """Outside the range that the codes cover."""
    ZERO_POINT = "zero_point"
    """All codes of a group shifted by the same number of steps."""
    SCALE = "scale"
    """All values of a group too large or too small by the same factor."""
    CODES = "codes"
    """A code that is not the nearest, for none of the reasons above."""


def split_error(
    before: NDArray[np.generic], delta: NDArray[np.generic], grid: Grid
) -> dict[Cause, NDArray[np.floating]]:
    """Split delta into parts that sum to it, element by element; parts of zeros are left out.

    With x the float tensor, clamp(x) its value drawn into the grid's range, step s:
        clipping   = clamp(x) - x, where that is more than half a step
        rounding   = the rest, when it is at most half a step
        zero_point = s * k0, k0 the steps by which the whole group is off
        scale      = g * x, g the common gain of the whole group, when above rounding noise
        codes      = s * (k - k0), the steps by which single codes are off
    """
    x = before.astype(np.float32, copy=False)
    low, high = grid.low.astype(np.float32), grid.high.astype(np.float32)
    parts: dict[Cause, NDArray[np.floating]] = {}
    rest = delta.astype(np.float32, copy=False)
    clipped = np.asarray(np.clip(x, low, high) - x)
    if grid.step is not None and not grid.is_chosen_by_data:
        # Within half a step of the last code it is an ordinary rounding to that code.
        half = np.abs(grid.step.astype(np.float32)) / 2
        clipped = np.where(np.abs(clipped) > half, clipped, np.float32(0))
    if clipped.any():
        # A range chosen by the data leaves outside only what rounding the zero point cost.
        parts[Cause.ZERO_POINT if grid.is_chosen_by_data else Cause.CLIPPING] = clipped
        rest = rest - clipped
    if grid.step is not None:
        rest = _split_steps(x, rest, grid.step.astype(np.float32), parts)
    parts[Cause.ROUNDING] = rest
    return parts


def _split_steps(
    x: NDArray[np.floating],
    rest: NDArray[np.floating],
    step: NDArray[np.floating],
    parts: dict[Cause, NDArray[np.floating]],
) -> NDArray[np.floating]:
    """Take shifts, gains and misplaced codes out of `rest`; return what is rounding."""
    size = without_zero(step.astype(np.float64)).astype(np.float32)
    if not (np.abs(rest) > (0.5 + _SLACK) * np.abs(size)).any():
        return rest
    axes = _shared_axes(step, rest.shape)
    gain = _gain(x, rest, size, axes)
    if gain is not None:
        parts[Cause.SCALE] = gain * x
        rest = rest - parts[Cause.SCALE]
    steps = rest / size
    off = np.where(np.abs(steps) > 0.5 + _SLACK, np.rint(steps), 0).astype(np.float32)
    if off.any():
        common = np.rint(np.median(steps, axis=axes, keepdims=True)).astype(np.float32)
        if common.any():
            parts[Cause.ZERO_POINT] = np.broadcast_to(common * size, rest.shape)
            rest = rest - parts[Cause.ZERO_POINT]
            steps = rest / size
            off = np.where(np.abs(steps) > 0.5 + _SLACK, np.rint(steps), 0).astype(np.float32)
    if off.any():
        parts[Cause.CODES] = off * size
        rest = rest - parts[Cause.CODES]
    return rest


def _gain(
    x: NDArray[np.floating],
    rest: NDArray[np.floating],
    step: NDArray[np.floating],
    axes: tuple[int, ...],
) -> NDArray[np.floating] | None:
    """Return the gain per group where one explains most of the error, else None."""
    power = (x * x).sum(axes, keepdims=True, dtype=np.float64)
    gain = (x * rest).sum(axes, keepdims=True, dtype=np.float64) / without_zero(power)
    noise = np.abs(step) / np.sqrt(12 * without_zero(power))
    whole = (rest * rest).sum(axes, keepdims=True, dtype=np.float64)
    explained = gain * gain * power > 0.5 * whole
    real = explained & (np.abs(gain) > _SIGMAS * noise) & (np.abs(gain) > _LEAST_GAIN)
    return np.where(real, gain, 0).astype(np.float32) if real.any() else None


def _shared_axes(step: NDArray[np.floating], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes along which one scale holds."""
    if step.ndim == 0:
        return tuple(range(len(shape)))
    shared = tuple(axis for axis in range(len(shape)) if step.shape[axis] == 1 != shape[axis])
    return shared or tuple(range(len(shape)))
