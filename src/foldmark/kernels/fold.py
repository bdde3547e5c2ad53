"""One array on its way to scales, zero points and codes by a whole rule.

Where blocks fit the cache, range, scale and codes of some blocks are done before the next ones
are touched, so that the array comes from memory once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.catalog import FLOAT32
from foldmark.exact.rule import (
    Extent,
    Infinity,
    NotANumber,
    Rule,
    TinyAction,
    ZeroForm,
    definite,
)
from foldmark.kernels.affine import Grid
from foldmark.kernels.blocks import Layout, Piece
from foldmark.kernels.codes import CodesJob, codes_dtype, first_place, raise_non_finite, work_dtype
from foldmark.kernels.cold import BUDGET, fold_even_blocks
from foldmark.kernels.dense import dense_blocks
from foldmark.kernels.floats import Floats, dtype_of, format_of, reader, working_dtype
from foldmark.kernels.loops import Codes
from foldmark.kernels.ranges import ends_of, piece_ends, piece_magnitudes, unset_ends
from foldmark.kernels.scales import choose
from foldmark.kernels.threads import each
from foldmark.kernels.zeros import possible_zero_points, zero_dtype

__all__ = ["QuantizedGroup", "quantize_array", "ranges_to_grid"]


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedGroup:
    """Codes with the scales and zero points that are stored beside them.

    codes       any shape         the smallest integer dtype that holds the rule's codes
    scale       the grid's shape  in the dtype that the rule stores scales in
    zero_point  the grid's shape  integers, or floats where the rule's zero points are real
    """

    codes: Codes
    scale: Floats
    zero_point: NDArray[Any]


def quantize_array(values: NDArray[Any], block: Sequence[int] | None, rule: Rule) -> QuantizedGroup:
    """Quantize every block of an array on its own.

    values  any shape  float32, float16, bfloat16 or float64
    block   extent of a block along every axis; the last block of an axis may be cut short

    Raises NonFiniteValue naming the first index that the rule has no code for.
    """
    layout = Layout.of(values, block)
    group = _quantize_cold(values, layout, rule) or _quantize_plainly(values, layout, rule)
    if group is not None:
        return group
    for dtype in (codes_dtype(rule.codes), np.dtype(np.int64)):
        fold = Fold(values, rule, layout, dtype)
        wholes = layout.whole_pieces()
        if wholes is None:
            fold.fold(
                layout.pieces(fold.job.piece_size),
                each,
                slice(0, layout.table[0]),
                slice(0, layout.table[1]),
            )
        else:
            each(fold.fold_piece, wholes)
        fold.raise_if_refused()
        if not fold.job.beyond:
            break
    scale, zero_point = fold.parameters()
    return QuantizedGroup(fold.job.finish(), scale, zero_point)


def _quantize_cold(values: NDArray[Any], layout: Layout, rule: Rule) -> QuantizedGroup | None:
    """Quantize by numpy where that ends before a compiled loop is loaded; None where not."""
    if not BUDGET.take(values.size):
        return None
    made = fold_even_blocks(values, layout, rule)
    if made is None:
        return None
    codes, grid = made
    stored = dtype_of(definite(rule.for_data(FLOAT32).scale.stored, FLOAT32))
    zero_point = grid.zero_point.astype(zero_dtype(rule))
    return QuantizedGroup(codes, grid.scale.astype(stored), zero_point)


def _quantize_plainly(values: NDArray[Any], layout: Layout, rule: Rule) -> QuantizedGroup | None:
    """Quantize where loops over whole dense blocks do it; None where they do not."""
    blocks = dense_blocks(values, layout, rule)
    if blocks is None:
        return None
    codes = layout.empty(codes_dtype(rule.codes))
    flat = layout.dense_rows_of(codes).reshape(-1)
    if not blocks.fold(lambda place: flat[place]):
        return None
    scale, zero_point = blocks.parameters()
    return QuantizedGroup(codes, scale, zero_point)


def ranges_to_grid(values: NDArray[Any], rule: Rule, block: Sequence[int] | None) -> Grid:
    """Return scale and zero point of every block, stored and as used for its codes.

    values  any shape  float32, float16, bfloat16 or float64
    block   extent of a block along every axis
    ->      arrays of the grid's shape

    Raises NonFiniteValue naming the first NaN or infinity that the rule does not allow.
    """
    layout = Layout.of(values, block)
    fold = Fold(values, rule, layout, codes_dtype(rule.codes))
    fold.measure(layout.pieces(), each)
    whole = slice(0, layout.table[0]), slice(0, layout.table[1])
    fold.raise_if_refused()
    found = fold.choose(whole)
    scale, zero_point = fold.parameters()
    return Grid(scale, zero_point, layout.from_table(found.step), layout.from_table(found.offset))


class Fold:
    """One array on its way to codes: ends, then grid, then codes, some blocks at a time."""

    def __init__(
        self, values: NDArray[Any], rule: Rule, layout: Layout, dtype: np.dtype[Any]
    ) -> None:
        data = format_of(values.dtype)
        self.values = values
        self.rule = rule.for_data(data)
        self.layout = layout
        self.read = reader(values, layout)
        work = work_dtype(self.rule.affine, dtype, _largest_offset(self.rule))
        self.job = CodesJob(values, self.rule.affine, layout, dtype, work)
        self.find = piece_magnitudes if _asks_for_magnitudes(self.rule) else piece_ends
        # Until a piece is measured that says otherwise; on the way to another precision, narrower
        # or wider, a finite number may still overflow.
        self.job.all_finite = working_dtype(data) == work == dtype_of(self.job.precision)
        self.low, self.high = unset_ends(layout.table, working_dtype(data))
        self.scale = np.empty(layout.table, dtype_of(definite(self.rule.scale.stored, FLOAT32)))
        self.zero_point = np.empty(layout.table, zero_dtype(self.rule))

    def fold_piece(self, piece: Piece) -> None:
        """Fold a piece that owns all its blocks, in the calling thread."""
        parts = self.layout.parts(piece, self.job.piece_size)
        self.fold(parts, one_by_one, piece.grid_rows, piece.grid_columns)

    def fold(
        self,
        pieces: list[Piece],
        run: Callable[[Callable[[Piece], None], Sequence[Piece]], None],
        grid_rows: slice,
        grid_columns: slice,
    ) -> None:
        """Fold pieces that together own the blocks at a place of the table."""
        self.measure(pieces, run)
        if not self.job.refused:
            self.choose((grid_rows, grid_columns))
            run(self.job.run, pieces)

    def measure(
        self,
        pieces: list[Piece],
        run: Callable[[Callable[[Piece], None], Sequence[Piece]], None],
    ) -> None:
        """Find the ends of the blocks that pieces touch."""
        run(self._measure, pieces)

    def _measure(self, piece: Piece) -> None:
        numbers = self.read(piece)
        lowest, highest, finite = self.find(numbers, self.layout, piece)
        place = (piece.grid_rows, piece.grid_columns)
        with self.job.lock:
            np.minimum(self.low[place], lowest, out=self.low[place])
            np.maximum(self.high[place], highest, out=self.high[place])
        if finite:
            return
        self.job.all_finite = False
        refused = self._refused(numbers)
        if refused.any():
            with self.job.lock:
                self.job.refused.append(first_place(refused, piece, self.layout))

    def _refused(self, numbers: Floats) -> NDArray[np.bool_]:
        refused = np.zeros(numbers.shape, bool)
        if self.rule.affine.nan == NotANumber.RAISE:
            refused |= np.isnan(numbers)
        if self.rule.affine.infinity == Infinity.RAISE:
            refused |= np.isinf(numbers)
        return refused

    def choose(self, place: tuple[slice, slice]) -> Grid:
        """Choose the grid of the blocks at a place of the table."""
        low, high = ends_of(self.low[place], self.high[place])
        found = choose(low, high, self.rule, partial(self._first_is_low, place=place))
        with np.errstate(all="ignore"):
            self.scale[place] = found.scale
            self.zero_point[place] = found.zero_point
        self.job.place(place, found.step, found.offset)
        return found

    def parameters(self) -> tuple[Floats, NDArray[Any]]:
        """Return scale and zero point in the grid's shape."""
        return self.layout.from_table(self.scale), self.layout.from_table(self.zero_point)

    def raise_if_refused(self) -> None:
        """Raise NonFiniteValue for the first number that the rule does not allow."""
        if self.job.refused:
            raise_non_finite(self.values, min(self.job.refused))

    def _first_is_low(
        self, tied: NDArray[np.bool_], place: tuple[slice, slice]
    ) -> NDArray[np.bool_]:
        """Say for which of the tied blocks the low end comes first in C order."""
        low_first = np.zeros(tied.shape, bool)
        places = np.arange(np.prod(self.layout.table)).reshape(self.layout.table)[place]
        sizes = [self.layout.grid[axis] for axis in self.layout.order]
        back = np.argsort(self.layout.order)
        for row, column in zip(*np.nonzero(tied), strict=True):
            walked = np.unravel_index(places[row, column], sizes)
            index = [int(walked[axis]) for axis in back]
            cut = tuple(
                slice(i * extent, (i + 1) * extent)
                for i, extent in zip(index, self.layout.block, strict=True)
            )
            numbers = self.values[cut].ravel()
            magnitudes = np.abs(numbers)
            farthest = np.nanmax(magnitudes.astype(np.float64))
            low_first[row, column] = numbers[np.argmax(magnitudes == farthest)] < 0
        return low_first


def one_by_one(work: Callable[[Piece], None], pieces: Sequence[Piece]) -> None:
    """Call `work` on every piece in the calling thread."""
    for piece in pieces:
        work(piece)


def _asks_for_magnitudes(rule: Rule) -> bool:
    """Say whether a rule gives the same for the ends -m and m as for the ends of the data."""
    stretched = any(tiny.action == TinyAction.STRETCH for tiny in rule.scale.tiny)
    fixed = rule.zero_point.form == ZeroForm.FIXED
    return rule.scale.extent == Extent.MAGNITUDE and fixed and not stretched


def _largest_offset(rule: Rule) -> float:
    """Return how large an offset can become in the codes' own unit."""
    if rule.affine.zero_is_real:
        return 0.0  # it is in the values' unit, and rounded to the precision before it is used
    return float(max((abs(code) for code in possible_zero_points(rule)), default=1 << 32))
