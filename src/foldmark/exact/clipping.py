"""Where to clip: a limit from the data's magnitudes, and what clipping and rounding then cost."""

from collections.abc import Sequence
from fractions import Fraction

__all__ = ["clipped_share", "percentile_limit", "split_error"]


def percentile_limit(values: Sequence[float], percent: int) -> float:
    """Return the smallest magnitude among the values that at least `percent` % do not exceed.

    The nearest rank: element ceil(percent * n / 100) of the sorted magnitudes; 0 for no values.
    """
    magnitudes = sorted(map(abs, values))
    if not magnitudes:
        return 0.0
    rank = -(-percent * len(magnitudes) // 100)
    return magnitudes[max(rank, 1) - 1]


def clipped_share(values: Sequence[float], limit: float) -> Fraction:
    """Return which share of the values lies beyond the limit; 0 for no values."""
    beyond = sum(abs(x) > limit for x in values)
    return Fraction(beyond, len(values)) if values else Fraction(0)


def split_error(
    values: Sequence[float], restored: Sequence[float], limit: float
) -> tuple[Fraction, Fraction]:
    """Return the summed |x - y| of the values beyond the limit, and of the others."""
    clipped = rounded = Fraction(0)
    for x, y in zip(values, restored, strict=True):
        error = abs(Fraction(x) - Fraction(y))
        if abs(x) > limit:
            clipped += error
        else:
            rounded += error
    return clipped, rounded
