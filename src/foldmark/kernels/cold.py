"""Codes by numpy alone, for a process in which no loop is compiled yet.

Loading the first compiled loop takes the better part of a second, whatever the array. numpy needs
a few times as long per element and begins at once: it is ahead for the first hundred million of a
process. Codes, scales and zero points are the same bit for bit.
"""

from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.catalog import FLOAT32
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import AffineRule, Clip, ExtremeTie, Infinity, Rule, Scaling, ZeroOrder
from foldmark.kernels.affine import Grid
from foldmark.kernels.blocks import PIECE, Layout
from foldmark.kernels.codes import codes_dtype
from foldmark.kernels.compiled import is_started
from foldmark.kernels.floats import format_of
from foldmark.kernels.loops import Codes
from foldmark.kernels.scales import choose
from foldmark.kernels.threads import each

__all__ = ["BUDGET", "Budget", "fold_even_blocks"]

Singles = NDArray[np.float32]


class Budget:
    """How many elements a process gives to numpy before compiled loops are worth loading."""

    def __init__(self, elements: int) -> None:
        self._left = elements

    def take(self, elements: int) -> bool:
        """Say whether so many elements are numpy's, and count them if they are."""
        if is_started() or elements > self._left:
            return False
        self._left -= elements
        return True


BUDGET: Final = Budget(100_000_000)


def fold_even_blocks(values: NDArray[Any], layout: Layout, rule: Rule) -> tuple[Codes, Grid] | None:
    """Quantize blocks that cut every axis evenly: per tensor, per channel, whole groups.

    values  any shape  float32 in C order
    ->      codes, and the grid of the blocks, all of it float64 in the grid's shape

    None where rule, dtype or blocks ask for the general way, or a number is not finite.
    """
    usable = values.ndim and values.size and values.flags.c_contiguous and values.dtype.isnative
    if not usable or format_of(values.dtype) != FLOAT32:
        return None
    rule = rule.for_data(FLOAT32)
    cuts = list(zip(values.shape, layout.block, strict=True))
    even = all(size % extent == 0 for size, extent in cuts)
    if not even or rule.scale.tie == ExtremeTie.FIRST or not _is_plain(rule.affine):
        return None
    shape, axes = _apart(cuts)
    apart = values.reshape(shape)
    low, high = apart.min(axes, keepdims=True), apart.max(axes, keepdims=True)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return None
    grid = choose(low, high, rule, np.zeros_like)
    if not grid.step.all():
        return None
    codes = np.empty(apart.shape, codes_dtype(rule.codes))
    many = max(1, PIECE // apart[:1].size)
    work = partial(_fold_rows, apart, grid, rule.affine, codes, many)
    each(work, range(0, len(apart), many))
    blocks = (grid.scale, grid.zero_point, grid.step, grid.offset)
    return codes.reshape(values.shape), Grid(*(numbers.reshape(layout.grid) for numbers in blocks))


def _apart(cuts: list[tuple[int, int]]) -> tuple[list[int], tuple[int, ...]]:
    """Return a shape whose axes lie each within a block or across blocks, and those within.

    An axis of 12 in blocks of 4 becomes two axes, 3 and 4: across, and within.
    """
    shape: list[int] = []
    within: list[int] = []
    for size, extent in cuts:
        if extent not in (1, size):
            shape.append(size // extent)
        if extent != 1:
            within.append(len(shape))
        shape.append(size if extent == 1 else extent)
    return shape, tuple(within)


def _is_plain(rule: AffineRule) -> bool:
    """Say whether codes are clip(round(x / scale) + zero point) in float32."""
    return (
        rule.scaling == Scaling.DIVIDE
        and rule.order == ZeroOrder.AFTER_ROUNDING
        and rule.rounding == Rounding.HALF_EVEN
        and rule.precision == FLOAT32
        and rule.clip == Clip.SATURATE
        and rule.infinity != Infinity.CAST_TO_INT32
        and not rule.zero_is_real
        and rule.codes.bits <= 16
    )


def _fold_rows(
    values: Singles, grid: Grid, rule: AffineRule, codes: Codes, many: int, first: int
) -> None:
    """Write the codes of `many` indices of the first axis, through one buffer in the cache."""
    part = slice(first, first + many)
    own = part if len(grid.step) > 1 else slice(None)
    with np.errstate(over="ignore"):  # a quotient beyond float32 has the outermost code
        steps = values[part] / grid.step[own].astype(np.float32)
    np.rint(steps, out=steps)
    steps += grid.offset[own].astype(np.float32)
    np.clip(steps, rule.codes.minimum, rule.codes.maximum, out=steps)
    codes[part] = steps
