"""Where the numbers of an ONNX model lie: in the model's own file, beside it, or nowhere whole."""

import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import onnx

from foldmark.formats.entry import DTYPES, FIELDS, Entry
from foldmark.formats.onnx_lists import Listed
from foldmark.formats.onnx_tensor import (
    byte_count,
    element_count,
    external_entries,
    is_external,
    is_listed,
    tensor_array,
)
from foldmark.formats.scaled_blocks import Held, Numbers
from foldmark.formats.source import FileBytes
from foldmark.formats.stored import Span
from foldmark.formats.values import Array

__all__ = ["FINDABLE", "FORMATS", "Places"]

_Proto = onnx.TensorProto
# element type -> our name for it
FORMATS: Mapping[int, str] = {
    _Proto.FLOAT: "float32",
    _Proto.FLOAT16: "float16",
    _Proto.BFLOAT16: "bfloat16",
    _Proto.DOUBLE: "float64",
    _Proto.UINT8: "uint8",
    _Proto.INT8: "int8",
    _Proto.UINT16: "uint16",
    _Proto.INT16: "int16",
    _Proto.INT32: "int32",
    _Proto.UINT32: "uint32",
    _Proto.INT64: "int64",
    _Proto.UINT64: "uint64",
    _Proto.BOOL: "bool",
    _Proto.INT4: "int4",
    _Proto.UINT4: "uint4",
    _Proto.FLOAT8E4M3FN: "float8_e4m3fn",
    _Proto.FLOAT8E5M2: "float8_e5m2",
    _Proto.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    _Proto.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    _Proto.FLOAT4E2M1: "float4_e2m1fn",
}
# Shorter tensors are not looked for in the file: their bytes could stand anywhere.
FINDABLE: Final = 64
_SEARCHES = 8
_WINDOW = 1 << 24


class Places:
    """Where tensors lie, and what each byte of the files is for.

    Args:
        path: the model's file.
        tensors: all of the model's, those that `read_in_place` left in the file as external ones.
    """

    def __init__(self, path: Path, tensors: Iterable[onnx.TensorProto]) -> None:
        self.model = FileBytes(path)
        self._own = str(path.resolve())
        self._external: dict[str, FileBytes] = {}
        self._used: dict[str, int] = {}
        self._counted: set[int] = set()
        self._inline = self._found(path, tensors)

    def numbers(self, tensor: onnx.TensorProto) -> Numbers:
        """Return what reads the tensor: from its file in part, or from memory.

        Raises:
            HostileFile: a list of another length than the shape says.
        """
        form, spans = FORMATS.get(tensor.data_type, ""), self.spans(tensor)
        if is_listed(tensor):
            return Listed(tensor.name, form, element_count(tensor), self._list(tensor))
        if spans and (form in DTYPES or form in FIELDS):
            shape = tuple(tensor.dims)
            return Entry(tensor.name, form, shape, spans[0].source, spans[0].offset)
        return Held(_plain_integers(tensor_array(tensor)))

    def spans(self, tensor: onnx.TensorProto) -> tuple[Span, ...]:
        """Return where the bytes of the tensor's elements lie, nothing when that can't be told."""
        if not is_external(tensor):
            at = self._inline.get(id(tensor))
            return () if at is None else (Span(self.model, at, len(tensor.raw_data)),)
        if is_listed(tensor):
            return ()
        entries = external_entries(tensor)
        place = int(entries.get("offset") or 0)
        return (Span(self._file(entries["location"]), place, byte_count(tensor)),)

    def _list(self, tensor: onnx.TensorProto) -> Span:
        entries = external_entries(tensor)
        return Span(self.model, int(entries["offset"]), int(entries["length"]))

    def _file(self, location: str) -> FileBytes:
        if location == self._own:
            return self.model
        if location not in self._external:
            self._external[location] = FileBytes(Path(location))
        return self._external[location]

    def _found(self, path: Path, tensors: Iterable[onnx.TensorProto]) -> dict[int, int]:
        """Find tensors that are held in memory in the order that they are written in.

        What stands out of order is looked for from the start, but not for longer than reading
        the file a few times would take: that tensor's place is then left open.
        """
        found: dict[int, int] = {}
        behind, budget = 0, _SEARCHES * self.model.size
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            for tensor in tensors:
                raw = tensor.raw_data if tensor.HasField("raw_data") else b""
                if len(raw) < FINDABLE or budget <= 0 or id(tensor) in found:
                    continue
                at = _find(content, raw, behind, len(content))
                budget -= (at if at >= 0 else len(content)) - behind
                if at < 0:
                    at = _find(content, raw, 0, behind + len(raw))
                    budget -= at if at >= 0 else behind
                if at >= 0:
                    found[id(tensor)] = at
                    behind = at + len(raw)
        return found

    def count(self, tensor: onnx.TensorProto) -> int:
        """Count the bytes that a tensor's numbers take, once: two weights may share a scale."""
        if id(tensor) in self._counted:
            return 0
        self._counted.add(id(tensor))
        if is_listed(tensor):
            return self._list(tensor).nbytes
        if is_external(tensor):
            location = external_entries(tensor)["location"]
            self._used[location] = self._used.get(location, 0) + byte_count(tensor)
            return byte_count(tensor)
        if tensor.HasField("raw_data") or tensor.data_type not in FORMATS:
            return len(tensor.raw_data)
        return min(byte_count(tensor), tensor.ByteSize())

    def files(self) -> tuple[FileBytes, ...]:
        """Return the model's file and those beside it."""
        return (self.model, *self._external.values())

    def unused(self) -> int:
        """Count bytes of external files that no tensor of the model lies in."""
        return sum(
            max(0, file.size - self._used.get(name, 0)) for name, file in self._external.items()
        )


def _find(content: mmap.mmap, raw: bytes, start: int, stop: int) -> int:
    """Return where bytes stand in a mapped file, -1 for nowhere, and keep none of it in memory."""
    while start < stop:
        end = min(start + _WINDOW + len(raw), stop)
        at = content.find(raw, start, end)
        if hasattr(content, "madvise"):
            content.madvise(mmap.MADV_DONTNEED)
        if at >= 0 or end == stop:
            return at
        start += _WINDOW
    return -1


def _plain_integers(codes: Array) -> Array:
    """Turn 4-bit integers of ml_dtypes into int8 or uint8, which numpy can count with."""
    if codes.dtype.name in ("int4", "int2"):
        return codes.astype(np.int8)
    if codes.dtype.name in ("uint4", "uint2"):
        return codes.astype(np.uint8)
    return codes
