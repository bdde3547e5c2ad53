"""safetensors: a length, a JSON header, and the arrays' bytes; one file or shards.

    u64 length n | n bytes of JSON | arrays
    {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {...}}

Shards: X.safetensors.index.json maps each name to its file, which lies in the same folder.
The bytes are read here and not by the safetensors package, because a 4-bit weight of a hundred
gigabytes is looked at piece by piece, with every offset known.
Source: the safetensors format description.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foldmark.errors import HostileFile, NotSupported, TruncatedFile
from foldmark.formats.entry import Entry
from foldmark.formats.plain import plain_tensor
from foldmark.formats.schemes import (
    bitsandbytes,
    compressed_tensors,
    gptq,
    quanto,
    scaled,
    torchao,
)
from foldmark.formats.schemes.activations import activations_on
from foldmark.formats.schemes.shelf import Shelf
from foldmark.formats.source import FileBytes
from foldmark.formats.stored import Artefact, StoredTensor, refuse_overlaps

__all__ = ["SCHEMES", "read_safetensors", "read_sharded", "settle"]

# No honest header comes near: the largest published models stay below a tenth of it.
_LONGEST_HEADER = 1 << 25
_LONGEST_CONFIG = 1 << 22
# Tables, lists and their items in such a header, eight for an array: each takes memory of its own.
_MOST_PARTS = 2_000_000
_MOST_AXES = 8
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16",
    "I32": "int32", "U32": "uint32", "I64": "int64", "U64": "uint64", "F16": "float16",
    "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip

# Each takes the arrays that it knows off the shelf. The order matters only where one form's
# names are another's too: those that look at more come first.
SCHEMES: tuple[Callable[[Shelf], list[StoredTensor]], ...] = (
    bitsandbytes.claim,
    compressed_tensors.claim,
    gptq.claim,
    quanto.claim,
    torchao.claim,
    scaled.claim,
)


def read_safetensors(path: Path) -> Artefact:
    """Read one file's header; arrays are read when asked for.

    Raises:
        TruncatedFile, HostileFile: a header that promises what the file doesn't hold.
        NotSupported: a dtype or a tool's form without a reader.
    """
    source = FileBytes(path)
    entries, metadata, header = _read_header(source)
    shelf = Shelf(entries, metadata, _config_beside(path))
    activations = activations_on(shelf)
    return Artefact(
        path, "safetensors", (source,), settle(shelf), header, metadata, activations=activations
    )


def read_sharded(path: Path) -> Artefact:
    """Read the index of shards and every shard's header.

    Raises:
        HostileFile: a shard outside the index's folder, or a name in two shards.
        TruncatedFile, NotSupported: as for one file.
    """
    index = _load_json(path, _LONGEST_HEADER)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise HostileFile("the index has no weight_map", where=str(path))
    entries: dict[str, Entry] = {}
    metadata: dict[str, str] = {}
    sources, header = [], 0
    for name in sorted(set(weight_map.values())):
        source = FileBytes(_beside(path, name))
        found, said, length = _read_header(source)
        twice = next(iter(found.keys() & entries.keys()), None)
        if twice is not None:
            raise HostileFile("a tensor stands in two shards", where=str(path), got=repr(twice))
        entries |= found
        metadata |= said
        sources.append(source)
        header += length
    missing = next(iter(weight_map.keys() - entries.keys()), None)
    if missing is not None:
        raise TruncatedFile("a tensor of the index is in no shard", where=str(path), got=missing)
    shelf = Shelf(entries, metadata, _config_beside(path))
    activations = activations_on(shelf)
    return Artefact(
        path,
        "safetensors, sharded",
        tuple(sources),
        settle(shelf),
        header,
        metadata,
        activations=activations,
    )


def settle(shelf: Shelf) -> tuple[StoredTensor, ...]:
    """Let every scheme take its arrays and describe what is left as it stands, in file order."""
    places = {name: place for place, name in enumerate(shelf.entries)}
    by_span = {
        (id(entry.source), entry.offset): places[name] for name, entry in shelf.entries.items()
    }
    tensors = [tensor for claim in SCHEMES for tensor in claim(shelf)]
    for entry in shelf.entries.values():
        tensors.append(plain_tensor(entry))
    return tuple(
        sorted(tensors, key=lambda t: min(by_span[id(s.source), s.offset] for s in t.spans))
    )


def _beside(path: Path, name: str) -> Path:
    """Return a shard's path; it must be a plain name in the index's own folder."""
    if "\0" in name or Path(name).name != name:
        raise HostileFile("a shard outside the index's folder", where=str(path), got=repr(name))
    return path.parent / name


def _read_header(source: FileBytes) -> tuple[dict[str, Entry], dict[str, str], int]:
    where = str(source.path)
    length = int.from_bytes(source.read(0, 8, "length of the header"), "little")
    if length > _LONGEST_HEADER:
        raise HostileFile(
            "the header is too long", where=where, got=str(length), expected=f"{_LONGEST_HEADER}"
        )
    header = _parse(source.read(8, length, "header"), where)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise HostileFile("__metadata__ is not a table of strings", where=where)
    start = 8 + length
    entries = {name: _entry(source, name, stated, start) for name, stated in header.items()}
    refuse_overlaps([(e.offset, e.nbytes, e.name) for e in entries.values()], where)
    return entries, {str(key): str(value) for key, value in metadata.items()}, start


def _parse(text: bytes, where: str) -> dict[str, Any]:
    def no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise HostileFile("a name stands twice in the header", where=where)
        return table

    parts = sum(map(text.count, (b"{", b"[", b",")))
    if parts > _MOST_PARTS:
        raise HostileFile(
            "the header has more parts than an honest one of its length",
            where=where,
            got=f"{parts} tables, lists and items",
            expected=f"at most {_MOST_PARTS}",
        )
    try:
        parsed = json.loads(text.decode("utf-8"), object_pairs_hook=no_twice)
    except (ValueError, RecursionError) as fault:
        raise HostileFile("the header is not JSON", where=where) from fault
    if not isinstance(parsed, dict):
        raise HostileFile("the header is not a JSON table", where=where)
    return parsed


def _entry(source: FileBytes, name: str, stated: object, start: int) -> Entry:
    where = str(source.path)
    try:
        dtype, shape, (first, last) = (stated[k] for k in ("dtype", "shape", "data_offsets"))  # type: ignore[index]
        numbers = [*shape, first, last]
    except (TypeError, KeyError, ValueError) as fault:
        raise HostileFile(f"tensor {name!r} is not described", where=where) from fault
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers) or len(shape) > _MOST_AXES:
        raise HostileFile(f"tensor {name!r} has an impossible shape or place", where=where)
    if dtype not in _DTYPES:
        raise NotSupported(
            f"not supported: safetensors dtype {str(dtype)[:20]!r}", where=f"{where}: {name!r}"
        )
    entry = Entry(name, _DTYPES[dtype], tuple(shape), source, start + first)
    if entry.nbytes != last - first:
        raise HostileFile(
            f"tensor {name!r} has another length than its shape",
            where=where,
            got=str(last - first),
            expected=str(entry.nbytes),
        )
    source.check(entry.offset, entry.nbytes, f"tensor {name!r}")
    return entry


def _load_json(path: Path, longest: int) -> dict[str, Any]:
    with FileBytes(path) as source:
        if source.size > longest:
            raise HostileFile("the file is too long", where=str(path), got=str(source.size))
        return _parse(source.read(0, source.size, "JSON"), str(path))


def _config_beside(path: Path) -> Mapping[str, object]:
    """Read the quantization settings that tools write beside a model, where there are any."""
    for name in ("quantize_config.json", "config.json"):
        file = path.parent / name
        if file.is_file() and 0 < file.stat().st_size <= _LONGEST_CONFIG:
            try:
                stated = _load_json(file, _LONGEST_CONFIG)
            except HostileFile:
                continue
            settings = stated.get("quantization_config", stated)
            if isinstance(settings, dict) and settings:
                return settings
    return {}
