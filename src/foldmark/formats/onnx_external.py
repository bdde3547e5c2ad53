"""Tensors kept in files beside an ONNX model: found, checked, then loaded or left in place."""

import warnings
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from foldmark.errors import FileUnreadable, HostileFile, TruncatedFile
from foldmark.formats.onnx_tensor import LISTED, byte_count, check_header, external_entries

__all__ = ["IN_MEMORY", "Own", "resolve_external"]

_KNOWN_KEYS = frozenset({"location", "offset", "length", "checksum", "basepath"})
# Together the tensors of one model may take this much memory before they stay in their files;
# a protobuf of more than 2 GiB can't be written any more.
IN_MEMORY = 1 << 30


@dataclass(frozen=True)
class Own:
    """The model's own file, where its reader left weights in it.

    Attributes:
        location: what the reader calls it; no name that a model could know.
        listed: the same, for lists whose numbers take as many bytes as each needs.
        path: where it is, links resolved; its folder need not be the one that data may lie in.
    """

    location: str
    listed: str
    path: Path


@dataclass(frozen=True)
class _Region:
    """Bytes of a file that hold one tensor, perhaps as a list."""

    tensor: onnx.TensorProto
    path: Path
    offset: int
    size: int
    listed: bool


def resolve_external(
    tensors: list[onnx.TensorProto],
    folder: Path,
    where: str,
    in_memory: int = IN_MEMORY,
    own: Own | None = None,
) -> None:
    """Load tensors from the files they name, or, for a large model, point at the checked file.

    Every tensor is checked before the first byte is read or allocated: the file lies inside
    `folder`, links followed, and holds the bytes that offset, length and shape ask for. A
    model whose tensors take more than `in_memory` bytes keeps them on disk, their location made
    absolute; `tensor_array` maps them.

    Args:
        tensors: those that name a file.
        folder: the one that their files lie in.
        where: how messages call the model.
        in_memory: bytes up to which they are loaded.
        own: the model's own file, where tensors were left in it.

    Raises:
        HostileFile: a location outside the folder, or numbers that can't be right.
        TruncatedFile: a file shorter than its tensor.
        FileUnreadable: a file that is missing or not a regular file.
    """
    regions = [_region(tensor, folder, where, own) for tensor in tensors]
    settle = _load if sum(region.size for region in regions) <= in_memory else _leave_in_place
    for region in regions:
        settle(region)


def _region(tensor: onnx.TensorProto, folder: Path, where: str, own: Own | None) -> _Region:
    check_header(tensor, where)
    where = f"{where}: external data of tensor {tensor.name!r}"
    entries = external_entries(tensor)
    unknown = sorted(map(str, set(entries) - _KNOWN_KEYS))
    if unknown:
        warnings.warn(f"{where} has unknown keys, ignored: {', '.join(unknown)}", stacklevel=2)
    location = entries.get("location", "")
    listed = own is not None and location == own.listed
    if own is not None and location in (own.location, own.listed):
        path = own.path
    else:
        path = _inside(folder, location, where)
    size = byte_count(tensor)
    offset = _natural(entries, "offset", 0, where)
    length = _natural(entries, "length", size, where)
    if listed:
        size = length  # how many numbers these are is counted when they are read
    if length != size:
        raise HostileFile(
            "length does not fit the shape",
            where=where,
            got=f"{length} bytes",
            expected=f"{size} for {list(tensor.dims)}",
        )
    available = path.stat().st_size
    if offset + size > available:
        raise TruncatedFile(
            f"{path.name} ends before the tensor does",
            where=where,
            got=f"{available} bytes",
            expected=f"at least {offset + size}",
        )
    return _Region(tensor, path, offset, size, listed)


def _natural(entries: dict[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise HostileFile(f"{key} is not a count of bytes", where=where, got=repr(text[:40]))
    return int(text)


def _inside(folder: Path, location: str, where: str) -> Path:
    """Return the regular file that a location names, or refuse it."""
    reason = _objection(location)
    if reason:
        raise HostileFile(f"location {reason}", where=where, got=repr(location[:80]))
    root = folder.resolve()
    try:
        path = (root / location).resolve()
        path.is_file()
    except (OSError, RuntimeError, ValueError) as fault:  # a loop of links, a name too long
        raise FileUnreadable(
            "the file can't be reached", where=where, got=repr(location[:80])
        ) from fault
    if not path.is_relative_to(root):
        raise HostileFile(
            "location is a link that leads out of the model's folder",
            where=where,
            got=repr(location),
            todo="copy the model and its data files into one folder",
        )
    if not path.is_file():
        found = "a directory" if path.is_dir() else "nothing of that name"
        raise FileUnreadable(
            "the file is missing or not a regular file",
            where=where,
            got=f"{found} at {location!r}",
        )
    return path


def _objection(location: str | bytes) -> str:
    if not isinstance(location, str):  # protobuf gives bytes where a string is not UTF-8
        return "is not text"
    if not location:
        return "is empty"
    if "\0" in location:
        return "holds a NUL character"
    windows = PureWindowsPath(location)
    if PurePosixPath(location).is_absolute() or windows.drive or windows.root:
        return "is absolute"
    if ".." in PurePosixPath(location).parts or ".." in windows.parts:
        return "climbs out of the model's folder"
    return ""


def _load(region: _Region) -> None:
    with region.path.open("rb") as file:
        file.seek(region.offset)
        data = file.read(region.size)
    tensor = region.tensor
    tensor.raw_data = data
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def _leave_in_place(region: _Region) -> None:
    tensor = region.tensor
    tensor.ClearField("external_data")
    for key, value in (
        ("location", str(region.path)),
        ("offset", str(region.offset)),
        ("length", str(region.size)),
        *((LISTED, LISTED) for _ in range(region.listed)),
    ):
        tensor.external_data.add(key=key, value=value)
