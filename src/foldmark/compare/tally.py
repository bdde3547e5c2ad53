"""How often each code occurs, counted over packed bytes where that is enough."""

from typing import Any

import numpy as np

from foldmark.formats.values import Array, PackedCodes, Values
from foldmark.kernels.compiled import compiled

__all__ = [
    "EXPONENTS",
    "PATTERNS",
    "PackedCounter",
    "can_tally",
    "count_not_finite",
    "number_of",
    "tally",
]

PATTERNS = 256
# Below this many bytes numpy is quick enough, and the compiler need not be woken.
_COMPILE_FROM = 1 << 18
_RAW_COMPILE_FROM = 1 << 18


@compiled
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


@compiled
def _count_words(low, high, where, masks, counts):  # type: ignore[no-untyped-def]
    # Eight codes at a time, a byte each; two neighbours of six bits are counted together.
    first, second = np.zeros(4096, np.uint32), np.zeros(4096, np.uint32)
    low_mask, high_mask, up = masks[0], masks[1], masks[2]
    one, two, six, sixteen = np.uint32(1), np.uint64(2), np.uint64(63), np.uint64(16)
    next_six = np.uint64(0xFC0)
    for row in range(low.shape[0]):
        for i in range(where.shape[0]):
            codes = (low[row, where[i, 0]] >> where[i, 1]) & low_mask
            codes |= ((high[row, where[i, 2]] >> where[i, 3]) & high_mask) << up
            first[(codes & six) | ((codes >> two) & next_six)] += one
            codes >>= sixteen
            second[(codes & six) | ((codes >> two) & next_six)] += one
            codes >>= sixteen
            first[(codes & six) | ((codes >> two) & next_six)] += one
            codes >>= sixteen
            second[(codes & six) | ((codes >> two) & next_six)] += one
    for pair in range(4096):
        together = first[pair] + second[pair]
        counts[pair & 63] += together
        counts[pair >> 6] += together


@compiled
def _count_together(records, places, spread, counts):  # type: ignore[no-untyped-def]
    # places (pairs, 4): first bytes of two runs below, first byte of the one above both, length
    # spread (pairs, 256): the bits above of both
    # A byte of the lower plane is counted together with the bits that stand above its fields, in
    # two tables, so that equal neighbours do not wait for each other's sums.
    first, second = np.zeros(4096, np.uint32), np.zeros(4096, np.uint32)
    one, low_half, sixteen = np.uint32(1), np.uint32(0xFFFF), np.uint32(16)
    for row in range(records.shape[0]):
        for i in range(places.shape[0]):
            length = places[i, 3]
            one_run = records[row, places[i, 0] : places[i, 0] + length]
            other_run = records[row, places[i, 1] : places[i, 1] + length]
            above = records[row, places[i, 2] : places[i, 2] + length]
            bits = spread[i]
            for k in range(length):
                both = bits[above[k]]
                first[np.uint32(one_run[k]) | (both & low_half)] += one
                second[np.uint32(other_run[k]) | (both >> sixteen)] += one
    for pattern in range(4096):
        counts[pattern] += first[pattern] + second[pattern]


# byte -> its bits, a byte each, the lowest first
_SPREAD = np.unpackbits(
    np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
).view(np.uint64)[:, 0]  # fmt: skip


