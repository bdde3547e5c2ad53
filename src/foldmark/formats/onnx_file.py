"""Reading an ONNX model that may come from anyone: a path, bytes or a ModelProto."""

import mmap
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import onnx
from google.protobuf.message import DecodeError

from foldmark.errors import FileUnreadable, FormatNotRecognised, HostileFile, TruncatedFile
from foldmark.formats.onnx_external import IN_MEMORY, Own, resolve_external
from foldmark.formats.onnx_mapped import LARGE, Buffer, looked_at, without_weights
from foldmark.formats.onnx_tensor import (
    check_inline,
    external_entries,
    is_external,
    model_tensors,
)

__all__ = ["ModelSource", "files_of", "model_files", "read_in_place", "read_mapped", "read_model"]

ModelSource: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto

_VARINT, _BYTES = 0, 2
# Field number and wire type of everything a ModelProto may hold at its top level.
_MODEL_FIELDS = {
    1: _VARINT,  # ir_version
    2: _BYTES,  # producer_name
    3: _BYTES,  # producer_version
    4: _BYTES,  # domain
    5: _VARINT,  # model_version
    6: _BYTES,  # doc_string
    7: _BYTES,  # graph
    8: _BYTES,  # opset_import
    14: _BYTES,  # metadata_props
    20: _BYTES,  # training_info
    25: _BYTES,  # functions
    26: _BYTES,  # configuration
}
_LARGEST = (1 << 31) - 1  # protobuf's own limit


def read_model(source: ModelSource, name: str = "model") -> onnx.ModelProto:
    """Return the ONNX model of a path, of bytes or of a ModelProto, checked before use.

    External data is loaded only from inside the model's folder; of a model above 1 GiB the
    external tensors stay in their files and `onnx_tensor.tensor_array` maps them. A ModelProto
    is returned as it is, never copied or changed.

    Args:
        source: where the model is.
        name: how messages call a model that has no path.

    Raises:
        FileUnreadable: missing, a directory, empty, not permitted.
        FormatNotRecognised: not an ONNX model.
        TruncatedFile: shorter than its header says.
        HostileFile: shapes, sizes or locations that no honest file has.
    """
    if isinstance(source, onnx.ModelProto):
        _check_content(source, name)
        _check_tensors(source, None, name)
        return source
    if isinstance(source, bytes | bytearray | memoryview):
        return _parse(bytes(source), None, name)
    path = Path(source)
    return _parse(_file_bytes(path), path.parent, str(source))


def read_mapped(source: ModelSource) -> onnx.ModelProto:
    """Return a model as `read_model` does, large initializers left where they are in the file.

    `onnx_tensor.tensor_array` maps them. The model then takes little memory and is quickly
    copied; it is only of use while the file is there. Bytes and ModelProtos are read as ever.
    A link to a model is followed; external data is looked for beside the link, as by `read_model`.

    Args:
        source: where the model is.

    Raises:
        FileUnreadable, FormatNotRecognised, TruncatedFile, HostileFile: as `read_model`.
    """
    if isinstance(source, onnx.ModelProto | bytes):
        return read_model(source)
    path = Path(source)
    data, own = _file_bytes(path, _mapped), _own(path)
    data = without_weights(data, own.location)
    return _parse(data, path.parent, str(path), in_memory=-1, own=own)


def read_in_place(path: Path, least: int = LARGE) -> onnx.ModelProto:
    """Return a model to look at: as by `read_mapped`, tensors of nodes and functions left too.

    So are lists of integers and halves, which `onnx_places.Places` reads and `tensor_array` does
    not; of a text longer than 64 KiB its length is given.

    Args:
        path: where the model is.
        least: bytes of a tensor that is left in the file.

    Raises:
        FileUnreadable, FormatNotRecognised, TruncatedFile, HostileFile: as `read_model`.
        NotSupported: a model that is large without its weights.
    """
    data, own = _file_bytes(path, _mapped), _own(path)
    data = looked_at(data, own.location, own.listed, least, str(path))
    return _parse(data, path.parent, str(path), in_memory=-1, own=own)


def model_files(path: Path) -> tuple[Path, ...]:
    """Return the file of a model and, after it by name, those beside it that hold its weights.

    Raises:
        FileUnreadable, FormatNotRecognised, TruncatedFile, HostileFile: as `read_model`.
    """
    return files_of(read_mapped(path), path)


def files_of(model: onnx.ModelProto, path: Path) -> tuple[Path, ...]:
    """Return the files of a model that `read_mapped` read at a path, as `model_files` does."""
    tensors = model_tensors(model)
    places = {external_entries(each)["location"] for each in tensors if is_external(each)}
    return (path, *sorted(map(Path, places - {str(path.resolve())})))


def _own(path: Path) -> Own:
    """Name the model's own file; no file foresees the name, so that none can use it."""
    return Own(secrets.token_hex(16), secrets.token_hex(16), path.resolve())


