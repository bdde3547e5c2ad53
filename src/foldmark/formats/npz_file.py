"""numpy's .npy and .npz: named arrays, read in place where they lie uncompressed.

    .npy  "\\x93NUMPY" | version | length | Python literal of dtype, order, shape | items
    .npz  a zip archive of .npy members, stored or deflated

No object arrays: they are pickles, and a pickle runs code.
Source: numpy.lib.format.
"""

import io
import shutil
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy

from foldmark.errors import HostileFile, NotSupported, TruncatedFile
from foldmark.formats.entry import DTYPES, Entry
from foldmark.formats.safetensors_file import settle
from foldmark.formats.schemes.shelf import Shelf
from foldmark.formats.scratch import Scratch
from foldmark.formats.source import FileBytes
from foldmark.formats.stored import Artefact, refuse_overlaps
from foldmark.formats.strided import StridedEntry, c_strides

__all__ = ["members_of", "open_zip", "read_npy", "read_npz"]

# A header may not be longer than this; numpy's own limit is 10,000 characters.
_LONGEST_HEADER = 1 << 16
# Deflated arrays may expand so far, unless they are small anyway.
_MOST_EXPANSION, _SMALL = 200, (1 << 28) + (1 << 16)
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_BROKEN_HEADER = (
    ValueError,
    TypeError,
    SyntaxError,
    tokenize.TokenError,
    MemoryError,
    RecursionError,
    EOFError,
)
_BROKEN_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    ValueError,
    EOFError,
    OverflowError,
    OSError,
)


@dataclass(frozen=True)
class _Header:
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    fortran: bool
    length: int


def read_npy(path: Path) -> Artefact:
    """Read one array's header; the items are read when asked for.

    Raises:
        TruncatedFile, HostileFile: a header that promises what the file doesn't hold.
        NotSupported: an object array or a dtype without a reader.
    """
    source = FileBytes(path)
    start = source.read(0, min(source.size, _LONGEST_HEADER), "header")
    header = _parse_header(start, str(path), path.stem)
    entry = _entry(path.stem or "array", header, source, header.length)
    return Artefact(path, "npy", (source,), settle(Shelf({entry.name: entry})), header.length)


def read_npz(path: Path) -> Artefact:
    """Read every member's header; arrays are read when asked for.

    Raises:
        TruncatedFile, HostileFile: members that are not what the archive says.
        NotSupported: an object array or a dtype without a reader.
    """
    source = FileBytes(path)
    with open_zip(path) as archive:
        members = [m for m in members_of(archive, source) if m.info.filename.endswith(".npy")]
        entries = {m.name: _member_entry(archive, source, m) for m in members}
    if len(entries) != len(members):
        raise HostileFile("an array name stands twice", where=str(path))
    deflated = [m for m in members if m.info.compress_type != zipfile.ZIP_STORED]
    tensors = settle(Shelf(entries))
    if deflated:
        compressed = sum(member.info.compress_size for member in members)
        header = source.size - compressed
        return Artefact(path, "npz, compressed", (source,), tensors, header, compressed=compressed)
    header = source.size - sum(tensor.nbytes for tensor in tensors)
    return Artefact(path, "npz", (source,), tensors, header)


