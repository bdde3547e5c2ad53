"""Memory to write to: new, or a buffer that each thread keeps, as fresh memory has its price."""

from threading import local
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["new_memory", "scratch"]

_kept = local()
_LINE: Final = 64
"""Bytes that a processor moves at a time: lines of its cache."""


def new_memory(count: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return a new flat array that begins with a cache line, as stores past the cache ask for."""
    size = count * np.dtype(dtype).itemsize
    room = np.empty(size + _LINE, np.uint8)
    begin = -room.ctypes.data % _LINE
    return room[begin : begin + size].view(dtype)


def scratch(purpose: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array whose numbers are the calling thread's until it asks for the purpose again.

    purpose  what the numbers are, so that two of them in use at once lie apart
    """
    if not hasattr(_kept, "buffers"):
        _kept.buffers = {}
    buffers: dict[tuple[str, np.dtype[Any]], NDArray[Any]] = _kept.buffers
    kind, size = (purpose, np.dtype(dtype)), int(np.prod(shape, dtype=np.int64))
    found = buffers.get(kind)
    if found is None or found.size < size:
        found = buffers[kind] = np.empty(size, dtype)
    return found[:size].reshape(shape)
