"""GGUF: header, metadata and tensors of ggml's file format, versions 2 and 3.

    "GGUF" | version u32 | tensors u64 | pairs u64
    pairs:   key string | type u32 | value
    tensors: name string | dims u32 | dim u64 ... (fastest first) | type u32 | offset u64
    padding to the alignment, then the tensors' bytes, each aligned

A string is a u64 length and so many bytes; all numbers are little-endian.
Source: the GGUF specification in the ggml repository.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import HostileFile, NotSupported
from foldmark.formats.codebooks import CODEBOOKS
from foldmark.formats.entry import Entry
from foldmark.formats.ggml_blocks import BLOCK_TYPES, BlockType
from foldmark.formats.plain import plain_tensor
from foldmark.formats.source import Cursor, FileBytes
from foldmark.formats.stored import (
    Artefact,
    Records,
    Run,
    Span,
    StoredTensor,
    refuse_overlaps,
)
from foldmark.formats.values import Array, Layout, PackedCodes, Values

__all__ = ["MAGIC", "read_gguf"]

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MAX_NESTING = 4
_STRING, _ARRAY = 8, 9
# The format's own bound for keys; names of tensors stay below it too.
_LONGEST_NAME = (1 << 16) - 1
# Of a longer text its length is given.
_LONGEST_TEXT = 1 << 16
# Pairs and tensors are held in memory, so the two together may take so many bytes; arrays and long
# texts are passed over.
_LONGEST_HEADER = 1 << 25
# What a pair takes in memory beside its text, and how many tensors, which take kilobytes each.
_A_PAIR, _MOST_TENSORS = 100, 1 << 16
# metadata type -> bytes of a value; strings and arrays stand apart
_FIXED_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_FIXED_DTYPES = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4",
    6: "<f4", 7: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
# The least that a pair or a tensor can take: what bounds their announced counts.
_LEAST_PAIR, _LEAST_TENSOR = 8 + 4 + 1, 8 + 4 + 4 + 8
# ggml type number -> number format of tensors without blocks
_PLAIN: dict[int, str] = {
    0: "float32",
    1: "float16",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "float64",
    30: "bfloat16",
}
_UNREAD = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 29: "IQ1_M", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


@dataclass(frozen=True)
class _Entry:
    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


@dataclass
class _Header(Cursor):
    """A cursor that knows how much of what it passed is held in memory.

    Attributes:
        held: bytes of names and texts, each with what a pair or a tensor takes beside it.
    """

    held: int = 0

    def hold(self, nbytes: int) -> None:
        """Count a name or a text.

        Raises:
            NotSupported: where all of them take too much.
        """
        self.held += nbytes + _A_PAIR
        if self.held > _LONGEST_HEADER:
            raise NotSupported(
                "not supported: a GGUF file with so many names and values",
                where=str(self.source.path),
                got=f"more than {_LONGEST_HEADER >> 20} MiB of them",
                expected="less, for they are held in memory",
                todo="split the file with gguf-split",
            )


def read_gguf(path: Path) -> Artefact:
    """Read a GGUF file's header; tensors are read when asked for.

    Raises:
        TruncatedFile, HostileFile: a header that promises what the file doesn't hold.
        NotSupported: another version, or a block type without a reader.
    """
    source = FileBytes(path)
    cursor = _Header(source)
    cursor.skip(4, "magic")
    version = cursor.unsigned(4, "version")
    if version not in _VERSIONS:
        raise NotSupported(
            "not supported: GGUF version", where=str(path), got=str(version), expected="2 or 3"
        )
    tensors, pairs = cursor.unsigned(8, "tensor count"), cursor.unsigned(8, "pair count")
    _refuse_count(cursor, tensors * _LEAST_TENSOR + pairs * _LEAST_PAIR, "tensors and pairs")
    if tensors > _MOST_TENSORS:
        raise NotSupported(
            "not supported: a GGUF file of so many tensors",
            where=str(path),
            got=str(tensors),
            expected=f"at most {_MOST_TENSORS}, for what they are is held in memory",
            todo="split the file with gguf-split",
        )
    metadata = _read_pairs(cursor, pairs)
    entries = [_read_entry(cursor) for _ in range(tensors)]
    alignment = _alignment(metadata, str(path))
    start = math.ceil(cursor.position / alignment) * alignment
    stored = tuple(_stored(source, start, alignment, entry) for entry in entries)
    _refuse_duplicates([entry.name for entry in entries], str(path))
    refuse_overlaps(
        [(span.offset, span.nbytes, tensor.name) for tensor in stored for span in tensor.spans],
        str(path),
    )
    return Artefact(path, "GGUF", (source,), stored, cursor.position, metadata)


def _refuse_count(cursor: Cursor, least_bytes: int, what: str) -> None:
    if least_bytes > cursor.left:
        raise HostileFile(
            f"the header announces more {what} than the file can hold",
            where=str(cursor.source.path),
            got=f"at least {least_bytes} bytes of them",
            expected=f"at most {cursor.left}",
        )


def _read_pairs(cursor: _Header, count: int) -> dict[str, str]:
    metadata: dict[str, str] = {}
    for _ in range(count):
        key = _name(cursor, "metadata key")
        if key in metadata:
            raise HostileFile(
                "a metadata key stands twice", where=str(cursor.source.path), got=repr(key)
            )
        metadata[key] = _value(cursor, cursor.unsigned(4, f"type of {key!r}"), key, 0)
    return metadata


def _name(cursor: _Header, what: str) -> str:
    length = cursor.unsigned(8, f"length of a {what}")
    if length > _LONGEST_NAME:
        raise HostileFile(
            f"a {what} is too long",
            where=str(cursor.source.path),
            got=f"{length} bytes",
            expected=f"at most {_LONGEST_NAME}",
        )
    cursor.hold(length)
    return cursor.take(length, what).decode("utf-8", "backslashreplace")


def _text(cursor: _Header, what: str) -> str:
    length = cursor.unsigned(8, f"length of a {what}")
    if length > _LONGEST_TEXT:
        cursor.skip(length, what)
        return f"[{length} bytes]"
    cursor.hold(length)
    return cursor.take(length, what).decode("utf-8", "backslashreplace")


def _value(cursor: _Header, kind: int, key: str, depth: int) -> str:
    """Read one value as text; arrays and long texts are summed up: a vocabulary costs little."""
    if kind == _STRING:
        return _text(cursor, f"value of {key!r}")
    if kind == _ARRAY:
        return _array(cursor, key, depth)
    if kind not in _FIXED_BYTES:
        raise HostileFile(
            f"unknown type of metadata {key!r}", where=str(cursor.source.path), got=str(kind)
        )
    raw = cursor.take(_FIXED_BYTES[kind], f"value of {key!r}")
    number = np.frombuffer(raw, _FIXED_DTYPES[kind])[0]
    return str(bool(number)) if kind == 7 else str(number)


def _array(cursor: _Header, key: str, depth: int) -> str:
    kind, count = cursor.unsigned(4, f"type in {key!r}"), cursor.unsigned(8, f"length of {key!r}")
    if depth >= _MAX_NESTING:
        raise HostileFile(f"metadata {key!r} is nested too deep", where=str(cursor.source.path))
    if kind in _FIXED_BYTES:
        cursor.skip(count * _FIXED_BYTES[kind], f"values of {key!r}")
        return f"[{count} numbers]"
    _refuse_count(cursor, count * 8, f"values of {key!r}")
    for _ in range(count):
        if kind == _STRING:
            cursor.skip(cursor.unsigned(8, f"length in {key!r}"), f"a string of {key!r}")
        else:
            _value(cursor, kind, key, depth + 1)
    return f"[{count} strings]" if kind == _STRING else f"[{count} values]"


def _alignment(metadata: dict[str, str], where: str) -> int:
    text = metadata.get("general.alignment", str(_DEFAULT_ALIGNMENT))
    alignment = int(text) if text.isdigit() else 0
    if not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise HostileFile("general.alignment is not a power of two", where=where, got=text[:20])
    return alignment


def _read_entry(cursor: _Header) -> _Entry:
    name = _name(cursor, "tensor name")
    rank = cursor.unsigned(4, f"rank of {name!r}")
    if rank > _MAX_DIMENSIONS:
        raise HostileFile(
            f"tensor {name!r} has too many axes",
            where=str(cursor.source.path),
            got=str(rank),
            expected=f"at most {_MAX_DIMENSIONS}",
        )
    dims = [cursor.unsigned(8, f"shape of {name!r}") for _ in range(rank)]
    kind, offset = cursor.unsigned(4, f"type of {name!r}"), cursor.unsigned(8, "offset")
    return _Entry(name, tuple(reversed(dims)), kind, offset)


def _refuse_duplicates(names: list[str], where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise HostileFile("a tensor name stands twice", where=where, got=repr(name))
        seen.add(name)


def _stored(source: FileBytes, start: int, alignment: int, entry: _Entry) -> StoredTensor:
    offset = start + entry.offset
    if entry.offset % alignment:
        raise HostileFile(
            f"tensor {entry.name!r} is not aligned", where=str(source.path), got=str(entry.offset)
        )
    if entry.type_id in _PLAIN:
        return plain_tensor(Entry(entry.name, _PLAIN[entry.type_id], entry.shape, source, offset))
    if entry.type_id not in BLOCK_TYPES:
        name = _UNREAD.get(entry.type_id, f"type {entry.type_id}")
        raise NotSupported(
            f"not supported: ggml block type {name}", where=f"{source.path}: tensor {entry.name!r}"
        )
    return _blocked(source, entry, BLOCK_TYPES[entry.type_id], offset)


def _blocked(source: FileBytes, entry: _Entry, kind: BlockType, offset: int) -> StoredTensor:
    columns = entry.shape[-1] if entry.shape else 0
    if columns % kind.elements or not entry.shape:
        raise HostileFile(
            f"rows of {entry.name!r} are not whole blocks",
            where=str(source.path),
            got=f"{columns} elements",
            expected=f"a multiple of {kind.elements} ({kind.name})",
        )
    blocks = math.prod(entry.shape) // kind.elements
    source.check(offset, blocks * kind.nbytes, f"tensor {entry.name!r}")
    across = math.prod(entry.shape[1:])

    def run(first: int, last: int, shape: tuple[int, ...] | None = None) -> Values:
        skip, count = first // kind.elements, -(-(last - first) // kind.elements)
        raw = source.array(
            np.uint8, offset + skip * kind.nbytes, count * kind.nbytes, f"tensor {entry.name!r}"
        )
        return _decode(kind, raw.reshape(count, kind.nbytes), shape or (last - first,))

    def read(first: int, last: int) -> Values:
        return run(first * across, last * across, (last - first, *entry.shape[1:]))

    zero_point = f"at {kind.zero_point}" if kind.zero_point else "none"
    layout = Layout(
        kind.number_format,
        (*(1 for _ in entry.shape[:-1]), kind.group),
        kind.scale_format,
        "real" if kind.minimum_bytes else zero_point,
        kind.name,
    )
    planes = tuple((p.start, p.nbytes, p.width, p.run) for p in kind.planes)

    def decode(raw: Array) -> Values:
        return _decode(kind, raw, (len(raw), kind.elements))

    records = Records(
        source, offset, blocks, kind.nbytes, kind.elements, planes, kind.scale_fields(), decode
    )
    return StoredTensor(
        entry.name,
        entry.shape,
        layout,
        (Span(source, offset, blocks * kind.nbytes),),
        kind.parts(blocks),
        read,
        walk_step=kind.elements if len(entry.shape) == 1 else 1,
        records=records,
        run=Run(kind.group, run) if kind.group == kind.elements else None,
    )


def _decode(kind: BlockType, blocks: NDArray[np.uint8], shape: tuple[int, ...]) -> Values:
    with np.errstate(invalid="ignore"):  # infinity times 0: told of where scales are judged
        scales = kind.scales(blocks)
    per_group = (*shape[:-1], shape[-1] // kind.group)
    return Values(
        _codes(kind, blocks, shape),
        (*(1 for _ in shape[:-1]), kind.group),
        scales.scale.reshape(per_group),
        np.array(kind.zero_point, np.int32) if kind.zero_point else None,
        None if scales.offset is None else scales.offset.reshape(per_group),
        CODEBOOKS.get(kind.number_format),
    )


def _codes(
    kind: BlockType, blocks: NDArray[np.uint8], shape: tuple[int, ...]
) -> Array | PackedCodes:
    def unpack() -> Array:
        return kind.codes(blocks).reshape(shape)

    if not kind.planes:
        return unpack()
    planes = tuple((p.start, p.nbytes, p.width, p.run) for p in kind.planes)
    return PackedCodes(blocks, planes, unpack)