@dataclass(frozen=True)
class Member:
    """A member of a zip archive and where its bytes begin."""

    info: zipfile.ZipInfo
    offset: int

    @property
    def name(self) -> str:
        """The array's name."""
        return self.info.filename.removesuffix(".npy")


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open an archive.

    Raises:
        HostileFile: not a readable archive.
    """
    try:
        return zipfile.ZipFile(path)
    except _BROKEN_ZIP as fault:
        raise HostileFile("not a readable zip archive", where=str(path), got=str(fault)) from fault


def members_of(archive: zipfile.ZipFile, source: FileBytes) -> list[Member]:
    """List the archive's members, each checked against the file.

    Raises:
        TruncatedFile, HostileFile: members outside the file, over each other, encrypted, or
            expanding beyond reason.
    """
    where = str(source.path)
    members = []
    for info in archive.infolist():
        local = source.read(info.header_offset, 30, f"member {info.filename!r}")
        if local[:4] != b"PK\x03\x04" or info.flag_bits & 1:
            raise HostileFile(f"member {info.filename!r} can't be read", where=where)
        names = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        offset = info.header_offset + 30 + names
        source.check(offset, info.compress_size, f"member {info.filename!r}")
        stored = info.compress_type == zipfile.ZIP_STORED
        if stored and info.file_size != info.compress_size:
            raise HostileFile(f"member {info.filename!r} has two lengths", where=where)
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise NotSupported("not supported: zip compression other than deflate", where=where)
        if info.file_size > max(_SMALL, _MOST_EXPANSION * info.compress_size):
            raise HostileFile(
                f"member {info.filename!r} expands beyond reason",
                where=where,
                got=f"{info.compress_size} to {info.file_size} bytes",
            )
        members.append(Member(info, offset))
    refuse_overlaps([(m.offset, m.info.compress_size, m.info.filename) for m in members], where)
    return members


def _member_entry(archive: zipfile.ZipFile, source: FileBytes, member: Member) -> Entry:
    where = f"{source.path}: {member.name!r}"
    try:
        with archive.open(member.info) as stream:
            start = stream.read(min(_LONGEST_HEADER, member.info.file_size))
    except _BROKEN_ZIP as fault:
        raise HostileFile("a member can't be inflated", where=where, got=str(fault)) from fault
    header = _parse_header(start, where, member.name)
    if member.info.compress_type == zipfile.ZIP_STORED:
        entry = _entry(member.name, header, source, member.offset + header.length)
        end = member.offset + member.info.file_size
    else:
        scratch = _inflated(source.path, member)
        entry = _entry(member.name, header, scratch, header.length)
        end = member.info.file_size
    if entry.offset + entry.nbytes > end:
        raise TruncatedFile("an array ends behind its member", where=where)
    return entry


def _inflated(path: Path, member: Member) -> Scratch:
    def write(file: BinaryIO) -> None:
        try:
            with zipfile.ZipFile(path) as archive, archive.open(member.info) as stream:
                shutil.copyfileobj(stream, file, 1 << 20)
        except _BROKEN_ZIP as fault:
            raise HostileFile(
                f"member {member.name!r} can't be inflated", where=str(path), got=str(fault)
            ) from fault

    return Scratch(path, member.info.file_size, write)


def _parse_header(start: bytes, where: str, name: str) -> _Header:
    stream = io.BytesIO(start)
    try:
        version = npy.read_magic(stream)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise NotSupported("not supported: npy version", where=where, got=str(version))
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream, max_header_size=_LONGEST_HEADER)
    except _BROKEN_HEADER as fault:
        raise HostileFile(f"array {name!r} has a broken header", where=where) from fault
    if dtype.hasobject:
        raise NotSupported(
            f"array {name!r} is a pickle, which could run code",
            where=where,
            todo="save it as numbers",
        )
    if dtype not in _NAMES:
        raise NotSupported(
            f"not supported: numpy dtype {str(dtype)[:40]}", where=f"{where}: array {name!r}"
        )
    if any(type(n) is not int or n < 0 for n in shape) or len(shape) > 16:
        raise HostileFile(f"array {name!r} has an impossible shape", where=where)
    return _Header(dtype, shape, fortran and len(shape) > 1, stream.tell())


def _entry(name: str, header: _Header, source: FileBytes, offset: int) -> Entry:
    if not header.fortran:
        entry = Entry(name, _NAMES[header.dtype], header.shape, source, offset)
        source.check(offset, entry.nbytes, f"array {name!r}")
        return entry
    strides = c_strides(header.shape[::-1])[::-1]
    turned = StridedEntry(name, _NAMES[header.dtype], header.shape, source, offset, strides)
    source.check(offset, turned.nbytes, f"array {name!r}")
    return turned
