"""Core ML packages: X.mlpackage, a folder of a description and a file of weights.

    X.mlpackage/Manifest.json                    which file is the model
    X.mlpackage/Data/.../model.mlmodel           protobuf: the operations of an ML program
    X.mlpackage/Data/.../weights/weight.bin      blobs, each behind a header of 64 bytes:
        magic u32 0xDEADBEEF | type u32 | bytes u64 | place of the first byte u64 | zeros

A compressed weight is an operation over blobs:
    constexpr_blockwise_shift_scale   value = scale * (code - offset), blocks along every axis
    constexpr_affine_dequantize       the same, one scale in all or one for each index of an axis
    constexpr_lut_to_dense            value = table[code]

The description is read with the message types of Apple's own package.
Source: the MIL specification in coremltools; tested against its decompression.
"""

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from foldmark.errors import FileUnreadable, HostileFile, MissingExtra, NotSupported
from foldmark.formats.bitfields import unpack_fields
from foldmark.formats.plain import part_of
from foldmark.formats.scaled_blocks import ScaledBlocks
from foldmark.formats.source import FileBytes
from foldmark.formats.stored import Artefact, Part, Run, Span, StoredTensor
from foldmark.formats.values import Array, Layout, Values

__all__ = ["read_coreml"]

_MAGIC, _BLOB_HEADER = 0xDEADBEEF, 64
_LONGEST_MANIFEST, _LONGEST_MODEL = 1 << 20, 1 << 24
_HERE = "@model_path/"
# data type of MIL -> (number format, dtype of the bytes, bits of an element)
_TYPES: dict[int, tuple[str, np.dtype[np.generic], int]] = {
    1: ("bool", np.dtype(np.bool_), 8),
    10: ("float16", np.dtype(np.float16), 16),
    11: ("float32", np.dtype(np.float32), 32),
    12: ("float64", np.dtype(np.float64), 64),
    13: ("bfloat16", np.dtype(ml_dtypes.bfloat16), 16),
    21: ("int8", np.dtype(np.int8), 8),
    22: ("int16", np.dtype(np.int16), 16),
    23: ("int32", np.dtype(np.int32), 32),
    24: ("int64", np.dtype(np.int64), 64),
    25: ("int4", np.dtype(np.uint8), 4),
    31: ("uint8", np.dtype(np.uint8), 8),
    32: ("uint16", np.dtype(np.uint16), 16),
    33: ("uint32", np.dtype(np.uint32), 32),
    34: ("uint64", np.dtype(np.uint64), 64),
    35: ("uint4", np.dtype(np.uint8), 4),
    36: ("uint2", np.dtype(np.uint8), 2),
    37: ("uint1", np.dtype(np.uint8), 1),
    38: ("uint6", np.dtype(np.uint8), 6),
    39: ("uint3", np.dtype(np.uint8), 3),
}

# list of numbers in the description -> what its items are
_HELD = {
    "floats": np.float32,
    "doubles": np.float64,
    "ints": np.int32,
    "longInts": np.int64,
    "bools": np.bool_,
}


def read_coreml(path: Path) -> Artefact:
    """Read a package's description; weights are read when asked for.

    Raises:
        MissingExtra: coremltools is not installed.
        FileUnreadable, TruncatedFile, HostileFile: files that are missing or contradict each other.
        NotSupported: a model that is no ML program, a compression without a reader, or numbers
            of more than 16 MiB in the description.
    """
    messages = _import_messages(path)
    manifest = FileBytes(path / "Manifest.json")
    model = FileBytes(_inside(path / "Data", _model_name(manifest), str(path)))
    if model.size > _LONGEST_MODEL:
        raise NotSupported(
            "not supported: a Core ML description that is large without its weights",
            where=str(model.path),
            got=f"{model.size} bytes",
            expected=f"at most {_LONGEST_MODEL}, for it is held in memory",
            todo="save the package again with coremltools, which puts weights into weight.bin",
        )
    specification = messages.Model()
    try:
        specification.ParseFromString(model.read(0, model.size, "description"))
    except Exception as fault:  # the parser's own error, whose place differs by its version
        raise HostileFile("the description is damaged", where=str(model.path)) from fault
    kind = specification.WhichOneof("Type") or "nothing"
    if kind != "mlProgram":
        raise NotSupported(
            f"not supported: Core ML {kind}", where=str(path), todo="convert it to an ML program"
        )
    blobs = _Blobs(model.path.parent, str(path))
    operations = _operations(specification.mlProgram)
    tensors = [found for one in operations for found in _tensors(one, blobs)]
    files = (model, manifest, *blobs.files.values())
    version = {"specification": str(specification.specificationVersion)}
    return Artefact(path, "Core ML", files, tuple(tensors), model.size + manifest.size, version)


