"""One pass over a tensor that is stored as equal records: codes counted, scales looked at.

Pieces of half a megabyte are read into one buffer and stay in the cache while three loops pass
over them: bytes of codes are counted, scales are worked out from their fields and judged, and
where another tensor may hold the same bytes they are summed up.
"""

from dataclasses import dataclass, field

import numpy as np

from foldmark.compare.tally import PackedCounter
from foldmark.formats.stored import Records
from foldmark.formats.values import Array
from foldmark.kernels.compiled import compiled

__all__ = ["ScaleTally", "add_checksum", "add_scales", "survey_records"]

_PIECE_BYTES = 1 << 19
# Below this many numbers numpy is quick enough, and the compiler need not be woken.
_COMPILE_FROM = 1 << 12


@dataclass
class ScaleTally:
    """What is known of the scales seen so far.

    Attributes:
        counts: int64 (6,): all, zero, subnormal, negative, infinite, NaN.
        ends: float64 (2,): smallest and largest magnitude of those that are usable.
        largest_at: int64 (1,): number of the scale that is the largest, -1 before the first.
        bad_minima: int64 (1,): minima that are NaN or infinite.
    """

    counts: Array = field(default_factory=lambda: np.zeros(6, np.int64))
    ends: Array = field(default_factory=lambda: np.array([np.inf, 0.0]))
    largest_at: Array = field(default_factory=lambda: np.full(1, -1, np.int64))
    bad_minima: Array = field(default_factory=lambda: np.zeros(1, np.int64))

    def append(self, other: "ScaleTally") -> None:
        """Add what is known of the scales that come next; they are numbered on from these."""
        self.ends[0] = min(self.ends[0], other.ends[0])
        if other.ends[1] > self.ends[1]:
            self.ends[1] = other.ends[1]
            self.largest_at[0] = self.counts[0] + other.largest_at[0]
        self.counts += other.counts
        self.bad_minima += other.bad_minima


@compiled
def _judge(patterns, normal, counts, ends):  # type: ignore[no-untyped-def]
    # patterns (n,) uint32 of float32 numbers; without their sign they are in the numbers' order,
    # and integers are counted and compared many at a time
    infinity = np.uint32(0x7F800000)
    none = np.int64(0)
    zero, subnormal, negative, infinite, nan = none, none, none, none, none
    least, most = np.uint32(0xFFFFFFFF), np.uint32(0)
    for i in range(patterns.size):
        size = np.uint32(patterns[i] & np.uint32(0x7FFFFFFF))
        zero += size == 0
        subnormal += size < normal
        infinite += size == infinity
        nan += size > infinity
        negative += (patterns[i] != size) & (size != 0) & (size <= infinity)
        least = min(least, np.uint32(size - np.uint32(1)))  # zero becomes the largest
        most = max(most, size if size < infinity else np.uint32(0))
    counts[0] += patterns.size
    counts[1] += zero
    counts[2] += subnormal - zero
    counts[3] += negative
    counts[4] += infinite
    counts[5] += nan
    ends[0], ends[1] = least, most


@compiled
def _find(patterns, wanted):  # type: ignore[no-untyped-def]
    for i in range(patterns.size):
        if patterns[i] & np.uint32(0x7FFFFFFF) == wanted:
            return i
    return -1


@compiled
def _work_out(records, place, numbers, fields, out):  # type: ignore[no-untyped-def]
    # records (n, bytes) uint8 -> out (n, scales) float32
    # place: the base's first byte and its bytes, what zero is stored as, whether fields are signed
    # One field at a time: where it lies is then known outside the loop over records.
    start, nbytes, bias, signed = place[0], place[1], np.int32(place[2]), place[3]
    count = records.shape[0]
    bases = np.empty(count, np.float32)
    for row in range(count):
        pattern = np.int64(records[row, start])
        if nbytes == 2:
            pattern |= np.int64(records[row, start + 1]) << 8
        bases[row] = numbers[pattern]
    if fields.shape[0] == 0:
        out[:, 0] = bases
    for i in range(fields.shape[0]):
        low, right, mask = fields[i, 0], np.int32(fields[i, 1]), np.int32(fields[i, 2])
        high, above, over = fields[i, 3], np.int32(fields[i, 4]), np.int32(fields[i, 5])
        up = np.int32(fields[i, 6])
        for row in range(count):
            number = (np.int32(records[row, low]) >> right) & mask
            number |= ((np.int32(records[row, high]) >> above) & over) << up
            if signed != 0:
                number = np.int32(np.int8(number))
            out[row, i] = bases[row] * np.float32(number - bias)


