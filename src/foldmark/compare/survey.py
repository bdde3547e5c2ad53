"""What occurs in a stretch of a tensor: codes, scales and numbers that are none, counted."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from foldmark.compare.extremes import block_extremes, inside, spans_walk
from foldmark.compare.records import ScaleTally, add_checksum, add_scales, survey_records
from foldmark.compare.tally import EXPONENTS, can_tally, count_not_finite, tally
from foldmark.compare.traces import has_ends, merged
from foldmark.errors import NotSupported
from foldmark.formats.stored import Span, StoredTensor
from foldmark.formats.values import Array, Values

__all__ = ["Running", "everything", "in_pieces", "stretches", "survey"]

# Elements read at once: small enough for the cache and for the memory bound, whatever the file.
_PIECE = 1 << 20
_RAW_PIECE = 1 << 19
# Where what is read at once holds more than this, a tensor is read as one axis, or in parts of
# blocks, if it can be; above the second number it is refused.
_LONGEST, _MOST_AT_ONCE = 1 << 22, 1 << 23
# Of more rows their largest elements are not compared.
_MOST_ROWS = 1 << 20
# Bytes that one thread takes at a time of a tensor.
_STRETCH = 1 << 24
# Tensors of fewer bytes are read as values: numpy is quick enough for them.
_SMALL = 1 << 20
# A smallest normal number for each type that a scale is stored in.
_SMALLEST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126}


@dataclass
class Running:
    """Sums over the pieces of a tensor.

    Attributes:
        counts: how often each code occurs.
        scales: what the scales are.
        not_finite: numbers that are NaN or infinite.
        rows, columns: largest magnitude of each, where one scale serves them all; None for
            more rows than are worth keeping.
        ends: lowest and highest code of each block, where blocks reach over all pieces.
    """

    counts: Array = field(default_factory=lambda: np.zeros(256, np.int64))
    scales: ScaleTally = field(default_factory=ScaleTally)
    not_finite: int = 0
    rows: Array | None = None
    columns: Array | None = None
    ends: tuple[Array, Array] | None = None

    def append(self, other: "Running") -> None:
        """Add the sums over the pieces that come next."""
        self.counts += other.counts
        self.scales.append(other.scales)
        self.not_finite += other.not_finite
        if other.columns is not None:
            self.append_lines(other.rows, other.columns)
        if other.ends is not None:
            self.ends = merged(self.ends, other.ends)

    def append_lines(self, rows: Array | None, columns: Array) -> None:
        """Add the largest magnitudes of the next rows, and of all columns over them."""
        if self.columns is None:
            self.rows, self.columns = rows, columns
            return
        if self.rows is not None and rows is not None:
            self.rows = np.concatenate([self.rows, rows])
        self.columns = np.maximum(self.columns, columns)


def in_pieces(tensor: StoredTensor) -> StoredTensor:
    """Return the tensor as one axis, or in parts, where it could else be read only in large ones.

    Raises:
        NotSupported: where its smallest parts are too large for little memory.
    """
    if tensor.at_once <= _LONGEST or _reads_records(tensor) or _is_run_of_floats(tensor):
        return tensor
    small = tensor.unrolled() or tensor.in_parts() or tensor
    looked_at = tensor.layout.is_quantized or tensor.layout.number_format in EXPONENTS
    scales = _scales_beside(small)
    if looked_at and (small.at_once > _MOST_AT_ONCE or scales > _LONGEST):
        raise NotSupported(
            "not supported: a tensor of which little can't be read at a time",
            where=f"{tensor.spans[0].source.path if tensor.spans else ''}: {tensor.name!r}",
            got=f"{small.at_once} elements and {scales} scales in its smallest part",
            expected=f"at most {_MOST_AT_ONCE} and {_LONGEST}",
            todo="read it in Python: foldmark.load(path).find(name).load()",
        )
    return small


def _scales_beside(tensor: StoredTensor) -> int:
    """Return how many scales lie across the walk: as many belong to the smallest part."""
    block = tensor.layout.block or tensor.shape
    sizes = [-(-n // max(1, b)) for n, b in zip(tensor.shape, block, strict=True)]
    return math.prod(size for axis, size in enumerate(sizes) if axis != tensor.walk_axis)


def everything(tensor: StoredTensor) -> tuple[int, int]:
    """Return the ends of what a survey of a whole tensor counts: records, floats or indices."""
    if _reads_records(tensor) and tensor.records is not None:
        return 0, tensor.records.count
    if _is_run_of_floats(tensor):
        return 0, tensor.elements
    return 0, tensor.shape[tensor.walk_axis] if tensor.shape else 1


def stretches(tensor: StoredTensor) -> list[tuple[int, int]]:
    """Cut a tensor into parts of about so many bytes, at places where reading may begin."""
    _, length = everything(tensor)
    whole_numbers = _reads_records(tensor) or _is_run_of_floats(tensor)
    step = 1 if whole_numbers else tensor.walk_step
    count = max(1, tensor.nbytes // _STRETCH)
    size = max(1, -(-length // (count * step))) * step
    return [(start, min(start + size, length)) for start in range(0, length, size)] or [(0, 0)]


def _reads_records(tensor: StoredTensor) -> bool:
    records = tensor.records
    return records is not None and bool(records.planes) and tensor.nbytes >= _SMALL


def _is_run_of_floats(tensor: StoredTensor) -> bool:
    """Say whether a tensor is plain numbers whose order does not matter to who counts NaN."""
    number_format = tensor.layout.number_format
    if tensor.layout.is_quantized or number_format not in EXPONENTS or len(tensor.spans) != 1:
        return False
    return tensor.spans[0].nbytes == tensor.elements * EXPONENTS[number_format][0]().itemsize


def survey(tensor: StoredTensor, first: int, last: int, summed: Array | None) -> Running:
    """Look at one stretch of a tensor.

    Args:
        tensor: where to look.
        first, last: its ends, as `everything` counts them.
        summed: as for `inspect_tensor`.
    """
    running = Running()
    records = tensor.records
    if not tensor.elements:
        return running
    if _reads_records(tensor) and records is not None:
        offset = records.offset + first * records.nbytes
        part = replace(records, offset=offset, count=last - first)
        survey_records(part, running.counts, running.scales, _normal(tensor), summed)
        return running
    if tensor.layout.is_quantized:
        _survey_pieces(running, tensor, first, last)
    elif tensor.layout.number_format in EXPONENTS:
        running.not_finite = _count_not_finite(tensor, first, last)
    if summed is not None:
        _sum_bytes(tensor, summed)
    return running


def _normal(tensor: StoredTensor) -> float:
    return _SMALLEST_NORMAL.get(tensor.layout.scale_format or "", 2.0**-126)


def _survey_pieces(running: Running, tensor: StoredTensor, start: int, stop: int) -> None:
    counted = can_tally(tensor.layout.number_format)
    axis = tensor.walk_axis
    block = tensor.layout.block[axis] if tensor.layout.block and tensor.shape else 1
    # one piece does not show a whole block
    long = spans_walk(tensor) or block > _PIECE or block > max(1, tensor.walk_step)
    for first, values in tensor.pieces(_PIECE, start, stop):
        if counted:
            tally(values, running.counts)
        # a block has one scale in however many pieces it is read, and so has a group whose
        # columns are no neighbours
        fresh = first % max(1, block) == 0 if values.group is None else first == 0
        if values.scale is not None and fresh:
            # in an order that does not depend on how many blocks a piece has
            scales = np.moveaxis(values.scale, axis, 0) if values.scale.ndim else values.scale
            add_scales(running.scales, scales, _normal(tensor))
        if values.offset is not None and fresh:
            bad = values.offset.size - int(np.count_nonzero(np.isfinite(values.offset)))
            running.scales.bad_minima += bad
        if long and first < block and has_ends(tensor.layout, values):
            _add_ends(running, tensor, values)


def _add_ends(running: Running, tensor: StoredTensor, values: Values) -> None:
    """Keep each block's lowest and highest code, and by row and column where all is one block."""
    block, codes = tensor.layout.block or (), values.codes
    if len(tensor.shape) >= 2 and all(b >= n for b, n in zip(block, tensor.shape, strict=True)):
        middle = np.asarray(values.zero_point if values.zero_point is not None else 0).reshape(-1)
        zero = int(middle[0]) if middle.size else 0
        lines = codes.reshape(-1, codes.shape[-1])
        low, high = lines.min(axis=0), lines.max(axis=0)
        columns = _magnitude(low, high, zero)
        rows = None
        if tensor.shape[0] <= _MOST_ROWS:
            flat = codes.reshape(codes.shape[0], -1)
            rows = _magnitude(flat.min(axis=1), flat.max(axis=1), zero)
        running.append_lines(rows, columns)
        one = (1,) * codes.ndim
        ends = low.min().reshape(one), high.max().reshape(one)
    else:
        ends = block_extremes(codes, inside(block, codes.shape))
    running.ends = merged(running.ends, ends)


