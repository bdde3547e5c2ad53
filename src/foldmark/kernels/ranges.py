"""The ends of every block: its lowest and highest number, in one pass of reads.

Floats are compared as integers: with the sign bit as it is and the other bits flipped where it
is set, the patterns of an IEEE float order like the numbers, minus zero just below zero, with
NaN beyond the infinities. Integer minima and maxima need no order of evaluation, so the compiler
vectorises them, and one comparison at the end tells whether a block was finite.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.kernels.blocks import Layout, Piece
from foldmark.kernels.compiled import compiled, read_only
from foldmark.kernels.floats import Floats

Keys = NDArray[np.signedinteger[Any]]

__all__ = ["ends_of", "piece_ends", "piece_magnitudes", "unset_ends"]


def piece_ends(numbers: Floats, layout: Layout, piece: Piece) -> tuple[Keys, Keys, bool]:
    """Return the ends of the blocks that a piece touches, as ordered integers.

    The last of the three says whether all numbers are finite.
    """
    rows = layout.row_of[piece.first : piece.last] - piece.grid_rows.start
    shape = (
        piece.grid_rows.stop - piece.grid_rows.start,
        piece.grid_columns.stop - piece.grid_columns.start,
    )
    low, high = unset_ends(shape, numbers.dtype)
    unused = low.copy(), high.copy()
    _ends(read_only(numbers).view(low.dtype), rows, piece.segment, low, high)
    # The keys of infinities and NaN are the outermost ones.
    infinite = np.array(np.inf, numbers.dtype).view(low.dtype)
    if int(high.max()) < infinite and int(low.min()) > ~infinite:
        return low, high, True
    low[...], high[...] = unused
    for end, beyond, other in ((low, np.inf, unused[1]), (high, -np.inf, unused[0])):
        seen = np.where(np.isnan(numbers), numbers.dtype.type(beyond), numbers)
        pair = (end, other) if end is low else (other, end)
        _ends(read_only(seen).view(low.dtype), rows, piece.segment, *pair)
    return low, high, False


def piece_magnitudes(numbers: Floats, layout: Layout, piece: Piece) -> tuple[Keys, Keys, bool]:
    """Return -m and m of the blocks that a piece touches, m the largest magnitude; see piece_ends.

    For rules that look at magnitudes only: half the work of finding both ends.
    """
    if numbers.dtype != np.float32:
        return piece_ends(numbers, layout, piece)
    rows = layout.row_of[piece.first : piece.last] - piece.grid_rows.start
    shape = (
        piece.grid_rows.stop - piece.grid_rows.start,
        piece.grid_columns.stop - piece.grid_columns.start,
    )
    largest = np.zeros(shape, np.int32)
    _magnitudes_32(read_only(numbers).view(np.int32), rows, piece.segment, largest)
    if int(largest.max()) >= 0x7F800000:
        return piece_ends(numbers, layout, piece)
    return ~largest, largest, True  # the key of -m is the complement of that of m


def ends_of(low: Keys, high: Keys) -> tuple[Floats, Floats]:
    """Turn the ordered integers of `piece_ends`, merged over all pieces, into numbers."""
    lows, highs = _from_keys(low), _from_keys(high)
    nothing = ~(lows <= highs)  # untouched ends are NaN
    return np.where(nothing, 0, lows), np.where(nothing, 0, highs)


def _from_keys(keys: Keys) -> Floats:
    width = 8 * keys.dtype.itemsize
    bits = keys ^ ((keys >> (width - 1)) & keys.dtype.type((1 << (width - 1)) - 1))
    return bits.view(np.float32 if width == 32 else np.float64)


def unset_ends(shape: tuple[int, int], dtype: np.dtype[Any]) -> tuple[Keys, Keys]:
    """Return ends that any number moves, for data of the working dtype `dtype`."""
    integer = np.int32 if dtype == np.float32 else np.int64
    limits = np.iinfo(integer)
    return np.full(shape, limits.max, integer), np.full(shape, limits.min, integer)


@compiled
def _ends(bits: Keys, row_of: NDArray[np.int64], segment: int, low: Keys, high: Keys) -> None:
    kind = bits.dtype.type  # every step in it: a wider integer would halve the vectors
    nothing, magnitude = kind(0), kind(np.iinfo(bits.dtype).max)
    for r in range(bits.shape[0]):
        row, lows, highs = bits[r], low[row_of[r]], high[row_of[r]]
        if segment == 1:
            for i in range(row.size):
                key = kind(row[i] ^ (magnitude if row[i] < nothing else nothing))
                lows[i] = min(lows[i], key)
                highs[i] = max(highs[i], key)
            continue
        for s in range(lows.size):
            part = row[s * segment : min(s * segment + segment, row.size)]
            lowest, highest = lows[s], highs[s]
            for i in range(part.size):
                key = kind(part[i] ^ (magnitude if part[i] < nothing else nothing))
                lowest = min(lowest, key)
                highest = max(highest, key)
            lows[s], highs[s] = lowest, highest


@compiled
def _magnitudes_32(
    bits: NDArray[np.int32], row_of: NDArray[np.int64], segment: int, largest: NDArray[np.int32]
) -> None:
    for r in range(bits.shape[0]):
        row, tops = bits[r], largest[row_of[r]]
        if segment == 1:
            for i in range(row.size):
                tops[i] = max(tops[i], np.int32(row[i] & np.int32(0x7FFFFFFF)))
            continue
        for s in range(tops.size):
            part = row[s * segment : min(s * segment + segment, row.size)]
            top = tops[s]
            for i in range(part.size):
                top = max(top, np.int32(part[i] & np.int32(0x7FFFFFFF)))
            tops[s] = top
