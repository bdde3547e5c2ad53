"""Buffers that each thread keeps: fresh memory costs more than the arithmetic done in it."""

from threading import local
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["scratch"]

_kept = local()


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
