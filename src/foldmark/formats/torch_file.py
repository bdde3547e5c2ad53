"""PyTorch state dicts: a zip archive whose pickle says where in it the tensors lie.

    NAME/data.pkl      names, shapes, strides; followed by `torch_pickle`, which runs nothing
    NAME/byteorder     "little" or "big"; absent in old archives, which are little
    NAME/data/KEY      the bytes of one storage, not compressed

Several tensors may look at one storage, and one may skip items of it or walk it in another order.
Source: torch.serialization.
"""

import zipfile
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from foldmark.errors import HostileFile, NotSupported
from foldmark.formats.entry import DTYPES, Entry
from foldmark.formats.npz_file import Member, members_of, open_zip
from foldmark.formats.safetensors_file import settle
from foldmark.formats.scaled_blocks import Held, Numbers, ScaledBlocks
from foldmark.formats.schemes.activations import activations_on
from foldmark.formats.schemes.shelf import Shelf
from foldmark.formats.source import FileBytes
from foldmark.formats.stored import Artefact, Part, Span, StoredTensor
from foldmark.formats.strided import StridedEntry, c_strides, covered, distinct
from foldmark.formats.torch_names import Table, Tensor
from foldmark.formats.torch_pickle import interpret
from foldmark.formats.values import Layout

__all__ = ["read_torch"]

_PICKLE = "data.pkl"
_LONGEST_PICKLE = 1 << 25
_MOST_NESTING, _LONGEST_NAME, _MOST_VALUES = 8, 1 << 10, 1 << 20
_MOST_AXES = 16
# An item may be repeated so often, unless the tensor is small anyway.
_MOST_REPEATS, _SMALL = 200, 1 << 20


def read_torch(path: Path) -> Artefact:
    """Read a state dict's tensors; a dictionary of dictionaries is joined with dots.

    Raises:
        TruncatedFile, HostileFile: an archive that is broken, a pickle that asks for more than
            tensors, tensors outside their storage.
        NotSupported: something else than tensors by name, or a kind of tensor without a reader.
    """
    source = FileBytes(path)
    with open_zip(path) as archive:
        members = members_of(archive, source)
    package = _package(members, source)
    made = interpret(package.pickled, str(path))
    if not isinstance(made, Table):
        raise NotSupported(
            "not supported: a PyTorch file that is no state dict",
            where=str(path),
            got=type(made).__name__,
        )
    entries: dict[str, Entry] = {}
    quantized: list[StoredTensor] = []
    for name, tensor in _by_name(made, str(path)).items():
        if tensor.scale is None:
            entries[name] = package.entry(name, tensor)
        else:
            quantized.append(_quantized(package, name, tensor))
    shelf = Shelf(entries)
    activations = activations_on(shelf)
    tensors = sorted([*settle(shelf), *quantized], key=lambda t: t.spans[0].offset)
    header = source.size - sum(member.info.file_size for member in package.storages.values())
    counted = _counted_once(tensors, package.storages)
    return Artefact(path, "PyTorch state dict", (source,), counted, header, activations=activations)


