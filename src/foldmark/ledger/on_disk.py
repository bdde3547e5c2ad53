"""Arrays in temporary files: the system gives their memory to others when that is asked for."""

import tempfile

import numpy as np
from numpy.typing import NDArray

__all__ = ["on_disk"]


def on_disk(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a copy that lies in a file of its own, which goes when the copy does."""
    with tempfile.TemporaryFile() as file:
        copy = np.memmap(file, array.dtype, "w+", shape=array.shape)
    copy[...] = array
    return copy
