"""The smallest and largest code of each block, and the elements that set the scales."""

from dataclasses import dataclass

import numpy as np

from foldmark.formats.stored import Array, StoredTensor

__all__ = ["Setter", "block_extremes", "find_setter"]


@dataclass(frozen=True)
class Setter:
    """The element whose size chose a scale.

    Attributes:
        index: its place in the tensor.
        code: what it became.
        value: what it is worth, dequantized.
    """

    index: tuple[int, ...]
    code: int
    value: float


def block_extremes(codes: Array, block: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the smallest and the largest code of each block, one item a block.

    Blocks that stick out behind the tensor's end count their part inside.
    """
    low = high = codes
    for axis, size in enumerate(block):
        if size == 1:
            continue
        starts = np.arange(0, codes.shape[axis], size)
        low = (
            np.minimum.reduceat(low, starts, axis=axis)
            if len(starts) > 1
            else low.min(axis=axis, keepdims=True)
        )
        high = (
            np.maximum.reduceat(high, starts, axis=axis)
            if len(starts) > 1
            else high.max(axis=axis, keepdims=True)
        )
    return low, high


def find_setter(tensor: StoredTensor, piece: int, place: tuple[int, ...]) -> Setter:
    """Find the element of largest magnitude in one block.

    Args:
        tensor: where to look.
        piece: index along the walk axis that a piece begins with, the block in it.
        place: the block's index among the blocks of that piece.
    """
    block = tensor.layout.block or tensor.shape
    axis = tensor.walk_axis
    length = tensor.shape[axis] if tensor.shape else 1
    size = block[axis] if block else 1
    if size >= length:
        return _largest_of_all(tensor)
    first = piece + place[axis] * size
    first -= first % tensor.walk_step
    values = tensor.rows(first, min(length, first + max(size, tensor.walk_step)))
    inside = list(place)
    inside[axis] = (piece + place[axis] * size - first) // size
    numbers = values.dequantize()
    inside_block = np.zeros(numbers.shape, bool)
    region = tuple(slice(i * b, (i + 1) * b) for i, b in zip(inside, block, strict=True))
    if values.group is not None:
        inside_block[region[:-1]] = values.group == place[-1]
    else:
        inside_block[region] = True
    magnitude = np.where(inside_block, np.abs(numbers), -1)
    at = np.unravel_index(int(np.argmax(magnitude)), numbers.shape)
    index, value = [int(i) for i in at], float(numbers[at])
    code = int(_integers(values.codes)[tuple(index)])
    index[axis] += first
    return Setter(tuple(index), code, value)


def _largest_of_all(tensor: StoredTensor) -> Setter:
    best = Setter((0,) * len(tensor.shape), 0, 0.0)
    for first, values in tensor.pieces(1 << 20):
        numbers = values.dequantize()
        if not numbers.size:
            continue
        at = np.unravel_index(int(np.argmax(np.abs(numbers))), numbers.shape)
        if abs(numbers[at]) > abs(best.value):
            index = [int(i) for i in at]
            code = int(_integers(values.codes)[at])
            if index:
                index[tensor.walk_axis] += first
            best = Setter(tuple(index), code, float(numbers[at]))
    return best


def _integers(codes: Array) -> Array:
    return codes if codes.dtype.kind in "iu" else codes.view(np.uint8)