@dataclass(frozen=True, eq=False)
class _Package:
    """The parts of an archive.

    Attributes:
        source: the file.
        pickled: what says where tensors lie.
        storages: the members with their bytes, by key.
    """

    source: FileBytes
    pickled: bytes
    storages: Mapping[str, Member]

    def entry(self, name: str, tensor: Tensor) -> Entry:
        """Return a tensor's items, its codes where it is quantized.

        Raises:
            HostileFile: a tensor outside its storage, or repeated beyond reason.
            NotSupported: a dtype without a reader, or items that cross each other.
        """
        where = f"{self.source.path}: tensor {name!r}"
        if tensor.number_format not in DTYPES:
            raise NotSupported(f"not supported: PyTorch dtype {tensor.number_format}", where=where)
        if len(tensor.shape) > _MOST_AXES:
            raise HostileFile("a tensor of too many axes", where=where, got=str(len(tensor.shape)))
        itemsize = DTYPES[tensor.number_format].itemsize
        place, room = self._room(tensor, where)
        end = (tensor.first + covered(tensor.shape, tensor.strides)) * itemsize
        if end > room:
            raise HostileFile(
                "a tensor reaches behind its storage",
                where=where,
                got=f"{end} bytes",
                expected=f"at most {room}",
            )
        offset = place + tensor.first * itemsize
        plain = Entry(name, tensor.number_format, tensor.shape, self.source, offset)
        if _follows_order(tensor):
            return plain
        items = distinct(tensor.shape, tensor.strides)
        if items is None:
            raise NotSupported("not supported: a tensor whose items cross each other", where=where)
        if plain.elements > max(_SMALL, _MOST_REPEATS * items):
            raise HostileFile(
                "a tensor repeats its items beyond reason",
                where=where,
                got=f"{items} to {plain.elements}",
            )
        return StridedEntry(
            name, tensor.number_format, tensor.shape, self.source, offset, tensor.strides
        )

    def _room(self, tensor: Tensor, where: str) -> tuple[int, int]:
        """Return where a tensor's storage begins in the file, and how many bytes it has."""
        storage = tensor.storage
        member = self.storages.get(storage.key)
        if member is None:
            raise HostileFile(
                "a tensor's storage is not in the archive", where=where, got=repr(storage.key[:80])
            )
        room = member.info.file_size
        itemsize = DTYPES[tensor.number_format].itemsize if storage.number_format else 1
        if storage.items * itemsize != room:
            raise HostileFile(
                "a storage has another length than the pickle says",
                where=where,
                got=str(room),
                expected=str(storage.items * itemsize),
            )
        return member.offset, room


def _package(members: list[Member], source: FileBytes) -> _Package:
    where = str(source.path)
    by_name = {member.info.filename: member for member in members}
    pickles = [name for name in by_name if name.rpartition("/")[2] == _PICKLE]
    if len(by_name) != len(members) or len(pickles) != 1:
        raise HostileFile("an archive with a member twice, or with two pickles", where=where)
    if any(member.info.compress_type != zipfile.ZIP_STORED for member in members):
        raise NotSupported("not supported: compressed PyTorch archives", where=where)
    root = pickles[0].removesuffix(_PICKLE)
    if f"{root}constants.pkl" in by_name:
        raise NotSupported(
            "not supported: TorchScript archives", where=where, todo="save the state dict"
        )
    order = by_name.get(f"{root}byteorder")
    if order is not None:
        stated = source.read(order.offset, min(order.info.file_size, 16), "byteorder")
        if stated != b"little":
            raise NotSupported(
                "not supported: PyTorch archives in another byte order than little",
                where=where,
                got=repr(stated),
            )
    pickle = by_name[pickles[0]]
    if pickle.info.file_size > _LONGEST_PICKLE:
        raise HostileFile(
            "the archive's pickle is too long",
            where=where,
            got=f"{pickle.info.file_size} bytes",
            expected=f"at most {_LONGEST_PICKLE}",
        )
    data = f"{root}data/"
    return _Package(
        source,
        source.read(pickle.offset, pickle.info.file_size, _PICKLE),
        {name.removeprefix(data): m for name, m in by_name.items() if name.startswith(data)},
    )


