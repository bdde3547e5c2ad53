"""TFLite (LiteRT): the constants of a model, int8 and int4 with their scales among them.

A tensor carries scales, zero points and the axis they run along; its bytes lie in a buffer,
inside the flatbuffer or, in large models, behind it.
    value = scale * (code - zero_point)
Source: the TFLite schema.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from foldmark.errors import HostileFile, NotSupported
from foldmark.formats.activations import StoredActivation
from foldmark.formats.entry import Entry
from foldmark.formats.flatbuffer import Table, Vector, root
from foldmark.formats.plain import plain_tensor
from foldmark.formats.scaled_blocks import Held, ScaledBlocks
from foldmark.formats.source import FileBytes
from foldmark.formats.stored import Artefact, Part, StoredTensor
from foldmark.formats.values import Array, Layout

__all__ = ["read_tflite"]

# type number -> number format
_TYPES: Mapping[int, str] = {
    0: "float32",
    1: "float16",
    2: "int32",
    3: "uint8",
    4: "int64",
    6: "bool",
    7: "int16",
    9: "int8",
    10: "float64",
    12: "uint64",
    15: "uint32",
    16: "uint16",
    17: "int4",
    18: "bfloat16",
}
_NOT_NUMBERS = {5: "strings", 13: "resources", 14: "variants"}
_BLOCKWISE = 2
_MOST_BUFFERS = 1 << 17
# A tensor takes a place in its subgraph's list, and a table that points to its fields.
_LEAST_TENSOR = 8


def read_tflite(path: Path) -> Artefact:
    """Read a model's tables; constants are read when asked for.

    Raises:
        TruncatedFile, HostileFile: tables or buffers outside the file.
        NotSupported: a type of tensor without a reader, or very many buffers.
    """
    source = FileBytes(path)
    model = root(source)
    listed = model.vector(4, 4)
    if listed is not None and listed.count > _MOST_BUFFERS:
        raise NotSupported(
            "not supported: a TFLite model of so many buffers",
            where=str(path),
            got=str(listed.count),
            expected=f"at most {_MOST_BUFFERS}, for what points to them is held in memory",
        )
    buffers = list(model.tables(4))
    tensors: list[StoredTensor] = []
    activations: list[StoredActivation] = []
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
            else:
                activations += _activation(table)
    inside = sum(tensor.nbytes for tensor in tensors)
    description = {"description": model.text(3), "version": str(model.unsigned(0, 4))}
    return Artefact(
        path,
        "TFLite",
        (source,),
        tuple(tensors),
        source.size - inside,
        description,
        activations=tuple(activations),
    )


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


def _activation(table: Table) -> list[StoredActivation]:
    """Return what a tensor without bytes is: one value with scales, or nothing."""
    name = table.text(3)
    scales = _scales(table, name)
    if scales is None:
        return []
    zeros = scales.zero_point.astype(np.float32)
    number_format = _TYPES.get(table.unsigned(1, 1), "")
    return [StoredActivation(name, number_format, scales.scale, zeros if zeros.any() else None)]


def _stored(source: FileBytes, table: Table, data: Vector, shared: bool) -> StoredTensor:
    name, where = table.text(3), str(source.path)
    number = table.unsigned(1, 1)
    if number not in _TYPES:
        kind = _NOT_NUMBERS.get(number, f"type {number}")
        raise NotSupported(f"not supported: TFLite {kind}", where=f"{where}: tensor {name!r}")
    number_format = _TYPES[number]
    dims = table.vector(0, 4)
    shape = tuple(int(n) for n in dims.items("<i4")) if dims is not None else ()
    codes = Entry(name, number_format, shape, source, data.offset)
    if min(shape, default=1) < 0 or codes.nbytes != data.count:
        raise HostileFile(
            f"tensor {name!r} does not hold what its shape says",
            where=where,
            got=f"{data.count} bytes for {list(shape)} of {number_format}",
        )
    scales = _scales(table, name)
    if scales is None:
        plain = plain_tensor(codes)
        return replace(plain, parts={}) if shared else plain
    block = _block(scales, shape, f"{where}: tensor {name!r}")
    parts = {
        Part.CODES: data.count,
        Part.SCALES: scales.scale.nbytes,
        Part.ZERO_POINTS: scales.zero_point.nbytes,
    }
    zeros = Held(scales.zero_point) if scales.zero_point.size else None
    blocks = ScaledBlocks(codes, Held(scales.scale), zeros, shape, block)
    layout = Layout(
        number_format,
        block,
        "float32",
        "stored" if scales.zero_point.any() else "none",
        "TFLite",
    )
    return blocks.tensor(name, layout, (codes.span,), {} if shared else parts)


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
