"""The treatments of a zero or tiny range that several tools share."""

from foldmark.exact.catalog import FLOAT64
from foldmark.exact.rule import DataConstant, TinyAction, TinyRange, TinyTest

__all__ = ["EXACTLY_ZERO", "extent_at_least", "scale_at_least", "zero_extent"]

EXACTLY_ZERO = float(FLOAT64.smallest)
"""As a threshold: below it lies nothing but zero."""


def scale_at_least(floor: float | DataConstant) -> tuple[TinyRange, ...]:
    """Return the treatment scale = max(scale, floor)."""
    return (TinyRange(test=TinyTest.SCALE, below=floor, action=TinyAction.SCALE, value=floor),)


def extent_at_least(floor: float | DataConstant) -> tuple[TinyRange, ...]:
    """Return the treatment extent = max(extent, floor), before the division."""
    return (TinyRange(test=TinyTest.EXTENT, below=floor, action=TinyAction.EXTENT, value=floor),)


def zero_extent(
    action: TinyAction, value: float, zero_point: int | None = None
) -> tuple[TinyRange, ...]:
    """Return the treatment of a range of exactly zero."""
    return (
        TinyRange(
            test=TinyTest.EXTENT,
            below=EXACTLY_ZERO,
            action=action,
            value=value,
            zero_point=zero_point,
        ),
    )
