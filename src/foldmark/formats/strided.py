"""Named arrays whose items do not follow each other in C order: views, transposed, cut out."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from foldmark.formats.entry import DTYPES, Entry
from foldmark.formats.stored import Span
from foldmark.formats.values import Array

__all__ = ["StridedEntry", "c_strides", "covered", "distinct"]

# Up to so many bytes between neighbours are read along with them: a call costs as much. At most so
# many bytes are read at once for what lies between.
_NEAR, _MOST_AT_ONCE = 1 << 15, 1 << 24


def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in items, of an array in C order."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def covered(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return how many items lie from the first to the last one, both counted."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def distinct(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """Return how many items the strides lead to, each counted once; None if they cross."""
    if 0 in shape:
        return 0
    items = reach = 1
    for stride, n in sorted(zip(strides, shape, strict=True)):
        if n > 1 and stride:
            if stride < reach:
                return None
            items, reach = items * n, reach + (n - 1) * stride
    return items


@dataclass(frozen=True, eq=False)
class StridedEntry(Entry):
    """One array of a file whose items lie at steps of their own along each axis.

    Attributes:
        strides: items between neighbours along each axis; 0 repeats one.
    """

    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in the file, each counted once."""
        items = distinct(self.shape, self.strides)
        return (self.elements if items is None else items) * DTYPES[self.number_format].itemsize

    @property
    def span(self) -> Span:
        """Where it lies, what lies between its items included."""
        nbytes = covered(self.shape, self.strides) * DTYPES[self.number_format].itemsize
        return Span(self.source, self.offset, nbytes)

    @property
    def in_order(self) -> bool:
        """False: the items do not follow each other."""
        return False

    def read(self, first: int, last: int) -> Array:
        """Read items first..last in C order."""
        items = np.empty(last - first, DTYPES[self.number_format])
        if items.size:
            self._copy(items, first, self.shape, self.strides, 0)
        return items

    def _copy(
        self,
        out: NDArray[Any],
        first: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        place: int,
    ) -> None:
        """Fill a flat array with items from `first` on: part of a row, whole rows, part of one."""
        if not shape:
            self._box(out.reshape(()), (), place)
            return
        across = math.prod(shape[1:])
        row, inside = divmod(first, across)
        if inside:
            head = min(across - inside, out.size)
            self._copy(out[:head], inside, shape[1:], strides[1:], place + row * strides[0])
            out, row = out[head:], row + 1
        rows = out.size // across
        if rows:
            box = out[: rows * across].reshape(rows, *shape[1:])
            self._box(box, strides, place + row * strides[0])
        if out.size > rows * across:
            rest = place + (row + rows) * strides[0]
            self._copy(out[rows * across :], 0, shape[1:], strides[1:], rest)

    def _box(self, out: NDArray[Any], strides: tuple[int, ...], place: int) -> None:
        """Fill an array of any shape: by one read where little lies between, else by halves."""
        reach = covered(out.shape, strides)
        steps = tuple(stride * out.itemsize for stride in strides)
        far = [step if n > 1 else 0 for step, n in zip(steps, out.shape, strict=True)]
        near = max(far, default=0) <= _NEAR and reach * out.itemsize <= _MOST_AT_ONCE
        if near or reach <= 2 * out.size:
            offset = self.offset + place * out.itemsize
            raw = self.source.array(out.dtype, offset, reach, f"tensor {self.name!r}")
            out[...] = as_strided(raw, out.shape, steps)
            return
        axis = int(np.argmax(far))
        half = out.shape[axis] // 2
        first, second = np.split(out, [half], axis=axis)
        self._box(first, strides, place)
        self._box(second, strides, place + half * strides[axis])
