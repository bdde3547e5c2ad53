"""OpenVINO's FakeQuantize, and the ranges that NNCF gives it.

FakeQuantize has no zero point: a value becomes one of `levels` even points between two ends, and
ties are decided among the levels, so that their parity depends on the low end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from math import isnan

from foldmark.exact.arithmetic import add, divide, multiply, subtract
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.rounding import Rounding, round_to_int

__all__ = [
    "LevelRange",
    "RangeWidth",
    "nncf_asymmetric_ranges",
    "nncf_symmetric_ranges",
    "openvino_fake_quantize",
]


@dataclass(frozen=True, slots=True)
class LevelRange:
    """Ends and number of the even points that values are moved to."""

    low: float
    high: float
    levels: int


class RangeWidth(Enum):
    """Whether a symmetric range uses all codes or leaves out the lowest one."""

    NARROW = "255 levels of 8 bits: low = -high"
    FULL = "256 levels of 8 bits: low = -high * 256 / 254"


def openvino_fake_quantize(
    value: float, ends: LevelRange, output: LevelRange | None = None
) -> float:
    """Return the point that FakeQuantize moves `value` to, in float32.

    x <= low gives the low end, x > high the high end, else
    round((x - low) / (high - low) * (levels - 1)) / (levels - 1) * (high' - low') + low';
    NaN gives the low end. Source: OpenVINO, fake_quantize.hpp.
    """
    target = output if output is not None else ends
    if isnan(value) or value <= ends.low:
        return target.low
    if value > ends.high:
        return target.high
    share = divide(_minus(value, ends.low), _minus(ends.high, ends.low), FLOAT32)
    steps = float(ends.levels - 1)
    level = round_to_int(Fraction(multiply(share, steps, FLOAT32)), Rounding.HALF_EVEN)
    part = divide(float(level), steps, FLOAT32)
    return add(multiply(part, _minus(target.high, target.low), FLOAT32), target.low, FLOAT32)


def nncf_symmetric_ranges(
    lows: Sequence[float], highs: Sequence[float], width: RangeWidth
) -> list[LevelRange]:
    """Return the 8-bit range of each channel from its ends, mirrored around zero.

    A channel's range is at least 1 % of the loudest channel's, and at least 8e-5. If no channel
    has a negative value, the ranges start at 0.

    lows, highs  (channels,)  float32
    """
    magnitudes = [max(abs(low), abs(high)) for low, high in zip(lows, highs, strict=True)]
    floor = max(multiply(max(magnitudes), FLOAT32.round(0.01), FLOAT32), 8e-5)
    levels = 255 if width == RangeWidth.NARROW else 256
    stretch = FLOAT32.round(1.0 if width == RangeWidth.NARROW else levels / (levels - 2))
    signed = any(low < 0 for low in lows)
    ranges = []
    for magnitude in magnitudes:
        top = max(magnitude, FLOAT32.round(floor))
        low = multiply(-top, stretch, FLOAT32) if signed else 0.0
        ranges.append(LevelRange(low, top, levels))
    return ranges


def nncf_asymmetric_ranges(
    lows: Sequence[float], highs: Sequence[float], width: RangeWidth
) -> list[LevelRange]:
    """Return the 8-bit range of each channel from its ends, zero made a level.

    A range of at most 8e-4 is padded by 8e-4 at each end; zero is included; then the end is moved
    outward that makes the wider range when zero becomes one of 255 steps, also for 255 levels.

    lows, highs  (channels,)  float32
    """
    levels = 255 if width == RangeWidth.NARROW else 256
    ranges = []
    for low, high in zip(lows, highs, strict=True):
        narrow = _minus(high, low) <= FLOAT32.round(8e-4)
        padding = FLOAT32.round(8e-4) if narrow else 0.0
        left = min(_minus(low, padding), 0.0)
        right = max(add(high, padding, FLOAT32), 0.0)
        ranges.append(LevelRange(*_with_zero_as_level(left, right), levels))
    return ranges


def _with_zero_as_level(left: float, right: float) -> tuple[float, float]:
    steps = 255.0
    per_unit = divide(steps, _minus(right, left), FLOAT32)
    code = float(round_to_int(Fraction(multiply(-left, per_unit, FLOAT32)), Rounding.HALF_EVEN))
    moved_left, moved_right = left, right
    if code < steps:
        moved_left = multiply(divide(code, code - steps, FLOAT32), right, FLOAT32)
    if code > 0:
        moved_right = multiply(divide(code - steps, code, FLOAT32), left, FLOAT32)
    if _minus(right, moved_left) > _minus(moved_right, left):
        return moved_left, right
    return left, add(moved_right, 0.0, FLOAT32)  # a product of zero loses its sign in NNCF's sum


def _minus(x: float, y: float) -> float:
    return subtract(x, y, FLOAT32)
