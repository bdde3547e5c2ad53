"""Which elements share a scale on two sides of a match, whatever way their axes run."""

import math

import numpy as np

from foldmark.compare.align import Match
from foldmark.formats.stored import StoredTensor
from foldmark.formats.values import Array, Layout

__all__ = ["shared_scales"]


def shared_scales(match: Match) -> tuple[str, str] | None:
    """Return in words which elements share a scale on each side; None where the same do.

    The right one's axes are counted in the left one's layout where it lies transposed.

    Args:
        match: of two tensors.
    """
    left, right = match.left, match.right[0]
    if left.layout.block is None or right.layout.block is None:
        return None
    block, shape = _inside(right), right.shape
    if match.arrangement.transposed:
        block, shape = block[::-1], shape[::-1]
    if match.arrangement.is_plain or match.arrangement.transposed:
        alike = _inside(left) == block
    else:
        alike = _partition_alike(_numbers(left), match.arrange(_numbers(right)))
    if alike:
        return None
    return left.layout.granularity(left.shape), Layout("", block).granularity(shape)


def _inside(tensor: StoredTensor) -> tuple[int, ...]:
    """Return the block cut down to the tensor."""
    assert tensor.layout.block is not None
    return tuple(min(b, n) for b, n in zip(tensor.layout.block, tensor.shape, strict=True))


def _numbers(tensor: StoredTensor) -> Array:
    """Return the number of its block for every element, int32 of the tensor's shape."""
    block = tensor.layout.block
    assert block is not None
    counts = [-(-n // b) for n, b in zip(tensor.shape, block, strict=True)]
    found = np.zeros((), np.int32)
    for axis, (length, size) in enumerate(zip(tensor.shape, block, strict=True)):
        place = (np.arange(length) // size * math.prod(counts[axis + 1 :])).astype(np.int32)
        found = found[..., None] + place
    return found


def _partition_alike(one: Array, other: Array) -> bool:
    """Say whether two numberings put the same elements together."""
    if one.shape != other.shape:
        return False
    one, other = one.reshape(-1), other.reshape(-1)
    return all(_follows(a, b) for a, b in ((one, other), (other, one)))


def _follows(one: Array, other: Array) -> bool:
    """Say whether the first number decides the second."""
    second = np.zeros(int(one.max(initial=0)) + 1, np.int32)
    second[one] = other
    return bool(np.array_equal(second[one], other))
