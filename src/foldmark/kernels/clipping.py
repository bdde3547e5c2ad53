"""Where to clip an array: a limit from its magnitudes, and how much lies beyond."""

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.kernels.blocks import PIECE

__all__ = ["clipped_share", "percentile_limit"]


def percentile_limit(values: NDArray[Any], percent: int) -> float:
    """Return the smallest magnitude among the values that at least `percent` % do not exceed.

    The nearest rank: element ceil(percent * n / 100) of the sorted magnitudes; 0 for no values.
    Exact twin: foldmark.exact.clipping.percentile_limit.
    """
    if values.size == 0:
        return 0.0
    rank = max(-(-percent * values.size // 100), 1) - 1
    magnitudes = np.abs(values).reshape(-1)
    magnitudes.partition(rank)
    return float(magnitudes[rank])


def clipped_share(values: NDArray[Any], limit: float) -> Fraction:
    """Return which share of the values lies beyond the limit; 0 for no values.

    Exact twin: foldmark.exact.clipping.clipped_share.
    """
    flat, beyond = values.reshape(-1), 0
    for first in range(0, flat.size, PIECE):
        part = flat[first : first + PIECE].astype(np.float64)
        beyond += int(np.count_nonzero(np.abs(part) > limit))
    return Fraction(beyond, flat.size) if flat.size else Fraction(0)
