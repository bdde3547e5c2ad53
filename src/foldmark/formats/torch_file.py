"""PyTorch state dicts: loaded with weights only, mapped, never unpickled freely.

PyTorch's own restricted loader reads the archive, so that nothing in it can run; an archive
that asks for more is refused. It maps the file, and a storage's address in the map tells where
in the file its bytes lie: from there the tensors are read like any other format's.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foldmark.errors import HostileFile, MissingExtra, NotSupported
from foldmark.formats.entry import Entry
from foldmark.formats.npz_file import members_of, open_zip
from foldmark.formats.safetensors_file import settle
from foldmark.formats.schemes.shelf import Shelf
from foldmark.formats.source import FileBytes
from foldmark.formats.stored import Artefact

__all__ = ["read_torch"]

_MOST_NESTING = 8


def read_torch(path: Path) -> Artefact:
    """Read a state dict's tensors; a dictionary of dictionaries is joined with dots.

    Raises:
        MissingExtra: PyTorch is not installed.
        HostileFile: an archive that weights-only loading refuses, or that is broken.
        NotSupported: something else than tensors by name.
    """
    torch = _import_torch(path)
    source = FileBytes(path)
    with open_zip(path) as archive:
        members = members_of(archive, source)
    if any(member.info.compress_type != zipfile.ZIP_STORED for member in members):
        raise NotSupported("not supported: compressed PyTorch archives", where=str(path))
    records = {
        member.offset: member.info.file_size
        for member in members
        if "/data/" in member.info.filename
    }
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as fault:  # the loader raises whatever the damage leads to
        reason = str(fault).strip().splitlines()[0][:120] if str(fault).strip() else ""
        raise HostileFile(
            "PyTorch's weights-only loader refuses the file",
            where=str(path),
            got=reason,
            todo="save the state dict alone, or as safetensors",
        ) from fault
    tensors = _by_name(loaded, torch, str(path))
    entries = _entries(tensors, records, source)
    artefact = Artefact(path, "PyTorch state dict", (source,), settle(Shelf(entries)), 0)
    inside = sum(tensor.nbytes for tensor in artefact.tensors)
    return Artefact(
        path, artefact.format_name, artefact.files, artefact.tensors, source.size - inside
    )


def _import_torch(path: Path) -> Any:
    try:
        import torch  # noqa: PLC0415  (an optional package)
    except ImportError as fault:
        raise MissingExtra(
            "reading PyTorch files needs torch",
            where=str(path),
            todo='install it: pip install "foldmark[torch]"',
        ) from fault
    return torch


def _by_name(loaded: object, torch: Any, where: str, depth: int = 0) -> dict[str, Any]:
    if not isinstance(loaded, Mapping) or depth > _MOST_NESTING:
        raise NotSupported(
            "not supported: a PyTorch file that is no state dict",
            where=where,
            got=type(loaded).__name__,
        )
    found: dict[str, Any] = {}
    for key, value in loaded.items():
        if isinstance(value, torch.Tensor):
            found[str(key)] = value
        elif isinstance(value, Mapping):
            inner = _by_name(value, torch, where, depth + 1)
            found |= {f"{key}.{name}": tensor for name, tensor in inner.items()}
    return found


def _entries(
    tensors: dict[str, Any], records: dict[int, int], source: FileBytes
) -> dict[str, Entry]:
    base = _map_address(tensors, records, str(source.path))
    entries: dict[str, Entry] = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        number_format = str(tensor.dtype).removeprefix("torch.")
        if not tensor.is_contiguous() or tensor.is_quantized:
            raise NotSupported(
                "not supported: PyTorch tensors that are not contiguous",
                where=f"{source.path}: tensor {name!r}",
            )
        offset = tensor.data_ptr() - base if tensor.numel() else 0
        if tensor.numel() and offset in places:
            continue  # tied weights: the first name stands for all
        places.add(offset)
        entry = Entry(name, number_format, tuple(tensor.shape), source, offset)
        entries[name] = _known(entry)
    return entries


def _known(entry: Entry) -> Entry:
    try:
        entry.source.check(entry.offset, entry.nbytes, f"tensor {entry.name!r}")
    except KeyError as fault:
        raise NotSupported(
            f"not supported: PyTorch dtype {entry.number_format}",
            where=f"{entry.source.path}: tensor {entry.name!r}",
        ) from fault
    return entry


def _map_address(tensors: dict[str, Any], records: dict[int, int], where: str) -> int:
    """Return the address that the file's first byte is mapped at.

    Every storage begins where a record of the archive does, so the right address is the one
    under which all of them do.

    Raises:
        NotSupported: storages that do not lie in the map.
    """
    starts = sorted({t.untyped_storage().data_ptr() for t in tensors.values() if t.numel()})
    if not starts:
        return 0
    for offset in records:
        base = starts[0] - offset
        if all(start - base in records for start in starts):
            return base
    raise NotSupported("not supported: a PyTorch file without mapped storages", where=where)