def _import_messages(path: Path) -> Any:
    """Import the message types alone: the whole package brings PyTorch along, 400 MB of memory."""
    name = "foldmark_coreml_messages"
    found = find_spec("coremltools")
    if found is not None and name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [f"{place}/proto" for place in found.submodule_search_locations or ()]
        sys.modules[name] = package
    try:
        return import_module(f"{name}.Model_pb2")
    except ImportError as fault:
        raise MissingExtra(
            "reading Core ML packages needs coremltools",
            where=str(path),
            todo='install it: pip install "foldmark[coreml]"',
        ) from fault


def _model_name(manifest: FileBytes) -> str:
    where = str(manifest.path)
    if manifest.size > _LONGEST_MANIFEST:
        raise HostileFile("the manifest is too long", where=where, got=str(manifest.size))
    try:
        stated = json.loads(manifest.read(0, manifest.size, "manifest"))
        name = stated["itemInfoEntries"][stated["rootModelIdentifier"]]["path"]
    except (ValueError, KeyError, TypeError, RecursionError) as fault:
        raise HostileFile("the manifest does not name a model", where=where) from fault
    if not isinstance(name, str):
        raise HostileFile("the manifest does not name a model", where=where, got=repr(name)[:40])
    return name


def _inside(folder: Path, name: str, where: str) -> Path:
    """Return a file of the package; links are followed, and must not lead out."""
    parts = PurePosixPath(name).parts
    if not parts or "\0" in name or ".." in parts or PurePosixPath(name).is_absolute():
        raise HostileFile("a file outside the package", where=where, got=repr(name[:80]))
    try:
        place = (folder / name).resolve()
        inside = place.is_relative_to(folder.resolve())
    except (OSError, RuntimeError) as fault:  # a loop of links, a name too long
        raise FileUnreadable("can't be reached", where=where, got=repr(name[:80])) from fault
    if not inside:
        raise HostileFile("a link out of the package", where=where, got=repr(name[:80]))
    return place


@dataclass(frozen=True, eq=False)
class _Constant:
    """Numbers of a blob, or those that stand in the description itself."""

    shape: tuple[int, ...]
    number_format: str
    dtype: np.dtype[np.generic]
    bits: int
    span: Span | None
    inline: Array | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def read(self, first: int, last: int) -> Array:
        """Read elements first..last in C order."""
        if self.span is None:
            assert self.inline is not None
            return self.inline.reshape(-1)[first:last]
        source, offset = self.span.source, self.span.offset
        if self.bits >= 8:
            place = offset + first * self.bits // 8
            return source.array(self.dtype, place, last - first, "blob")
        start = first // 8 * 8  # eight elements are whole bytes, whatever their width
        begin, end = start * self.bits // 8, -(-last * self.bits // 8)
        fields = unpack_fields(
            source.array(np.uint8, offset + begin, end - begin, "blob"), self.bits
        )
        return _signed(fields[first - start : last - start], self.number_format)

    def stored(self, first: int, last: int, shape: tuple[int, ...]) -> Array:
        """Read elements first..last in C order."""
        return self.read(first, last).reshape(shape)

    def load(self) -> Array:
        """Read everything."""
        return self.read(0, self.elements).reshape(self.shape)


def _signed(fields: Array, number_format: str) -> Array:
    return (fields ^ 8).astype(np.int8) - np.int8(8) if number_format == "int4" else fields