def _magnitude(low: Array, high: Array, zero: int) -> Array:
    return np.maximum(high.astype(np.int32) - zero, zero - low.astype(np.int32))


def _count_not_finite(tensor: StoredTensor, first: int, last: int) -> int:
    """Count NaN and infinities among plain numbers, read from end to end, shape aside."""
    number_format = tensor.layout.number_format
    if _is_run_of_floats(tensor):
        itemsize, whole = EXPONENTS[number_format][0]().itemsize, tensor.spans[0]
        span = Span(whole.source, whole.offset + first * itemsize, (last - first) * itemsize)
        pieces = _raw_pieces(span, tensor.name)
        return sum(count_not_finite(raw, number_format) for raw in pieces)
    found = 0
    for _, values in tensor.pieces(_PIECE, first, last):
        raw = np.ascontiguousarray(values.codes).reshape(-1).view(np.uint8)
        found += count_not_finite(raw, number_format)
    return found


def _raw_pieces(span: Span, name: str) -> Iterator[Array]:
    """Yield a span's bytes in pieces, each in the same memory as the one before."""
    buffer = np.empty(min(_RAW_PIECE, span.nbytes), np.uint8)
    for start in range(0, span.nbytes, _RAW_PIECE):
        raw = buffer[: min(_RAW_PIECE, span.nbytes - start)]
        span.source.fill(raw, span.offset + start, name)
        yield raw


def _sum_bytes(tensor: StoredTensor, summed: Array) -> None:
    for span in tensor.spans:
        for raw in _raw_pieces(span, tensor.name):
            add_checksum(raw, summed)
