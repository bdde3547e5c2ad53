"""OpenVINO's FakeQuantize on arrays, and the ranges that NNCF gives it, channel by channel.

Exact twin: foldmark.exact.tools.fake_quantize, where both are explained.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.tools.fake_quantize import LevelRange, RangeWidth
from foldmark.kernels.blocks import PIECE
from foldmark.kernels.threads import each
from foldmark.kernels.tools.blocks import Singles

__all__ = [
    "LevelRanges",
    "nncf_asymmetric_ranges",
    "nncf_symmetric_ranges",
    "openvino_fake_quantize",
]


@dataclass(frozen=True, slots=True, eq=False)
class LevelRanges:
    """Ends of the even points of every channel, (channels,) float32, and their number."""

    low: Singles
    high: Singles
    levels: int


def openvino_fake_quantize(
    value: NDArray[Any], ends: LevelRange, output: LevelRange | None = None
) -> Singles:
    """Return the points that FakeQuantize moves values to; any shape, in float32.

    Exact twin: foldmark.exact.tools.fake_quantize.openvino_fake_quantize.
    """
    flat = np.ascontiguousarray(value, np.float32).reshape(-1)
    target = output if output is not None else ends
    out = np.empty(flat.shape, np.float32)

    def run(first: int) -> None:
        part = slice(first, first + PIECE)
        out[part] = _moved(flat[part], ends, target)

    each(run, range(0, flat.size, PIECE))
    return out.reshape(value.shape)


def nncf_symmetric_ranges(lows: Singles, highs: Singles, width: RangeWidth) -> LevelRanges:
    """Return the 8-bit range of each channel from its ends, mirrored around zero.

    Exact twin: foldmark.exact.tools.fake_quantize.nncf_symmetric_ranges.
    """
    magnitudes = np.maximum(np.abs(lows), np.abs(highs)).astype(np.float32)
    floor = max(float(magnitudes.max() * np.float32(0.01)), 8e-5)
    levels = 255 if width == RangeWidth.NARROW else 256
    stretch = np.float32(1.0 if width == RangeWidth.NARROW else levels / (levels - 2))
    high = np.maximum(magnitudes, np.float32(floor))
    low = -high * stretch if (lows < 0).any() else np.zeros_like(high)
    return LevelRanges(low, high, levels)


def nncf_asymmetric_ranges(lows: Singles, highs: Singles, width: RangeWidth) -> LevelRanges:
    """Return the 8-bit range of each channel from its ends, zero made a level.

    Exact twin: foldmark.exact.tools.fake_quantize.nncf_asymmetric_ranges.
    """
    lows, highs = lows.astype(np.float32), highs.astype(np.float32)
    padding = np.where(highs - lows <= np.float32(8e-4), np.float32(8e-4), np.float32(0))
    left = np.minimum(lows - padding, np.float32(0))
    right = np.maximum(highs + padding, np.float32(0))
    steps = np.float32(255)
    with np.errstate(divide="ignore", invalid="ignore"):
        code = np.rint(-left * (steps / (right - left)))
        moved_left = np.where(code < steps, code / (code - steps) * right, left)
        moved_right = np.where(code > 0, (code - steps) / code * left, right)
    wider = right - moved_left > moved_right - left
    # Adding zero takes the sign from a product that is zero.
    high = np.where(wider, right, moved_right + np.float32(0))
    levels = 255 if width == RangeWidth.NARROW else 256
    return LevelRanges(np.where(wider, moved_left, left), high, levels)


def _moved(x: Singles, ends: LevelRange, target: LevelRange) -> Singles:
    low, high, steps = np.float32(ends.low), np.float32(ends.high), np.float32(ends.levels - 1)
    to_low, to_high = np.float32(target.low), np.float32(target.high)
    with np.errstate(all="ignore"):
        level = np.rint((x - low) / (high - low) * steps)
        points = level / steps * (to_high - to_low) + to_low
    above = np.where(x > high, to_high, points)
    return np.where(x > low, above, to_low)