@dataclass
class _Blobs:
    """The files of weights, each opened once, and the spans whose bytes are counted already."""

    folder: Path
    where: str
    files: dict[str, FileBytes] = field(default_factory=dict)
    counted: set[tuple[str, int]] = field(default_factory=set)

    def constant(self, value: Any, name: str) -> _Constant | None:
        """Return what a value holds; None for strings and the like.

        Raises:
            HostileFile, TruncatedFile: a blob that does not hold what the type says.
        """
        kind = value.type.tensorType
        if value.type.WhichOneof("type") != "tensorType" or kind.dataType not in _TYPES:
            return None
        shape = tuple(int(axis.constant.size) for axis in kind.dimensions)
        number_format, dtype, bits = _TYPES[kind.dataType]
        if value.WhichOneof("value") == "blobFileValue":
            nbytes = -(-math.prod(shape) * bits // 8)
            span = self._span(value.blobFileValue, nbytes, name)
            return _Constant(shape, number_format, dtype, bits, span)
        inline = _immediate(value.immediateValue.tensor, dtype, number_format, math.prod(shape))
        if inline is None:
            raise HostileFile(f"constant {name!r} can't be read", where=self.where)
        return _Constant(shape, number_format, dtype, bits, None, inline.reshape(shape))

    def _span(self, place: Any, nbytes: int, name: str) -> Span:
        if place.fileName not in self.files:
            if not place.fileName.startswith(_HERE):
                raise HostileFile(
                    "weights outside the package", where=self.where, got=repr(place.fileName[:80])
                )
            file = _inside(self.folder, place.fileName.removeprefix(_HERE), self.where)
            self.files[place.fileName] = FileBytes(file)
        source, at = self.files[place.fileName], int(place.offset)
        header = source.array("<u8", at, _BLOB_HEADER // 8, f"blob of {name!r}")
        stated, offset = int(header[1]), int(header[2])
        if int(header[0]) & 0xFFFFFFFF != _MAGIC or stated != nbytes:
            raise HostileFile(
                f"the blob of {name!r} does not hold what its type says",
                where=str(source.path),
                got=f"{stated} bytes",
                expected=f"{nbytes}",
            )
        source.check(offset, nbytes, f"blob of {name!r}")
        return Span(source, offset, nbytes)

    def parts(self, roles: dict[Part, _Constant | None]) -> dict[Part, int]:
        """Count each blob once: operations may share one."""
        counted = {}
        for part, constant in roles.items():
            if constant is not None and constant.span is not None:
                place = (str(constant.span.source.path), constant.span.offset)
                counted[part] = 0 if place in self.counted else constant.span.nbytes
                self.counted.add(place)
        return counted


def _immediate(
    tensor: Any, dtype: np.dtype[np.generic], number_format: str, count: int
) -> Array | None:
    kind = tensor.WhichOneof("value")
    if kind == "bytes":
        raw = np.frombuffer(tensor.bytes.values, np.uint8)
        if number_format in ("int4", "uint4", "uint2", "uint1", "uint6", "uint3"):
            bits = int(number_format.lstrip("uint"))
            fields = unpack_fields(raw, bits)[:count]
            return _signed(fields, number_format) if fields.size == count else None
        return raw.view(dtype) if raw.size == count * dtype.itemsize else None
    if kind not in _HELD:
        return None
    held = getattr(tensor, kind).values
    if len(held) != count:
        return None
    return np.fromiter(held, _HELD[kind], count).astype(dtype)


@dataclass(frozen=True, eq=False)
class _Operation:
    kind: str
    name: str
    values: dict[str, Any]


def _operations(program: Any) -> Iterator[_Operation]:
    for function in program.functions.values():
        for block in function.block_specializations.values():
            yield from _of_block(block)


def _of_block(block: Any) -> Iterator[_Operation]:
    for one in block.operations:
        name = one.outputs[0].name if one.outputs else ""
        values = dict(one.attributes)
        for key, stated in one.inputs.items():
            if stated.arguments and stated.arguments[0].WhichOneof("binding") == "value":
                values[key] = stated.arguments[0].value
        yield _Operation(one.type, name, values)
        for inner in one.blocks:
            yield from _of_block(inner)


def _tensors(one: _Operation, blobs: _Blobs) -> Iterator[StoredTensor]:
    def constant(key: str) -> _Constant | None:
        return blobs.constant(one.values[key], one.name) if key in one.values else None

    if one.kind in ("const", "constexpr_cast"):
        plain = constant("val" if one.kind == "const" else "source_val")
        if plain is not None and plain.span is not None:
            yield _plain(one.name, plain, blobs)
    elif one.kind in ("constexpr_blockwise_shift_scale", "constexpr_affine_dequantize"):
        blockwise = one.kind == "constexpr_blockwise_shift_scale"
        keys = (
            ("data", "scale", "offset") if blockwise else ("quantized_data", "scale", "zero_point")
        )
        codes, scale, zeros = (constant(key) for key in keys)
        if codes is None or scale is None:
            raise _unread(one, blobs)
        axis = constant("axis")
        if not blockwise and scale.elements > 1:
            scale, zeros = _along(codes, scale, axis), zeros and _along(codes, zeros, axis)
        yield _scaled(one, (codes, scale, zeros), blobs)
    elif one.kind == "constexpr_lut_to_dense":
        indices, table = constant("indices"), constant("lut")
        shape = constant("shape")
        if indices is None or table is None:
            raise _unread(one, blobs)
        yield _from_table(one, indices, table, shape, blobs)
    elif one.kind.startswith("constexpr_"):
        raise _unread(one, blobs)


def _unread(one: _Operation, blobs: _Blobs) -> NotSupported:
    return NotSupported(
        f"not supported: Core ML {one.kind[:60]} of this form",
        where=f"{blobs.where}: {one.name!r}",
    )


def _plain(name: str, constant: _Constant, blobs: _Blobs) -> StoredTensor:
    across, shape = math.prod(constant.shape[1:]), constant.shape

    def read(first: int, last: int) -> Values:
        rows = (last - first, *shape[1:]) if shape else ()
        return Values(constant.read(first * across, last * across).reshape(rows))

    assert constant.span is not None
    role = {part_of(constant.number_format): constant}
    layout = Layout(constant.number_format)
    parts, spans = blobs.parts(dict(role)), (constant.span,)
    neighbours = Run(None, lambda first, last: Values(constant.read(first, last)))
    return StoredTensor(name, shape, layout, spans, parts, read, run=neighbours)


def _along(codes: _Constant, one: _Constant, axis: _Constant | None) -> _Constant:
    """Give numbers along one axis the rank of the codes."""
    at = int(axis.read(0, 1)[0]) if axis is not None and axis.elements else 0
    rank = len(codes.shape)
    if one.elements == 1:
        shape = (1,) * rank
    elif -rank <= at < rank and codes.shape[at] == one.elements:
        shape = tuple(one.elements if i == at % rank else 1 for i in range(rank))
    else:
        shape = one.shape
    return _Constant(shape, one.number_format, one.dtype, one.bits, one.span, one.inline)


def _scaled(
    one: _Operation, found: tuple[_Constant, _Constant, _Constant | None], blobs: _Blobs
) -> StoredTensor:
    codes, scale, zeros = found
    shape = codes.shape
    counts = scale.shape if scale.elements > 1 else (1,) * len(shape)
    fits = len(counts) == len(shape) and all(
        c > 0 and n % c == 0 for n, c in zip(shape, counts, strict=True)
    )
    if not fits or (zeros is not None and zeros.elements not in (1, scale.elements)):
        raise HostileFile(
            f"the scale of {one.name!r} does not fit its codes",
            where=blobs.where,
            got=f"scale {list(scale.shape)} for codes {list(shape)}",
        )
    block = tuple(max(1, n // c) for n, c in zip(shape, counts, strict=True))
    layout = Layout(
        codes.number_format,
        block,
        scale.number_format,
        "none" if zeros is None else "stored",
        "Core ML",
    )
    roles = {Part.CODES: codes, Part.SCALES: scale, Part.ZERO_POINTS: zeros}
    spans = tuple(c.span for c in found if c is not None and c.span is not None)
    blocks = ScaledBlocks(codes, scale, zeros, shape, block)
    return blocks.tensor(one.name, layout, spans, blobs.parts(roles))


def _from_table(
    one: _Operation,
    indices: _Constant,
    table: _Constant,
    stated: _Constant | None,
    blobs: _Blobs,
) -> StoredTensor:
    """Describe codes that are places in one table for the whole tensor."""
    shape = indices.shape
    if stated is not None:  # the older form: bytes of packed codes, the shape beside them
        shape = tuple(int(n) for n in stated.load().reshape(-1))
        bits = max(1, table.elements - 1).bit_length()
        if indices.bits != 8 or min(shape, default=0) < 0 or bits not in (1, 2, 4, 6, 8):
            raise _unread(one, blobs)
        packed = -(-math.prod(shape) * bits // 8)
        fits = indices.elements == packed
        indices = _Constant(shape, f"uint{bits}", np.dtype(np.uint8), bits, indices.span, None)
    else:
        fits = indices.number_format.startswith("uint")
    if not fits or indices.span is None:
        raise HostileFile(f"the table of {one.name!r} does not fit its codes", where=blobs.where)
    if indices.bits > 8 or table.elements != 1 << indices.bits:
        raise _unread(one, blobs)  # a table for each group, or of vectors
    across = math.prod(shape[1:])

    block = tuple(max(1, n) for n in shape)
    together = math.prod(block)

    def looked_up(codes: Array, block: tuple[int, ...]) -> Values:
        return Values(codes, block, codebook=table.load().reshape(-1).astype(np.float32))

    def read(first: int, last: int) -> Values:
        rows = (last - first, *shape[1:]) if shape else ()
        return looked_up(indices.stored(first * across, last * across, rows), block)

    def run(first: int, last: int) -> Values:
        return looked_up(indices.read(first, last), (together,))

    layout = Layout(indices.number_format, block, None, "none", "Core ML table")
    roles = {Part.CODES: indices, Part.FLOATS: table}
    spans = tuple(c.span for c in (indices, table) if c.span is not None)
    parts = blobs.parts(dict(roles))
    neighbours = Run(together, run)
    return StoredTensor(one.name, shape, layout, spans, parts, read, run=neighbours)
