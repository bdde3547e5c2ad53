"""Rulers for the error that quantization leaves, on arrays: float64 sums, piece by piece.

Sums are Python's exactly rounded ones over sums of pieces, which numpy adds in pairs; so they
agree with the oracle's exact figures to some ten digits, and extremes and counts to the last bit.
"""

from math import fsum, inf, log10, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import DataMismatch
from foldmark.kernels.blocks import PIECE
from foldmark.kernels.threads import each

__all__ = [
    "codes_used",
    "largest_error",
    "mean_absolute_error",
    "mean_squared_error",
    "relative_error",
    "relative_error_by_row",
    "signal_to_noise",
]

Array = NDArray[Any]


def largest_error(original: Array, restored: Array) -> float:
    """Return max |x - y|, in the unit of x; 0 for empty arrays.

    Exact twin: foldmark.exact.rulers.largest_error.
    """
    return max(_over_pieces(original, restored, lambda _, e: float(np.abs(e).max())), default=0.0)


def mean_absolute_error(original: Array, restored: Array) -> float:
    """Return the mean of |x - y|, in the unit of x; 0 for empty arrays.

    Exact twin: foldmark.exact.rulers.mean_absolute_error.
    """
    sums = _over_pieces(original, restored, lambda _, e: float(np.abs(e).sum()))
    return fsum(sums) / max(original.size, 1)


def mean_squared_error(original: Array, restored: Array) -> float:
    """Return the mean of (x - y)^2, in the squared unit of x; 0 for empty arrays.

    Exact twin: foldmark.exact.rulers.mean_squared_error.
    """
    return _powers(original, restored)[1] / max(original.size, 1)


def signal_to_noise(original: Array, restored: Array) -> float:
    """Return 10 log10(sum x^2 / sum (x - y)^2) in decibel; infinite without error.

    Exact twin: foldmark.exact.rulers.signal_to_noise.
    """
    signal, noise = _powers(original, restored)
    if noise == 0:
        return inf
    return 10 * log10(signal / noise) if signal else -inf


def relative_error(original: Array, restored: Array) -> float:
    """Return sqrt(sum (x - y)^2 / sum x^2), without unit; infinite when only x is zero.

    Exact twin: foldmark.exact.rulers.relative_error.
    """
    signal, noise = _powers(original, restored)
    if signal == 0:
        return inf if noise else 0.0
    return sqrt(noise / signal)


def relative_error_by_row(original: Array, restored: Array) -> NDArray[np.float64]:
    """Return the relative error of each row, (rows,): a quiet row's loss is not hidden.

    Exact twin: foldmark.exact.rulers.relative_error_by_row.
    """
    _require_equal_shapes(original, restored)
    pairs = zip(original, restored, strict=True)
    return np.array([relative_error(x, y) for x, y in pairs], np.float64)


def codes_used(codes: NDArray[np.integer[Any]]) -> dict[int, int]:
    """Return how often each code occurs, in ascending order of codes.

    Exact twin: foldmark.exact.rulers.codes_used.
    """
    if codes.size == 0:
        return {}
    low = int(codes.min())
    if int(codes.max()) - low < 1 << 16:
        flat = codes.reshape(-1)
        cuts = range(0, flat.size, PIECE)
        counts = np.zeros(int(codes.max()) - low + 1, np.int64)
        for first in cuts:
            part = flat[first : first + PIECE].astype(np.int64) - low
            counts += np.bincount(part, minlength=counts.size)
        return {low + int(i): int(counts[i]) for i in np.nonzero(counts)[0]}
    values, counts = np.unique(codes, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _powers(original: Array, restored: Array) -> tuple[float, float]:
    """Return sum x^2 and sum (x - y)^2."""
    pairs = _over_pieces(original, restored, lambda x, e: (float(x @ x), float(e @ e)))
    return fsum(signal for signal, _ in pairs), fsum(noise for _, noise in pairs)


def _over_pieces(original: Array, restored: Array, ruler: Any) -> list[Any]:
    """Return what a ruler of numbers and errors, both float64, says of every piece."""
    _require_equal_shapes(original, restored)
    flat = original.reshape(-1), restored.reshape(-1)
    found: list[Any] = [None] * -(-flat[0].size // PIECE)

    def run(piece: int) -> None:
        x, y = (a[piece * PIECE : (piece + 1) * PIECE].astype(np.float64) for a in flat)
        found[piece] = ruler(x, x - y)

    each(run, range(len(found)))
    return found


def _require_equal_shapes(original: Array, restored: Array) -> None:
    if original.shape != restored.shape:
        raise DataMismatch(
            "two arrays of different shapes", got=f"{original.shape} and {restored.shape}"
        )
