"""TFLite (LiteRT): the constants of a model, int8 and int4 with their scales among them.

A tensor carries scales, zero points and the axis they run along; its bytes lie in a buffer,
inside the flatbuffer or, in large models, behind it.
    value = scale * (code - zero_point)
Source: the TFLite schema.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from foldmark.errors import HostileFile, NotSupported
from foldmark.formats.bitfields import unpack_fields
from foldmark.formats.flatbuffer import Table, Vector, root
from foldmark.formats.plain import part_of
from foldmark.formats.source import FileBytes
from foldmark.formats.stored import Array, Artefact, Layout, Part, Span, StoredTensor, Values

__all__ = ["read_tflite"]

# type number -> (number format, dtype of the bytes, bits of an element)
_TYPES: Mapping[int, tuple[str, np.dtype[np.generic], int]] = {
    0: ("float32", np.dtype(np.float32), 32),
    1: ("float16", np.dtype(np.float16), 16),
    2: ("int32", np.dtype(np.int32), 32),
    3: ("uint8", np.dtype(np.uint8), 8),
    4: ("int64", np.dtype(np.int64), 64),
    6: ("bool", np.dtype(np.bool_), 8),
    7: ("int16", np.dtype(np.int16), 16),
    9: ("int8", np.dtype(np.int8), 8),
    10: ("float64", np.dtype(np.float64), 64),
    12: ("uint64", np.dtype(np.uint64), 64),
    15: ("uint32", np.dtype(np.uint32), 32),
    16: ("uint16", np.dtype(np.uint16), 16),
    17: ("int4", np.dtype(np.uint8), 4),
    18: ("bfloat16", np.dtype(ml_dtypes.bfloat16), 16),
}
_NOT_NUMBERS = {5: "strings", 13: "resources", 14: "variants"}
_BLOCKWISE = 2
# A tensor takes a place in its subgraph's list, and a table that points to its fields.
_LEAST_TENSOR = 8


def read_tflite(path: Path) -> Artefact:
    """Read a model's tables; constants are read when asked for.

    Raises:
        TruncatedFile, HostileFile: tables or buffers outside the file.
        NotSupported: a type of tensor without a reader.
    """
    source = FileBytes(path)
    model = root(source)
    buffers = list(model.tables(4))
    tensors: list[StoredTensor] = []
    counted: set[int] = set()
    seen = 0
    for subgraph in model.tables(2):
        for table in subgraph.tables(0):
            seen += 1
            if seen > source.size // _LEAST_TENSOR:  # many subgraphs may point to the same tensors
                raise HostileFile("more tensors than the file can hold", where=str(path))
            number = table.unsigned(2, 4)
            if number >= len(buffers):
                raise HostileFile("a tensor names a buffer that is not there", where=str(path))
            data = _bytes_of(source, buffers[number])
            if data.count:
                shared = number in counted
                tensors.append(_stored(source, table, data, shared))
                counted.add(number)
    inside = sum(tensor.nbytes for tensor in tensors)
    description = {"description": model.text(3), "version": str(model.unsigned(0, 4))}
    return Artefact(path, "TFLite", (source,), tuple(tensors), source.size - inside, description)


def _bytes_of(source: FileBytes, buffer: Table) -> Vector:
    inner = buffer.vector(0, 1)
    if inner is not None and inner.count:
        return inner
    offset, size = buffer.unsigned(1, 8), buffer.unsigned(2, 8)
    if offset <= 1:  # a model that fits writes 0 or 1 here
        return Vector(source, 0, 0)
    source.check(offset, size, "buffer")
    return Vector(source, offset, size)


@dataclass(frozen=True, eq=False)
class _Scales:
    scale: Array
    zero_point: Array
    axis: int

    @property
    def nbytes(self) -> int:
        return self.scale.nbytes + self.zero_point.nbytes


def _scales(table: Table, name: str) -> _Scales | None:
    quantization = table.table(4)
    if quantization is None:
        return None
    if quantization.unsigned(4, 1) == _BLOCKWISE:
        raise NotSupported(
            "not supported: blockwise scales in TFLite",
            where=f"{table.source.path}: tensor {name!r}",
        )
    scale, zero_point = quantization.vector(2, 4), quantization.vector(3, 8)
    if scale is None or not scale.count:
        return None
    zeros = zero_point.items("<i8") if zero_point is not None else np.zeros(0, np.int64)
    return _Scales(scale.items("<f4"), zeros, quantization.unsigned(6, 4))


def _stored(source: FileBytes, table: Table, data: Vector, shared: bool) -> StoredTensor:
    name, where = table.text(3), str(source.path)
    number = table.unsigned(1, 1)
    if number not in _TYPES:
        kind = _NOT_NUMBERS.get(number, f"type {number}")
        raise NotSupported(f"not supported: TFLite {kind}", where=f"{where}: tensor {name!r}")
    number_format, dtype, bits = _TYPES[number]
    dims = table.vector(0, 4)
    shape = tuple(int(n) for n in dims.items("<i4")) if dims is not None else ()
    if min(shape, default=1) < 0 or -(-math.prod(shape) * bits // 8) != data.count:
        raise HostileFile(
            f"tensor {name!r} does not hold what its shape says",
            where=where,
            got=f"{data.count} bytes for {list(shape)} of {number_format}",
        )
    scales = _scales(table, name)
    block = None if scales is None else _block(scales, shape, f"{where}: tensor {name!r}")
    rows = _Rows(source, data.offset, shape, dtype, bits)
    parts = {Part.CODES if scales is not None else part_of(number_format): data.count}
    if scales is not None:
        parts[Part.SCALES] = scales.scale.nbytes
        parts[Part.ZERO_POINTS] = scales.zero_point.nbytes
    if shared:
        parts = {}

    def read(first: int, last: int) -> Values:
        codes = rows.read(first, last)
        if scales is None or block is None:
            return Values(codes)
        return Values(
            codes,
            block,
            _along(scales.scale, scales.axis, (first, last), shape),
            _along(scales.zero_point.astype(np.int32), scales.axis, (first, last), shape)
            if scales.zero_point.size
            else None,
        )

    layout = Layout(
        number_format,
        block,
        None if scales is None else "float32",
        "stored" if scales is not None and scales.zero_point.any() else "none",
        "TFLite" if scales is not None else "plain",
    )
    return StoredTensor(name, shape, layout, (Span(source, data.offset, data.count),), parts, read)


def _block(scales: _Scales, shape: tuple[int, ...], where: str) -> tuple[int, ...]:
    count = scales.scale.size
    whole = tuple(max(1, n) for n in shape)
    if scales.zero_point.size not in (0, 1, count):
        raise HostileFile("as many zero points as scales are needed", where=where)
    if count == 1:
        return whole
    if scales.axis >= len(shape) or shape[scales.axis] != count:
        raise HostileFile(
            "the scales do not fit the tensor",
            where=where,
            got=f"{count} along axis {scales.axis} of {list(shape)}",
        )
    return tuple(1 if axis == scales.axis else n for axis, n in enumerate(whole))


def _along(items: Array, axis: int, rows: tuple[int, int], shape: tuple[int, ...]) -> Array:
    if items.size == 1:
        return items.reshape((1,) * len(shape))
    kept = items[rows[0] : rows[1]] if axis == 0 else items
    return kept.reshape([-1 if i == axis else 1 for i in range(len(shape))])


@dataclass(frozen=True, eq=False)
class _Rows:
    """Elements of a tensor in C order, whole bytes or two to a byte."""

    source: FileBytes
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    bits: int

    def read(self, first: int, last: int) -> Array:
        across = math.prod(self.shape[1:])
        rows = (last - first, *self.shape[1:]) if self.shape else ()
        start, stop = first * across, last * across
        if self.bits >= 8:
            size = self.bits // 8
            items = self.source.array(self.dtype, self.offset + start * size, stop - start, "data")
            return items.reshape(rows)
        begin = start // 2
        raw = self.source.array(np.uint8, self.offset + begin, -(-stop // 2) - begin, "data")
        fields = unpack_fields(raw, 4)[start - 2 * begin :][: stop - start]
        return ((fields ^ 8).astype(np.int8) - np.int8(8)).reshape(rows)