def _as_words(records: Array, plane: tuple[int, int, int, int]) -> tuple[Array, Array]:
    """Lay a plane out as words of eight fields.

    ->  words uint64 (n, words), and for each eight elements the word and the shift in it
    """
    start, nbytes, width, run = plane
    own = records[:, start : start + nbytes]
    if run == 1 and width == 1:
        return _SPREAD[own], np.stack([np.arange(nbytes), np.zeros(nbytes, np.int64)], axis=1)
    words = np.ascontiguousarray(own).view(np.uint64)
    chunk, inside = np.divmod(np.arange(nbytes * 8 // width // 8), run // width)
    field, word = np.divmod(inside, run // 8)
    return words, np.stack([chunk * (run // 8) + word, field * width], axis=1)


def _pairs(planes: tuple[tuple[int, int, int, int], ...]) -> tuple[Array, Array] | None:
    """Say which bytes of two planes belong together; None where no run above serves two below.

    ->  int64 (pairs, 4): first bytes of two runs below, first byte of the run above, length
        uint32 (pairs, 256): what stands above the fields of a byte, side by side and shifted by
        eight: for the one run, and 16 bits further up for the other
    """
    (first, nbytes, width, run), (above, _, more, length) = planes
    if run % length or nbytes % (2 * length):
        return None
    fields, patterns = np.arange(8 // width), np.arange(256)[:, None]
    served: list[int] = []
    spread = []
    for start in range(0, nbytes, length):
        chunk, inside = divmod(start, run)
        elements = chunk * run * fields.size + fields * run + inside
        chunks, rest = np.divmod(elements, length * 8 // more)
        if (chunks != chunks[0]).any():
            return None
        served.append(above + int(chunks[0]) * length)
        bits = patterns >> rest // length * more & ((1 << more) - 1)
        spread.append((bits << 8 + more * fields).sum(axis=1))
    if served[::2] != served[1::2]:
        return None
    begins = range(first, first + nbytes, length)
    places = [
        (one, other, high, length)
        for one, other, high in zip(begins[::2], begins[1::2], served[::2], strict=True)
    ]
    both = np.array(spread[::2]) | np.array(spread[1::2]) << 16
    return np.array(places, np.int64), both.astype(np.uint32)


def _apart(together: Array, planes: tuple[tuple[int, int, int, int], ...], counts: Array) -> None:
    """Turn counts of bytes with the bits above their fields into counts of codes."""
    (_, _, width, _), (_, _, more, _) = planes
    patterns = np.arange(together.size)
    for field in range(8 // width):
        low = patterns >> field * width & ((1 << width) - 1)
        high = patterns >> 8 + field * more & ((1 << more) - 1)
        np.add.at(counts, low | high << width, together)


def _count_two(
    records: Array, planes: tuple[tuple[int, int, int, int], ...], counts: Array
) -> None:
    (low, at), (high, above) = (_as_words(records, plane) for plane in planes)
    width, more = planes[0][2], planes[1][2]
    every = 0x0101010101010101
    masks = np.array([every * ((1 << width) - 1), every * ((1 << more) - 1), width], np.uint64)
    where = np.concatenate([at, above], axis=1).astype(np.uint64)
    _count_words(low, high, where, masks, counts)


class PackedCounter:
    """Counts codes over pieces of equal records, without unpacking them into memory.

    Args:
        planes: one, or two of at most six bits together, as `PackedCodes` has them.
    """

    def __init__(self, planes: tuple[tuple[int, int, int, int], ...]) -> None:
        self.planes = planes
        self._pairs = _pairs(planes) if len(planes) == 2 else None
        self._counts = np.zeros(PATTERNS if self._pairs is None else 4096, np.int64)

    def add(self, records: Array) -> None:
        """Count one piece: uint8 (n, bytes of a record)."""
        if self._pairs is not None:
            _count_together(records, *self._pairs, self._counts)
            return
        if len(self.planes) == 2:
            _count_two(records, self.planes, self._counts)
            return
        start, nbytes, _, _ = self.planes[0]
        _count(records, start, start + nbytes, self._counts)

    def into(self, counts: Array) -> None:
        """Add how often each code occurred to int64 (256,)."""
        if self._pairs is not None:
            _apart(self._counts, self.planes, counts)
        elif len(self.planes) == 2:
            counts += self._counts
        else:
            _fold(self._counts, self.planes[0][2], counts)


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
    if isinstance(packed, PackedCodes) and packed.records.size >= _COMPILE_FROM:
        fields = np.zeros(PATTERNS, np.int64)
        counter = PackedCounter(packed.planes)
        counter.add(packed.records)
        counter.into(fields)
        if packed.numbers is None:
            counts += fields
        else:
            counts[packed.numbers.view(np.uint8)] += fields[: packed.numbers.size]
    elif isinstance(packed, PackedCodes) or packed.size < _COMPILE_FROM:
        flat = np.ascontiguousarray(values.codes).view(np.uint8).reshape(-1)
        counts += np.bincount(flat, minlength=PATTERNS)
    else:
        _count(np.ascontiguousarray(packed).view(np.uint8).reshape(1, -1), 0, packed.size, counts)


def _fold(whole: Array, bits: int, counts: Array) -> None:
    """Turn counts of bytes into counts of the fields in them."""
    patterns = np.arange(PATTERNS)
    for shift in range(0, 8, bits):
        np.add.at(counts, patterns >> shift & ((1 << bits) - 1), whole)


# float format -> an unsigned integer of its width, and the bits of its exponent: all set is no
# number
EXPONENTS: dict[str, tuple[type[np.unsignedinteger[Any]], int]] = {
    "float64": (np.uint64, 0x7FF0000000000000),
    "float32": (np.uint32, 0x7F800000),
    "float16": (np.uint16, 0x7C00),
    "bfloat16": (np.uint16, 0x7F80),
}


@compiled
def _count_all_set(patterns, mask):  # type: ignore[no-untyped-def]
    found = 0
    for i in range(patterns.size):
        found += (patterns[i] & mask) == mask
    return found


def count_not_finite(raw: Array, number_format: str) -> int:
    """Count NaN and infinities in the bytes of floats.

    Args:
        raw: uint8, flat, whole numbers.
        number_format: one of EXPONENTS.
    """
    kind, mask = EXPONENTS[number_format]
    patterns = raw.view(kind)
    if raw.size >= _RAW_COMPILE_FROM:
        return int(_count_all_set(patterns, kind(mask)))
    return int(np.count_nonzero((patterns & kind(mask)) == mask))


def number_of(number_format: str) -> Array:
    """Return the integer that each byte pattern stands for: (256,) int64."""
    patterns = np.arange(PATTERNS)
    if number_format.startswith("int"):
        return np.where(patterns > 127, patterns - 256, patterns)
    return patterns
