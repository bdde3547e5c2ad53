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
from foldmark.exact.rule import AffineRule, Clip, ExtremeTie, Rule, Scaling, ZeroOrder
from foldmark.kernels.affine import Grid
from foldmark.kernels.blocks import PIECE, Layout
from foldmark.kernels.codes import codes_dtype
from foldmark.kernels.compiled import is_started
from foldmark.kernels.floats import format_of
from foldmark.kernels.loops import Codes
from foldmark.kernels.scales import choose
from foldmark.kernels.threads import each

__all__ = ["BUDGET", "Budget", "fold_whole_axes"]

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


def fold_whole_axes(values: NDArray[Any], layout: Layout, rule: Rule) -> tuple[Codes, Grid] | None:
    """Quantize blocks that reach along whole axes: per tensor, per channel.

    values  any shape  float32 in C order
    ->      codes, and the grid of the blocks, all of it float64 in the grid's shape

    None where rule, dtype or blocks ask for the general way, or a number is not finite.
    """
    usable = values.ndim and values.size and values.flags.c_contiguous and values.dtype.isnative
    if not usable or format_of(values.dtype) != FLOAT32:
        return None
    rule = rule.for_data(FLOAT32)
    sizes = zip(layout.block, values.shape, strict=True)
    whole = all(extent in (1, size) for extent, size in sizes)
    if not whole or rule.scale.tie == ExtremeTie.FIRST or not _is_plain(rule.affine):
        return None
    axes = tuple(i for i, extent in enumerate(layout.block) if extent == values.shape[i] != 1)
    low, high = values.min(axes, keepdims=True), values.max(axes, keepdims=True)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return None
    grid = choose(low, high, rule, np.zeros_like)
    if not grid.step.all():
        return None
    codes = np.empty(values.shape, codes_dtype(rule.codes))
    many = max(1, PIECE // values[:1].size)
    work = partial(_fold_rows, values, grid, rule.affine, codes, many)
    each(work, range(0, len(values), many))
    return codes, grid


def _is_plain(rule: AffineRule) -> bool:
    """Say whether codes are clip(round(x / scale) + zero point) in float32."""
    return (
        rule.scaling == Scaling.DIVIDE
        and rule.order == ZeroOrder.AFTER_ROUNDING
        and rule.rounding == Rounding.HALF_EVEN
        and rule.precision == FLOAT32
        and rule.clip == Clip.SATURATE
        and not rule.zero_is_real
        and rule.codes.bits <= 16
    )


def _fold_rows(
    values: Singles, grid: Grid, rule: AffineRule, codes: Codes, many: int, first: int
) -> None:
    """Write the codes of `many` indices of the first axis, through one buffer in the cache."""
    part = slice(first, first + many)
    own = part if len(grid.step) > 1 else slice(None)
    steps = values[part] / grid.step[own].astype(np.float32)
    np.rint(steps, out=steps)
    steps += grid.offset[own].astype(np.float32)
    np.clip(steps, rule.codes.minimum, rule.codes.maximum, out=steps)
    codes[part] = steps
