"""Large tensors, walked piece by piece so that what is computed of them stays small."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["LARGE", "pieces", "taken"]

_Type = TypeVar("_Type", bound=np.generic)

LARGE = 1 << 24
"""Elements from which a tensor is walked in pieces."""


def pieces(shape: Sequence[int], axis: int = 0, step: int = 1) -> Iterator[slice]:
    """Yield the stretches of an axis that hold about `LARGE` elements each; one where all do.

    step   stretches begin at multiples of it: blocks that share a scale stay whole
    """
    size = prod(shape)
    if size <= LARGE or not shape:
        yield slice(None)
        return
    length = shape[axis]
    each = max(step, LARGE * length // size // step * step)
    for begin in range(0, length, each):
        yield slice(begin, min(begin + each, length))


def taken(array: NDArray[_Type], piece: slice, axis: int, length: int) -> NDArray[_Type]:
    """Return the part of what broadcasts to a tensor that belongs to a piece of the tensor.

    length   the tensor's length along the axis
    """
    if not array.ndim or piece == slice(None) or array.shape[axis] != length:
        return array
    index = [slice(None)] * array.ndim
    index[axis] = piece
    return array[tuple(index)]
