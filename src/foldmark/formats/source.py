"""Positioned reads from a file that may lie: each is checked against the file's size first."""

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from foldmark.errors import FileUnreadable, HostileFile, TruncatedFile

__all__ = ["Cursor", "FileBytes"]

# A header is read through a window of this size, so that a huge one costs no huge allocation.
_WINDOW = 1 << 20


class FileBytes:
    """A file opened for positioned reads.

    Reads go through the operating system's read call and not through a memory map: a file that
    shrinks meanwhile gives an error and not a signal, and the process holds only what it asked
    for, whatever the file's size.

    Args:
        path: a regular file.

    Raises:
        FileUnreadable: missing, not a regular file, not permitted, or empty.
    """

    # still there when the interpreter ends and takes modules apart
    _give_back = staticmethod(os.close)

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._descriptor = _open_regular(path)
        self.size = os.fstat(self._descriptor).st_size
        if self.size == 0:
            self.close()
            raise FileUnreadable("the file is empty", where=str(path))

    def close(self) -> None:
        """Give the descriptor back; reading afterwards is a defect of the caller's."""
        if self._descriptor >= 0:
            self._give_back(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        """Be the file inside a with statement."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close at the end of a with statement."""
        self.close()

    def __del__(self) -> None:
        """Close when nobody holds the file any more."""
        self.close()

    def check(self, offset: int, nbytes: int, what: str) -> None:
        """Refuse a range that is not inside the file.

        Raises:
            HostileFile: a negative offset or length.
            TruncatedFile: a range that ends behind the file.
        """
        if offset < 0 or nbytes < 0:
            raise HostileFile(
                f"{what} has a negative offset or length",
                where=str(self.path),
                got=f"offset {offset}, length {nbytes}",
            )
        if offset + nbytes > self.size:
            raise TruncatedFile(
                f"{what} ends behind the file",
                where=str(self.path),
                got=f"{offset} + {nbytes} bytes",
                expected=f"at most {self.size}",
                todo="fetch the file again; it may be cut short",
            )

    def array(self, dtype: DTypeLike, offset: int, count: int, what: str) -> NDArray[Any]:
        """Return `count` little-endian items at `offset` as a new array.

        Raises:
            HostileFile: a negative offset or count.
            TruncatedFile: a range that ends behind the file.
        """
        kind = np.dtype(dtype)
        self.check(offset, count * kind.itemsize, what)
        items = np.empty(count, dtype=kind)
        self._fill(items.view(np.uint8).data if count else memoryview(b""), offset, what)
        return items

    def fill(self, buffer: NDArray[np.uint8], offset: int, what: str) -> None:
        """Read as many bytes as a flat array holds into it, for those who read piece after piece.

        Raises:
            HostileFile: a negative offset.
            TruncatedFile: a range that ends behind the file.
        """
        self.check(offset, buffer.size, what)
        self._fill(buffer.data if buffer.size else memoryview(b""), offset, what)

    def read(self, offset: int, nbytes: int, what: str) -> bytes:
        """Return `nbytes` bytes at `offset`.

        Raises:
            HostileFile: a negative offset or length.
            TruncatedFile: a range that ends behind the file.
        """
        return self.array(np.uint8, offset, nbytes, what).tobytes()

    def _fill(self, buffer: memoryview, offset: int, what: str) -> None:
        while buffer:
            got = os.preadv(self._descriptor, [buffer], offset)
            if got == 0:
                raise TruncatedFile(f"{what} ends behind the file", where=str(self.path))
            buffer = buffer[got:]
            offset += got


def _open_regular(path: Path) -> int:
    try:
        if not path.is_file():
            kind = "a directory" if path.is_dir() else "not a file" if path.exists() else "missing"
            if kind == "missing" and path.is_symlink():
                kind = "a link that leads to no file"
            raise FileUnreadable("can't be read", where=str(path), got=kind)
        return os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FileUnreadable("can't be read", where=str(path), got=reason) from error


@dataclass
class Cursor:
    """A place in a file's header that moves forward as numbers and strings are taken.

    Attributes:
        source: the file.
        position: byte offset of the next read.
    """

    source: FileBytes
    position: int = 0
    _window: bytes = b""
    _window_start: int = 0

    @property
    def left(self) -> int:
        """Bytes between here and the end of the file."""
        return self.source.size - self.position

    def take(self, nbytes: int, what: str) -> bytes:
        """Return the next `nbytes` bytes and move behind them."""
        start = self.position - self._window_start
        if start < 0 or start + nbytes > len(self._window):
            self.source.check(self.position, nbytes, what)
            length = min(max(nbytes, _WINDOW), self.left)
            self._window = self.source.read(self.position, length, what)
            self._window_start, start = self.position, 0
        self.position += nbytes
        return self._window[start : start + nbytes]

    def skip(self, nbytes: int, what: str) -> None:
        """Move over `nbytes` bytes that must be there."""
        self.source.check(self.position, nbytes, what)
        self.position += nbytes

    def unsigned(self, nbytes: int, what: str) -> int:
        """Return the next little-endian unsigned integer of `nbytes` bytes."""
        return int.from_bytes(self.take(nbytes, what), "little")
