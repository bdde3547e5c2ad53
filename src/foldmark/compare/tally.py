"""How often each code occurs, counted over packed bytes where that is enough."""

import numpy as np
from numba import njit

from foldmark.formats.stored import Array, PackedCodes, Values

__all__ = ["can_tally", "number_of", "tally"]

PATTERNS = 256
# Below this many bytes numpy is quick enough, and the compiler need not be woken.
_COMPILE_FROM = 1 << 20


@njit(nogil=True, cache=True)
def _count(records, start, stop, counts):  # type: ignore[no-untyped-def]
    # Four tables, so that equal neighbours do not wait for each other's sums.
    tables = np.zeros((4, 256), np.uint32)
    for row in range(records.shape[0]):
        record = records[row, start:stop]
        whole = record.size // 4 * 4
        for i in range(0, whole, 4):
            tables[0, record[i]] += 1
            tables[1, record[i + 1]] += 1
            tables[2, record[i + 2]] += 1
            tables[3, record[i + 3]] += 1
        for i in range(whole, record.size):
            tables[0, record[i]] += 1
    for code in range(256):
        for table in range(4):
            counts[code] += tables[table, code]


@njit(nogil=True, cache=True)
def _count_pairs(records, low, high, low_width, counts):  # type: ignore[no-untyped-def]
    # low, high: (elements, 3): byte, shift and mask of each element's part
    tables = np.zeros((4, 256), np.uint32)
    for row in range(records.shape[0]):
        record = records[row]
        for i in range(low.shape[0]):
            code = (record[low[i, 0]] >> low[i, 1] & low[i, 2]) | (
                (record[high[i, 0]] >> high[i, 1] & high[i, 2]) << low_width
            )
            tables[i & 3, code] += 1
    for code in range(256):
        for table in range(4):
            counts[code] += tables[table, code]


def _count_bytes(records: Array, start: int, stop: int, counts: Array) -> None:
    if records.size < _COMPILE_FROM:
        counts += np.bincount(records[:, start:stop].reshape(-1), minlength=PATTERNS)
    else:
        _count(records, start, stop, counts)


def _fields(plane: tuple[int, int, int, int]) -> Array:
    """Return byte, shift and mask of each element of a plane: (elements, 3) int64."""
    start, nbytes, width, run = plane
    element = np.arange(nbytes * 8 // width)
    chunk, inside = np.divmod(element, run * 8 // width)
    byte, shift = start + chunk * run + inside % run, width * (inside // run)
    return np.stack([byte, shift, np.full_like(byte, (1 << width) - 1)], axis=1)


def can_tally(number_format: str) -> bool:
    """Say whether a format's codes fit a byte, so that all 256 patterns can be counted."""
    return number_format not in ("int16", "uint16", "int32", "uint32", "int64", "uint64") and (
        number_format.startswith(("int", "uint", "float8", "float4", "nf4", "fp4", "iq4", "tern"))
    )


def tally(values: Values, counts: Array) -> None:
    """Add how often each byte pattern occurs among the codes; negative codes wrap (-1 is 255).

    Args:
        values: a piece of a tensor whose codes fit a byte.
        counts: (256,) int64, added to.
    """
    packed = values.stored
    if not isinstance(packed, PackedCodes):
        flat = np.ascontiguousarray(packed).view(np.uint8).reshape(1, -1)
        _count_bytes(flat, 0, flat.shape[1], counts)
    elif len(packed.planes) == 1:
        start, nbytes, width, _ = packed.planes[0]
        whole = np.zeros(PATTERNS, np.int64)
        _count_bytes(packed.records, start, start + nbytes, whole)
        _fold(whole, width, counts)
    elif packed.records.size < _COMPILE_FROM:
        counts += np.bincount(values.codes.reshape(-1), minlength=PATTERNS)
    else:
        low, high = packed.planes
        _count_pairs(packed.records, _fields(low), _fields(high), low[2], counts)


def _fold(whole: Array, bits: int, counts: Array) -> None:
    """Turn counts of bytes into counts of the fields in them."""
    patterns = np.arange(PATTERNS)
    for shift in range(0, 8, bits):
        np.add.at(counts, patterns >> shift & ((1 << bits) - 1), whole)


def number_of(number_format: str) -> Array:
    """Return the integer that each byte pattern stands for: (256,) int64."""
    patterns = np.arange(PATTERNS)
    if number_format.startswith("int"):
        return np.where(patterns > 127, patterns - 256, patterns)
    return patterns