def _mapped(path: Path) -> Buffer:
    with path.open("rb") as file:
        empty = path.stat().st_size == 0
        return b"" if empty else memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _file_bytes(path: Path, read: Callable[[Path], Buffer] = Path.read_bytes) -> Buffer:
    try:
        if path.is_dir():
            raise FileUnreadable("this is a directory, not a model", where=str(path))
        if path.stat().st_size > _LARGEST:
            raise FormatNotRecognised(
                "too large for an ONNX file",
                where=str(path),
                got=f"{path.stat().st_size} bytes",
                expected="under 2 GiB, larger weights in external data",
            )
        return read(path)
    except FileNotFoundError:
        raise FileUnreadable("no such file", where=str(path)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileUnreadable("can't be read", where=str(path), got=reason.lower()) from None


def _parse(
    data: Buffer,
    folder: Path | None,
    where: str,
    in_memory: int = IN_MEMORY,
    own: Own | None = None,
) -> onnx.ModelProto:
    if not data:
        raise FileUnreadable("the file is empty", where=where)
    _check_frame(data, where)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        raise FormatNotRecognised(
            "the ONNX model is damaged inside", where=where, todo="export or download it again"
        ) from None
    _check_content(model, where)
    _check_tensors(model, folder, where, in_memory, own)
    return model


def _check_frame(data: Buffer, where: str) -> None:
    """Walk the top-level fields: anything else than ModelProto's, or a field cut short, is out.

    Each field is a varint `number << 3 | wire type`, then a varint, or a length and bytes.
    """
    place = 0
    while place < len(data):
        tag, place = _varint(data, place, where)
        if _MODEL_FIELDS.get(tag >> 3) != tag & 7:
            raise _not_onnx(where, data)
        length, place = _varint(data, place, where)
        if tag & 7 == _BYTES:
            place += length
    if place > len(data):
        raise _cut_short(where, len(data), place)


def _varint(data: Buffer, place: int, where: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise _cut_short(where, len(data), place + 1)
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise _not_onnx(where, data)


def _cut_short(where: str, found: int, needed: int) -> TruncatedFile:
    return TruncatedFile(
        "the ONNX model is cut short",
        where=where,
        got=f"{found} bytes",
        expected=f"at least {needed}",
        todo="download or export it again",
    )


def _not_onnx(where: str, data: Buffer) -> FormatNotRecognised:
    return FormatNotRecognised(
        "not an ONNX model", where=where, got=f"a file that begins {bytes(data[:8])!r}"
    )


def _check_content(model: onnx.ModelProto, where: str) -> None:
    if not model.HasField("graph") and not model.opset_import:
        raise FormatNotRecognised("not an ONNX model", where=where, got="no graph")
    if not model.opset_import or not model.HasField("graph"):
        missing = "graph" if model.opset_import else "operator set"
        raise TruncatedFile(
            "the ONNX model is cut short", where=where, got=f"a model without its {missing}"
        )
    _check_names(model, where)


def _check_names(model: onnx.ModelProto, where: str) -> None:
    """Refuse names that are no text: the parser lets them through, and reading one fails."""
    try:
        are_text = all(isinstance(name, str) for name in _names(model))
    except UnicodeDecodeError:
        are_text = False
    if not are_text:
        raise FormatNotRecognised(
            "the ONNX model is damaged inside",
            where=where,
            got="a name that is not UTF-8",
            todo="export or download it again",
        )


def _names(model: onnx.ModelProto) -> Iterator[str]:
    """Yield every name that computing the model depends on."""
    for entry in model.opset_import:
        yield entry.domain
    for function in model.functions:
        yield from (function.name, function.domain, *function.input, *function.output)
        yield from _node_names(function.node)
    yield from _graph_names(model.graph)


def _graph_names(graph: onnx.GraphProto) -> Iterator[str]:
    yield graph.name
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        yield value.name
    for value in (*graph.input, *graph.output, *graph.value_info):
        for length in value.type.tensor_type.shape.dim:
            yield length.dim_param
    yield from _node_names(graph.node)


def _node_names(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            for graph in (attribute.g, *attribute.graphs):
                yield from _graph_names(graph)


def _check_tensors(
    model: onnx.ModelProto,
    folder: Path | None,
    where: str,
    in_memory: int = IN_MEMORY,
    own: Own | None = None,
) -> None:
    external = []
    for tensor in model_tensors(model):
        if is_external(tensor):
            external.append(tensor)
        else:
            check_inline(tensor, where)
    if external and folder is None:
        raise HostileFile(
            f"tensor {external[0].name!r} lies in another file",
            where=where,
            expected="a model given by its path, or one with its data loaded",
        )
    if external and folder is not None:
        resolve_external(external, folder, where, in_memory, own)