@compiled
def _count_bad(records, start, numbers):  # type: ignore[no-untyped-def]
    bad = 0
    for row in range(records.shape[0]):
        pattern = np.int64(records[row, start]) | np.int64(records[row, start + 1]) << 8
        bad += not abs(numbers[pattern]) < np.inf
    return bad


def add_scales(tally: ScaleTally, scales: Array, normal: float) -> None:
    """Add scales to what is known; they are numbered on from those seen before.

    Args:
        tally: added to.
        scales: float32, any shape.
        normal: the smallest normal number of the type that they are stored in.
    """
    flat = np.ascontiguousarray(scales, np.float32).reshape(-1)
    first = int(tally.counts[0])
    if flat.size >= _COMPILE_FROM:
        patterns, ends = flat.view(np.uint32), np.zeros(2, np.uint32)
        _judge(patterns, np.float32(normal).view(np.uint32), tally.counts, ends)
        smallest, largest = (ends + np.array([1, 0], np.uint32)).view(np.float32)
        if 0 < smallest < np.inf:
            tally.ends[0] = min(tally.ends[0], float(smallest))
        if largest > tally.ends[1]:
            tally.ends[1] = largest
            tally.largest_at[0] = first + _find(patterns, ends[1])
        return
    magnitude = np.abs(flat)
    tally.counts += (
        flat.size,
        np.count_nonzero(magnitude == 0),
        np.count_nonzero((magnitude < normal) & (magnitude > 0)),
        np.count_nonzero(flat < 0),
        np.count_nonzero(np.isinf(magnitude)),
        np.count_nonzero(np.isnan(magnitude)),
    )
    usable = magnitude[np.isfinite(magnitude) & (magnitude > 0)]
    if usable.size:
        tally.ends[0] = min(tally.ends[0], float(usable.min()))
        largest = usable.max()
        if largest > tally.ends[1]:
            tally.ends[1] = largest
            tally.largest_at[0] = first + int(np.argmax(magnitude == largest))


def survey_records(
    records: Records, codes: Array, tally: ScaleTally, normal: float, summed: Array | None
) -> None:
    """Read a tensor from end to end.

    Args:
        records: the tensor.
        codes: int64 (256,): how often each code occurs, added to.
        tally: what is known of its scales, added to.
        normal: the smallest normal number of the type that scales are stored in.
        summed: uint64 (4,): a checksum of the bytes, None where nobody asks for one.
    """
    step = max(1, _PIECE_BYTES // records.nbytes)
    where = records.scales
    place = np.array([where.start, where.nbytes, where.bias, where.signed], np.int64)
    counter = PackedCounter(records.planes)
    buffer = np.empty(min(step, records.count) * records.nbytes, np.uint8)
    scales = np.empty((min(step, records.count), max(1, len(records.scales.fields))), np.float32)
    for first in range(0, records.count, step):
        count = min(step, records.count - first)
        raw = buffer[: count * records.nbytes]
        records.source.fill(raw, records.offset + first * records.nbytes, "records")
        piece = raw.reshape(count, records.nbytes)
        counter.add(piece)
        _work_out(piece, place, where.numbers, where.fields, scales[:count])
        add_scales(tally, scales[:count], normal)
        if where.minimum >= 0:
            # 0 times infinity is no number either: all minima of a record are bad with its factor
            bad = _count_bad(piece, where.minimum, where.numbers)
            tally.bad_minima[0] += bad * scales.shape[1]
        if summed is not None:
            add_checksum(raw, summed)
    counter.into(codes)


@compiled
def _mix(words, state):  # type: ignore[no-untyped-def]
    # Four chains, so that one multiplication need not wait for the last.
    a, b, c, d = state[0], state[1], state[2], state[3]
    factor = np.uint64(0x9E3779B97F4A7C15)
    shift = np.uint64(29)
    for i in range(0, words.size // 4 * 4, 4):
        a = (a ^ words[i]) * factor
        b = (b ^ words[i + 1]) * factor
        c = (c ^ words[i + 2]) * factor
        d = (d ^ words[i + 3]) * factor
        a ^= a >> shift
        b ^= b >> shift
        c ^= c >> shift
        d ^= d >> shift
    for i in range(words.size // 4 * 4, words.size):
        a = (a ^ words[i]) * factor
        a ^= a >> shift
    state[0], state[1], state[2], state[3] = a, b, c, d


def add_checksum(raw: Array, state: Array) -> None:
    """Mix a piece of bytes into a checksum of 256 bits: equal pieces in order, equal sums.

    Args:
        raw: uint8, flat.
        state: uint64 (4,), added to.
    """
    whole = raw.size // 8 * 8
    _mix(raw[:whole].view(np.uint64), state)
    if whole < raw.size:
        rest = np.zeros(8, np.uint8)
        rest[: raw.size - whole] = raw[whole:]
        _mix(rest.view(np.uint64), state)
