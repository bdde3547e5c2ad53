"""Arrays that don't lie in the file as they are: written out once, on first use."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import TruncatedFile
from foldmark.formats.source import FileBytes
from foldmark.formats.values import Array

__all__ = ["Scratch"]


class Scratch(FileBytes):
    """Bytes that are made from a file (inflated, put in another order) and kept on disk.

    Args:
        path: the file that they come from, for messages.
        size: how many bytes `write` will give.
        write: called once with the open temporary file, when the first byte is asked for.
    """

    def __init__(self, path: Path, size: int, write: Callable[[BinaryIO], None]) -> None:
        self.path = path
        self.size = size
        self._write = write
        self._descriptor = -1
        self._file: BinaryIO | None = None

    def array(self, dtype: np.typing.DTypeLike, offset: int, count: int, what: str) -> Array:
        """Return items as `FileBytes.array` does, making the bytes first where needed."""
        self._make_once()
        return super().array(dtype, offset, count, what)

    def fill(self, buffer: NDArray[np.uint8], offset: int, what: str) -> None:
        """Read into an array as `FileBytes.fill` does, making the bytes first where needed."""
        self._make_once()
        super().fill(buffer, offset, what)

    def close(self) -> None:
        """Give the temporary file back."""
        if getattr(self, "_file", None) is not None and self._file is not None:
            self._file.close()
            self._file = None
        self._descriptor = -1

    def _make_once(self) -> None:
        if self._file is None:
            self._file = self._made()

    def _made(self) -> BinaryIO:
        file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as this object)
        self._write(file)
        file.flush()
        self._descriptor = file.fileno()
        if file.tell() != self.size:
            raise TruncatedFile(
                "an array is shorter than announced",
                where=str(self.path),
                got=str(file.tell()),
                expected=str(self.size),
            )
        return file
