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


def _count_bytes(records: Array, start: int, stop: int) -> Array:
    if records.size < _COMPILE_FROM:
        return np.bincount(records[:, start:stop].reshape(-1), minlength=PATTERNS)
    counts = np.zeros(PATTERNS, np.int64)
    _count(records, start, stop, counts)
    return counts


def can_tally(number_format: str) -> bool:
    """Say whether a format's codes fit a byte, so that all 256 patterns can be counted."""
    return number_format not in ("int16", "uint16", "int32", "uint32", "int64", "uint64") and (
        number_format.startswith(("int", "uint", "float8", "float4", "nf4", "fp4", "iq4", "tern"))
    )


def tally(values: Values) -> Array:
    """Count each byte pattern among the codes: (256,) int64; negative codes wrap (-1 is 255)."""
    packed = values.stored
    if not isinstance(packed, PackedCodes):
        flat = np.ascontiguousarray(packed).view(np.uint8).reshape(1, -1)
        return _count_bytes(flat, 0, flat.shape[1])
    counts = _count_bytes(packed.records, packed.start, packed.stop)
    return _fold(counts, packed.bits)


def _fold(counts: Array, bits: int) -> Array:
    """Turn counts of bytes into counts of the fields in them."""
    if bits == 8:
        return counts
    folded = np.zeros(PATTERNS, np.int64)
    patterns = np.arange(PATTERNS)
    for shift in range(0, 8, bits):
        np.add.at(folded, patterns >> shift & ((1 << bits) - 1), counts)
    return folded


def number_of(number_format: str) -> Array:
    """Return the integer that each byte pattern stands for: (256,) int64."""
    patterns = np.arange(PATTERNS)
    return (
        np.where(patterns > 127, patterns - 256, patterns) if number_format[0] == "i" else patterns
    )
