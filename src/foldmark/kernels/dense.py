"""Arrays that lie as whole blocks one after another, folded by a plain rule in a few long loops.

Blocks of any size that one thread folds from range to codes are taken in runs of many. A few blocks
too large for that are taken in parts, by all threads: once for the ends of each block, and once
more, from the back, where the last parts are still in the cache, for its codes.

Halves are widened a run at a time.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.catalog import FLOAT64
from foldmark.exact.rule import Rule
from foldmark.kernels.blocks import RUN, Layout
from foldmark.kernels.compiled import compiled, read_only
from foldmark.kernels.floats import Floats, format_of, widened
from foldmark.kernels.lanes import Order, ends_of_blocks
from foldmark.kernels.loops import Codes
from foldmark.kernels.plain import Plain, plain
from foldmark.kernels.quotients import codes_of_one_block
from foldmark.kernels.scales import choose
from foldmark.kernels.threads import each, share_of, thread_count
from foldmark.kernels.zeros import zero_dtype

__all__ = ["DenseBlocks", "dense_blocks"]

_CACHE: Final = 8 << 20
"""Bytes of codes beyond which they are written past the cache."""

Target = Callable[[slice], Codes]


class DenseBlocks(Protocol):
    """Blocks that follow one another, on their way to codes."""

    def fold(self, target: Target, order: Order = (), move: int = 0) -> bool:
        """Write all codes; say whether all numbers were finite, without which codes mean nothing.

        target  gives the place of the codes of a slice of the flat array
        order   see `lanes`; where it is not (), segments are even
        move    added to every code
        """

    def parameters(self) -> tuple[Floats, NDArray[Any]]:
        """Return scale and zero point in the grid's shape."""


def dense_blocks(values: NDArray[Any], layout: Layout, rule: Rule) -> DenseBlocks | None:
    """Return the blocks of an array, or None where rule, dtype or blocks ask for more."""
    rows = layout.rows_of(values)
    data = format_of(values.dtype)
    if data == FLOAT64 or not values.dtype.isnative or rows is None or not layout.follows:
        return None
    definite = rule.for_data(data)
    found = plain(definite)
    if found is None:
        return None
    few = layout.table[0] * layout.table[1] < 2 * thread_count()
    if not (few and layout.segment > RUN):
        return _Runs(rows.reshape(-1), layout, found, zero_dtype(rule))
    if found.reciprocal:
        return None
    return _Parts(rows.reshape(-1), layout, found, definite, zero_dtype(rule))


class _Runs:
    """Blocks that one thread folds from range to codes."""

    def __init__(self, values: Floats, layout: Layout, plain: Plain, zero_dtype: Any) -> None:
        self.values = values
        self.layout = layout
        self.plain = plain
        self.scale = np.empty(layout.table, np.float32)
        self.zero_point = np.empty(layout.table, zero_dtype)

    def fold(self, target: Target, order: Order = (), move: int = 0) -> bool:
        segment, count = self.layout.segment, self.scale.size
        blocks = max(1, _share(self.values) // segment)
        finite: list[bool] = []
        past = _goes_past_the_cache(self.values, order)

        def run(first: int) -> None:
            last = min(first + blocks, count)
            place = slice(first * segment, min(last * segment, self.values.size))
            scale, zero_point = (t.reshape(-1)[first:last] for t in (self.scale, self.zero_point))
            numbers, codes = widened(self.values[place]), target(place)
            finite.append(
                self.plain.fold(numbers, segment, scale, zero_point, codes, order, move, past)
            )

        each(run, range(0, count, blocks))
        return all(finite)

    def parameters(self) -> tuple[Floats, NDArray[Any]]:
        return self.layout.from_table(self.scale), self.layout.from_table(self.zero_point)


class _Parts:
    """A few blocks that all threads fold together."""

    def __init__(
        self, values: Floats, layout: Layout, plain: Plain, rule: Rule, zero_dtype: Any
    ) -> None:
        self.values = values
        self.layout = layout
        self.plain = plain
        self.rule = rule
        self.scale = np.empty(layout.table, np.float32)
        self.zero_point = np.empty(layout.table, zero_dtype)
        self.parts = layout.cuts(_share(values))

    def fold(self, target: Target, order: Order = (), move: int = 0) -> bool:
        low, high = self._ends()
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return False
        grid = choose(low, high, self.rule, np.zeros_like)
        self.scale.reshape(-1)[:] = grid.scale
        self.zero_point.reshape(-1)[:] = grid.zero_point
        moved = np.float32(move)
        least, most = self.plain.low + moved, self.plain.high + moved
        steps, zeros = grid.step.astype(np.float32), grid.offset.astype(np.float32) + moved

        past = _goes_past_the_cache(self.values, order)

        def write(part: tuple[int, slice]) -> None:
            block, place = part
            numbers, codes = widened(self.values[place]), target(place)
            codes_of_one_block(numbers, steps[block], zeros[block], least, most, codes, order, past)

        each(write, self.parts[::-1])
        return True

    def _ends(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the lowest and the highest number of every block, zero in range."""
        highest = np.empty(len(self.parts), np.float32)
        lowest = np.empty(len(self.parts), np.float32)

        def look(index: int) -> None:
            own = slice(index, index + 1)
            bits = read_only(widened(self.values[self.parts[index][1]])).view(np.int32)
            _ends_of_all(bits, highest[own].view(np.int32), lowest[own].view(np.uint32))

        each(look, range(len(self.parts)))
        blocks = np.array([block for block, _ in self.parts])
        first = np.flatnonzero(np.diff(blocks, prepend=-1))
        return np.minimum.reduceat(lowest, first), np.maximum.reduceat(highest, first)

    def parameters(self) -> tuple[Floats, NDArray[Any]]:
        return self.layout.from_table(self.scale), self.layout.from_table(self.zero_point)


def _goes_past_the_cache(values: Floats, order: Order) -> bool:
    """Say whether there are so many codes that none would still be in the cache at the end."""
    return values.size >> bool(order) >= _CACHE


def _share(values: Floats) -> int:
    """Return how many numbers one thread takes at a time; halves are widened into the cache."""
    return share_of(values.size, RUN) if values.dtype == np.float32 else RUN


@compiled
def _ends_of_all(
    bits: NDArray[np.int32], top: NDArray[np.int32], bottom: NDArray[np.uint32]
) -> None:
    ends_of_blocks(bits, bits.size, 0, top, bottom)
