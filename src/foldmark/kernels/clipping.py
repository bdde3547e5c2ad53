"""Where to clip an array: a limit from its magnitudes, and how much lies beyond."""

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.kernels.blocks import PIECE

__all__ = ["clipped_share", "percentile_limit", "split_error"]


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


def split_error(
    values: NDArray[Any], restored: NDArray[Any], limit: float
) -> tuple[Fraction, Fraction]:
    """Return the summed |x - y| of the values beyond the limit, and of the others; no sum rounds.

    Both arrays finite and of one shape. Exact twin: foldmark.exact.clipping.split_error.
    """
    x, y = values.reshape(-1), restored.reshape(-1)
    clipped = rounded = Fraction(0)
    for first in range(0, x.size, PIECE):
        part = slice(first, first + PIECE)
        before, after = x[part].astype(np.float64), y[part].astype(np.float64)
        sign = (before > after).astype(np.float64) - (before < after)
        terms = np.concatenate([sign * before, -sign * after])
        beyond = np.tile(np.abs(before) > limit, 2)
        clipped += _total(terms[beyond])
        rounded += _total(terms[~beyond])
    return clipped, rounded


def _total(numbers: NDArray[np.float64]) -> Fraction:
    """Return the exact sum of at most 2^20 numbers: whole mantissas, added up by exponent.

    A mantissa of 53 bits is cut into 27 and 26, so that no sum of 2^20 parts leaves int64.
    """
    mantissas, exponents = np.frexp(numbers)
    upper = np.trunc(mantissas * 2.0**27)
    lower = (mantissas * 2.0**27 - upper) * 2.0**26
    places, where = np.unique(exponents, return_inverse=True)
    total = Fraction(0)
    for part, bits in ((upper, 27), (lower, 53)):
        sums = np.zeros(places.size, np.int64)
        np.add.at(sums, where, part.astype(np.int64))
        for exponent, found in zip(places.tolist(), sums.tolist(), strict=True):
            total += Fraction(found) * Fraction(2) ** (exponent - bits)
    return total
