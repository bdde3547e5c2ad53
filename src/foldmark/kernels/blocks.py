"""How an array is cut into blocks that share a scale, and into pieces that fit the cache.

A block shape gives the extent of a block along every axis. Whatever the rank, the strides and
the block shape, the array is walked as rows of one length, each row cut into segments:

    array (2, 3, 8), blocks (1, 3, 4)             rows = 6, length = 8, segment = 4

        row 0   [ a a a a | b b b b ]             row_of = 0 0 0 1 1 1: which row of the
        row 1   [ a a a a | b b b b ]             block grid (2, 2) each row belongs to
        row 2   [ a a a a | b b b b ]
        row 3   [ c c c c | d d d d ]
        ...

Neighbouring axes are merged where the blocks allow it, so that one scale per tensor is one long
row with one segment, and groups along the last axis are one long row with many. With a segment
of 1 every element of a row has a parameter of its own: one scale per column.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import InvalidScheme
from foldmark.kernels.scratch import new_memory

__all__ = ["PIECE", "RUN", "Layout", "Piece", "grid_shape"]

PIECE: Final = 1 << 16
"""Elements in flight per thread: in float32 a quarter of a megabyte, within any second cache."""

RUN: Final = 1 << 18
"""Elements of whole blocks handled in one go, from range to codes: 1 MB of float32."""


def grid_shape(shape: Sequence[int], block: Sequence[int]) -> tuple[int, ...]:
    """Return how many blocks lie along each axis: ceil(size / extent), the last one ragged.

    Raises InvalidScheme when the ranks differ or an extent is not positive.
    """
    if len(shape) != len(block) or any(extent < 1 for extent in block):
        raise InvalidScheme(
            "a block shape needs one positive extent for every axis",
            got=f"blocks {tuple(block)} for an array of shape {tuple(shape)}",
        )
    return tuple(-(-size // extent) for size, extent in zip(shape, block, strict=True))


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `first`..`last` of a layout, columns `start`..`stop`, in segments of `segment`.

    grid_rows and grid_columns select the parameters that the piece touches.
    """

    first: int
    last: int
    start: int
    stop: int
    segment: int
    grid_rows: slice
    grid_columns: slice

    @property
    def size(self) -> int:
        """Elements of the piece."""
        return (self.last - self.first) * (self.stop - self.start)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The walk over one array: see the module's drawing.

    shape    of the array; block: extent of a block along every axis; grid: blocks along each
    order    the array's axes from the slowest to the fastest in memory
    row_of   (rows,)  int64  row of the parameter table for every row of the array
    table    (grid rows, segments), the shape in which parameters are walked
    """

    shape: tuple[int, ...]
    block: tuple[int, ...]
    grid: tuple[int, ...]
    order: tuple[int, ...]
    rows: int
    length: int
    segment: int
    row_of: NDArray[np.int64]
    table: tuple[int, int]

    @staticmethod
    def of(array: NDArray[Any], block: Sequence[int] | None) -> "Layout":
        """Return the walk over `array` in blocks of shape `block`; None: all of it is one block."""
        if block is None:
            grid: tuple[int, ...] = (1,) * array.ndim
            block = tuple(max(size, 1) for size in array.shape)
        else:
            grid = grid_shape(array.shape, block)
            limits = zip(block, array.shape, strict=True)
            block = tuple(min(extent, max(size, 1)) for extent, size in limits)
        order = _memory_order(array)
        sizes = [array.shape[axis] for axis in order]
        extents = [block[axis] for axis in order]
        outer, (length, segment) = _merged(sizes, extents)
        row_of = _grid_rows(outer)
        table = (prod(-(-size // extent) for size, extent in outer), -(-length // segment))
        if array.size == 0:
            table = (prod(grid), 1)
        rows = prod(size for size, _ in outer)
        return Layout(array.shape, block, grid, order, rows, length, segment, row_of, table)

    def empty(self, dtype: Any) -> NDArray[Any]:
        """Return a new array of the layout's shape whose memory is walked in the same order."""
        sizes = [self.shape[axis] for axis in self.order]
        flat = new_memory(prod(sizes), dtype)
        return flat.reshape(sizes).transpose(np.argsort(self.order))

    def rows_of(self, array: NDArray[Any]) -> NDArray[Any] | None:
        """Return `array` as (rows, length) without copying; None where memory is not dense."""
        walked = array.transpose(self.order)
        return walked.reshape(self.rows, self.length) if walked.flags.c_contiguous else None

    def dense_rows_of(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array made by `empty` as (rows, length), sharing its memory."""
        return array.transpose(self.order).reshape(self.rows, self.length)

    def to_table(self, parameters: NDArray[Any]) -> NDArray[Any]:
        """Bring parameters of the grid's shape into the walked table."""
        return np.ascontiguousarray(parameters.transpose(self.order)).reshape(self.table)

    def from_table(self, table: NDArray[Any]) -> NDArray[Any]:
        """Bring a walked table of parameters back to the grid's shape."""
        sizes = [self.grid[axis] for axis in self.order]
        return table.reshape(sizes).transpose(np.argsort(self.order)).copy()

    def pieces(self, size: int = PIECE) -> list[Piece]:
        """Cut the walk into pieces of about `size` elements, each contiguous in memory."""
        if 0 in self.shape:
            return []
        return self._cut(slice(0, self.rows), slice(0, self.length), size)

    def parts(self, piece: Piece, size: int = PIECE) -> list[Piece]:
        """Cut a piece into smaller ones."""
        return self._cut(slice(piece.first, piece.last), slice(piece.start, piece.stop), size)

    def whole_pieces(self) -> list[Piece] | None:
        """Cut the walk into pieces that own all their blocks; None where blocks are too large."""
        group = self._rows_per_grid_row()
        if 0 in self.shape or group is None or group * self.segment > RUN:
            return None
        if group == 1 and self.length > RUN:
            return self.pieces(RUN)
        if group * self.length > 4 * RUN:
            return None
        step = max(1, RUN // (group * self.length)) * group
        return self._bands(slice(0, self.rows), step)

    @property
    def follows(self) -> bool:
        """Whether blocks follow one another in memory, each of them whole: a flat row of blocks."""
        even = self.rows == 1 or self.length % self.segment == 0
        return self.rows == self.table[0] and even and self.segment > 1 and 0 not in self.shape

    def cuts(self, size: int) -> list[tuple[int, slice]]:
        """Cut blocks that follow one another into parts of `size`: which block, which numbers."""
        total = self.rows * self.length
        return [
            (block, slice(begin, min(begin + size, border + self.segment, total)))
            for block, border in enumerate(range(0, total, self.segment))
            for begin in range(border, min(border + self.segment, total), size)
        ]

    def _cut(self, rows: slice, columns: slice, size: int) -> list[Piece]:
        if columns.stop - columns.start > size:
            each_row = range(rows.start, rows.stop)
            return [piece for row in each_row for piece in self._along(row, columns, size)]
        if columns != slice(0, self.length):
            return list(self._along(rows.start, columns, size))
        return self._bands(rows, max(1, size // self.length))

    def _bands(self, rows: slice, step: int) -> list[Piece]:
        """Cut whole rows into bands of `step` rows."""
        starts = range(rows.start, rows.stop, step)
        return [self._of_rows(first, min(first + step, rows.stop)) for first in starts]

    def _rows_per_grid_row(self) -> int | None:
        """Return how many neighbouring rows share parameters, None where that is not regular."""
        if self.rows == self.table[0]:
            return 1
        group = int(np.searchsorted(self.row_of, 1)) if self.table[0] > 1 else self.rows
        regular = np.array_equal(self.row_of, np.arange(self.rows) // group)
        return group if regular else None

    def _of_rows(self, first: int, last: int) -> Piece:
        used = self.row_of[first:last]
        rows = slice(int(used.min()), int(used.max()) + 1)
        return Piece(first, last, 0, self.length, self.segment, rows, slice(0, self.table[1]))

    def _along(self, row: int, columns: slice, size: int) -> Iterator[Piece]:
        """Cut a stretch of one row, at borders of segments or within one of them."""
        rows = slice(int(self.row_of[row]), int(self.row_of[row]) + 1)
        start = columns.start
        while start < columns.stop:
            if self.segment <= size:
                stop = min(start + size - size % self.segment, columns.stop)
                segment = self.segment
            else:
                border = (start // self.segment + 1) * self.segment
                stop = min(start + size, border, columns.stop)
                segment = stop - start
            table = slice(start // self.segment, -(-stop // self.segment))
            yield Piece(row, row + 1, start, stop, segment, rows, table)
            start = stop


def _memory_order(array: NDArray[Any]) -> tuple[int, ...]:
    """Return the axes from the largest stride to the smallest, as they stand where equal."""
    if array.flags.c_contiguous:
        return tuple(range(array.ndim))
    return tuple(sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])))


def _merged(sizes: list[int], extents: list[int]) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Merge axes, fastest first, into rows: the outer axes, then (length, segment)."""
    length, segment = 1, 1
    outer: list[tuple[int, int]] = []
    for size, extent in zip(reversed(sizes), reversed(extents), strict=True):
        if outer:
            outer.insert(0, (size, extent))
        elif segment == length:  # one whole segment, of any length: the block reaches across it
            length, segment = size * length, extent * length
        elif extent == 1 and length % segment == 0:  # segments of the next row simply follow
            length *= size
        else:
            outer.insert(0, (size, extent))
    return outer, (length, max(segment, 1))


def _grid_rows(outer: list[tuple[int, int]]) -> NDArray[np.int64]:
    """Return for every combination of outer indices the row of the parameter table."""
    row_of = np.zeros(1, np.int64)
    for size, extent in outer:
        blocks = -(-size // extent)
        row_of = (row_of[:, None] * blocks + np.arange(size) // extent).ravel()
    return row_of