def _by_name(made: Table, where: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for seen, (name, value) in enumerate(_values(made, "", 0, where)):
        if seen >= _MOST_VALUES:
            raise HostileFile(
                "more values than a state dict holds", where=where, expected=f"{_MOST_VALUES}"
            )
        if isinstance(value, Tensor):
            if name in found:
                raise HostileFile("a tensor name stands twice", where=where, got=repr(name))
            found[name] = value
    return found


def _values(holder: object, prefix: str, depth: int, where: str) -> Iterator[tuple[str, object]]:
    """Yield every value of nested dictionaries, lists and tuples with its name."""
    pairs = holder.pairs if isinstance(holder, Table) else list(enumerate(_items(holder)))
    if pairs and depth > _MOST_NESTING:
        raise HostileFile("dictionaries are nested too deep", where=where, got=repr(prefix[:80]))
    for key, value in pairs:
        if not isinstance(key, str | int | float | None):
            raise NotSupported(
                "not supported: a key that is no name", where=where, got=type(key).__name__
            )
        if isinstance(key, str) and len(key) + len(prefix) > _LONGEST_NAME:
            raise HostileFile("a name is too long", where=where, got=repr(key[:80]))
        name = f"{prefix}{key}"
        yield name, value
        if isinstance(value, Table | list | tuple):
            yield from _values(value, f"{name}.", depth + 1, where)


def _items(holder: object) -> list[object] | tuple[object, ...]:
    return holder if isinstance(holder, list | tuple) else ()


def _follows_order(tensor: Tensor) -> bool:
    """Say whether items follow each other in C order; the strides of single indices don't count."""
    rows = zip(tensor.shape, tensor.strides, c_strides(tensor.shape), strict=True)
    return 0 in tensor.shape or all(n == 1 or stride == plain for n, stride, plain in rows)


def _quantized(package: _Package, name: str, tensor: Tensor) -> StoredTensor:
    """Describe a tensor of PyTorch's own quantized types.

    value = (code - zero_point) * scale, one of each for the tensor or for each index of an axis
    """
    where = f"{package.source.path}: tensor {name!r}"
    codes = package.entry(name, tensor)
    parts = {Part.CODES: codes.nbytes}
    spans = [codes.span]
    whole = tuple(max(1, n) for n in tensor.shape)
    scale: Numbers
    zero_point: Numbers
    if isinstance(tensor.scale, Tensor) and isinstance(tensor.zero_point, Tensor):
        if tensor.axis not in range(len(tensor.shape)):
            raise HostileFile("scales run along no axis", where=where, got=str(tensor.axis))
        block = tuple(1 if axis == tensor.axis else n for axis, n in enumerate(whole))
        rows = tensor.shape[tensor.axis]
        scale = _per_channel(package, f"{name}.scale", tensor.scale, rows)
        zero_point = _per_channel(package, f"{name}.zero_point", tensor.zero_point, rows)
        spans += [scale.span, zero_point.span]
        parts |= {Part.SCALES: scale.nbytes, Part.ZERO_POINTS: zero_point.nbytes}
        stored, scale_format = True, scale.number_format
    else:
        block = whole
        scale = Held(np.array([tensor.scale], np.float64))
        zero_point = Held(_zero_point(tensor.zero_point, where))
        stored, scale_format = bool(zero_point.array.any()), "float64"
    blocks = ScaledBlocks(codes, scale, zero_point, tensor.shape, block)
    layout = Layout(
        tensor.number_format, block, scale_format, "stored" if stored else "none", "PyTorch"
    )
    return blocks.tensor(name, layout, tuple(spans), parts)


def _zero_point(stated: object, where: str) -> np.ndarray:
    if not isinstance(stated, int) or not -(1 << 31) <= stated < 1 << 31:
        raise HostileFile("a zero point out of range", where=where)
    return np.array([stated], np.int64)


def _per_channel(package: _Package, name: str, numbers: Tensor, rows: int) -> Entry:
    entry = package.entry(name, numbers)
    if numbers.scale is not None or entry.shape != (rows,):
        raise HostileFile(
            "the scales do not fit the tensor",
            where=f"{package.source.path}: tensor {name!r}",
            got=str(list(entry.shape)),
            expected=str([rows]),
        )
    return entry


def _counted_once(
    tensors: list[StoredTensor], storages: Mapping[str, Member]
) -> tuple[StoredTensor, ...]:
    """Let bytes that several tensors look at count for the first of them only."""
    left = {member.offset: member.info.file_size for member in storages.values()}
    starts = sorted(left)
    counted = []
    for tensor in tensors:
        over = 0
        for span in tensor.spans:
            start = starts[bisect_right(starts, span.offset) - 1]
            nbytes = _own(tensor, span)
            taken = min(nbytes, left[start])
            left[start] -= taken
            over += nbytes - taken
        counted.append(_without(tensor, over) if over else tensor)
    return tuple(counted)


def _own(tensor: StoredTensor, span: Span) -> int:
    """Return the bytes of a span that are the tensor's: between its items others may lie."""
    return tensor.nbytes if len(tensor.spans) == 1 else span.nbytes


def _without(tensor: StoredTensor, nbytes: int) -> StoredTensor:
    parts = dict(tensor.parts)
    for part, own in tensor.parts.items():
        parts[part] = own - min(own, nbytes)
        nbytes -= own - parts[part]
    note = tensor.note or "looks at bytes that count with a tensor above"
    return replace(tensor, parts=parts, note=note)
