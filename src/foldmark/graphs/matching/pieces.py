"""Weights that an optimizer joined from several, or cut from one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.graphs.matching.float_weights import FloatWeights
from foldmark.graphs.matching.likeness import ALIKE, correlation, distance

__all__ = ["cut", "joined"]

Array = NDArray[Any]


def joined(values: Array, known: FloatWeights) -> tuple[str, Array] | None:
    """Return names and array of the float tensors that a weight is a concatenation of.

    Query, key and value projections of one size are what this is for: along each axis, every
    stretch must resemble one tensor.
    """
    for axis in range(values.ndim):
        length = values.shape[axis]
        for size in sorted(_pieces(values.shape, axis, known), reverse=True):
            if 0 < size < length and length % size == 0:
                found = _filled(values, axis, size, known)
                if found is not None:
                    names, arrays = zip(*found, strict=True)
                    return " + ".join(names), np.concatenate(arrays, axis)
    return None


def _pieces(shape: tuple[int, ...], axis: int, known: FloatWeights) -> set[int]:
    """Return the lengths along an axis of float tensors that fit beside each other."""
    rest = [size for i, size in enumerate(shape) if i != axis]
    lengths = set()
    for tensor in known.tensors.values():
        for dims in (list(tensor.dims), list(tensor.dims)[::-1]):
            if len(dims) == len(shape) and [d for i, d in enumerate(dims) if i != axis] == rest:
                lengths.add(int(dims[axis]))
    return lengths


def _filled(
    values: Array, axis: int, size: int, known: FloatWeights
) -> list[tuple[str, Array]] | None:
    found = []
    for start in range(0, values.shape[axis], size):
        window = values.take(range(start, start + size), axis=axis)
        best = _resembling(window, known)
        if best is None:
            return None
        found.append(best)
    return found


def _resembling(window: Array, known: FloatWeights) -> tuple[str, Array] | None:
    best, score = None, ALIKE
    for name in known.of_size(window.size):
        array = known.array(name)
        for layout in (array, array.T):
            if layout.shape == window.shape and (alike := correlation(layout, window)) > score:
                best, score = (name, layout), alike
    return best if best is not None and distance(best[1], window) < 1 else None


def cut(values: Array, known: FloatWeights) -> tuple[str, Array] | None:
    """Return name and array of the stretch of a float tensor that a weight is."""
    for name, tensor in known.tensors.items():
        if len(tensor.dims) != values.ndim or len(tensor.dims) < 1:
            continue
        for turned in (False, True)[: 1 + (values.ndim == 2)]:
            dims = tuple(reversed(tensor.dims)) if turned else tuple(tensor.dims)
            axis = _longer_axis(dims, values.shape)
            if axis is None:
                continue
            array = known.array(name).T if turned else known.array(name)
            found = _stretch(array, values, axis)
            if found is not None:
                place, piece = found
                return f"{name}[{place}:{place + values.shape[axis]}]", piece
    return None


def _longer_axis(dims: tuple[int, ...], shape: tuple[int, ...]) -> int | None:
    """Return the one axis along which dims are a multiple of shape."""
    different = [
        i for i, (whole, part) in enumerate(zip(dims, shape, strict=True)) if whole != part
    ]
    if len(different) != 1:
        return None
    axis = different[0]
    part = shape[axis]
    return axis if part and dims[axis] > part and dims[axis] % part == 0 else None


def _stretch(array: Array, values: Array, axis: int) -> tuple[int, Array] | None:
    size = values.shape[axis]
    for start in range(0, array.shape[axis], size):
        piece = array.take(range(start, start + size), axis=axis)
        if correlation(piece, values) > ALIKE:
            return start, piece
    return None
