"""The plainest rules on float32 in one loop: range, scale, zero point and codes of block by block.

A block is read from memory once; when its codes are computed it is still in the first cache. What
makes a rule plain is that its arithmetic is a few float32 operations on one block at a time:

    extent      max(|low|, |high|), or high - low with zero in range
    scale       extent / denominator, replaced where too small
    zero point  fixed, or round(lowest - low / scale)
    codes       round(w / scale) + zero point, or round(w * (1 / scale)) + zero point

Every other rule, dtype and block takes the general way of `fold`, with the same result.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.catalog import FLOAT32
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import (
    Clip,
    Extent,
    Infinity,
    Rule,
    ScaleRule,
    Scaling,
    TinyAction,
    TinyTest,
    ZeroDivisor,
    ZeroForm,
    ZeroInRange,
    ZeroOrder,
    ZeroPointRule,
    constant_of,
)
from foldmark.kernels.compiled import compiled, inlined, read_only
from foldmark.kernels.lanes import (
    DIVIDE,
    HOLD,
    LANES,
    Order,
    ends_of_blocks,
    fold_blocks_by_products,
    fold_blocks_by_quotients,
)
from foldmark.kernels.loops import Codes
from foldmark.kernels.quotients import LARGEST, SMALLEST
from foldmark.kernels.scratch import scratch
from foldmark.kernels.vectors import AHEAD

__all__ = ["Plain", "plain"]

Singles = NDArray[np.float32]
Numbers = tuple[np.float32, ...]
_BATCH = AHEAD // 4
"""Elements whose ranges are found before their codes: 64 kB of float32, which stay in any second
cache. While their codes are computed, memory is asked for the next so many."""


@dataclass(frozen=True, slots=True)
class Plain:
    """The numbers of a plain rule, ready for the loops; see `plain`.

    below, tiny           a scale below the one becomes the other
    lowest, highest       limits of the zero point, equal where it is fixed
    low, high             limits of the codes
    """

    span: bool
    reciprocal: bool
    denominator: np.float32
    below: np.float32
    tiny: np.float32
    lowest: np.float32
    highest: np.float32
    low: np.float32
    high: np.float32

    def fold(
        self,
        values: Singles,
        segment: int,
        scale: Singles,
        zero_point: NDArray[Any],
        codes: Codes,
        order: Order = (),
        move: int = 0,
        past: bool = False,
    ) -> bool:
        """Fold whole blocks that follow one another; say whether all numbers were finite.

        values             (n,)
        scale, zero_point  (ceil(n / segment),)  written, like the codes
        codes              (n,), or (n / 2,) bytes in the order of `lanes`
        move               added to every code
        past               whether to write codes past the cache: nobody reads them soon

        Where a number was not finite, what was written means nothing.
        """
        batch = -(-max(1, _BATCH // segment) // LANES) * LANES
        tops, bottoms, factors, zeros = scratch("grids", (4, batch), np.float32)
        moved = np.float32(move)
        values = read_only(values)
        numbers = (
            self.denominator,
            self.below,
            self.tiny,
            self.lowest,
            self.highest,
            self.low + moved,
            self.high + moved,
            moved,
        )
        return _fold(
            values,
            values.view(np.int32),
            segment,
            self.span,
            self.reciprocal,
            numbers,
            tops,
            bottoms,
            tops.view(np.int32),
            bottoms.view(np.uint32),
            factors,
            zeros,
            scratch("asks", (batch,), np.int32),
            scale,
            zero_point,
            past,
            order,
            codes,
        )


def plain(rule: Rule) -> Plain | None:
    """Return the numbers of a definite rule for float32 data, or None where it is not plain."""
    scale, zero, affine = rule.scale, rule.zero_point, rule.affine
    if not (_has_plain_scale(scale) and _has_plain_zero(zero, scale)):
        return None
    if not (
        affine.scaling in (Scaling.DIVIDE, Scaling.RECIPROCAL)
        and affine.order == ZeroOrder.AFTER_ROUNDING
        and affine.rounding == Rounding.HALF_EVEN
        and affine.precision == FLOAT32
        and affine.clip == Clip.SATURATE
        and affine.zero_divisor == ZeroDivisor.INFINITE
        and affine.infinity != Infinity.CAST_TO_INT32
        and affine.codes.bits <= 16
    ):
        return None
    tiny = scale.tiny[0]
    fixed = zero.form == ZeroForm.FIXED
    return Plain(
        span=scale.extent == Extent.SPAN,
        reciprocal=affine.scaling == Scaling.RECIPROCAL,
        denominator=np.float32(scale.denominator),
        below=np.float32(FLOAT32.round(constant_of(tiny.below, FLOAT32), Rounding.CEILING)),
        tiny=np.float32(constant_of(tiny.value, FLOAT32)),
        lowest=np.float32(zero.fixed if fixed else zero.lowest),
        highest=np.float32(zero.fixed if fixed else zero.highest),
        low=np.float32(affine.codes.minimum),
        high=np.float32(affine.codes.maximum),
    )


def _has_plain_scale(scale: ScaleRule) -> bool:
    extent = scale.extent == Extent.MAGNITUDE or (
        scale.extent == Extent.SPAN and scale.zero_in_range == ZeroInRange.FORCED
    )
    # Without a treatment of zero a scale of zero would need one here.
    treated = (
        len(scale.tiny) == 1
        and scale.tiny[0].test == TinyTest.SCALE
        and scale.tiny[0].action == TinyAction.SCALE
        and scale.tiny[0].zero_point is None
        and constant_of(scale.tiny[0].value, FLOAT32) > 0
    )
    narrow = scale.precision == scale.stored == FLOAT32
    return extent and treated and narrow and scale.extent_precision == FLOAT32


def _has_plain_zero(zero: ZeroPointRule, scale: ScaleRule) -> bool:
    if zero.form == ZeroForm.FIXED:
        return abs(zero.fixed) <= 1 << 16
    return (
        zero.form == ZeroForm.ROUND_DIFFERENCE
        and scale.extent == Extent.SPAN
        and zero.precision == FLOAT32
        and zero.rounding == Rounding.HALF_EVEN
        and zero.clip == Clip.SATURATE
        and max(abs(zero.lowest), abs(zero.highest)) <= 1 << 16
    )


@compiled
def _fold(
    values: Singles,
    bits: NDArray[np.int32],
    segment: int,
    span: bool,
    reciprocal: bool,
    numbers: Numbers,
    tops: Singles,
    bottoms: Singles,
    tops_bits: NDArray[np.int32],
    bottoms_bits: NDArray[np.uint32],
    factors: Singles,
    zeros: Singles,
    asks: NDArray[np.int32],
    scale: Singles,
    zero_point: NDArray[Any],
    past: bool,
    order: Order,
    codes: Codes,
) -> bool:
    low, high = numbers[5], numbers[6]
    finite = True
    batch = max(1, _BATCH // segment)
    for first in range(0, scale.size, batch):
        steps = scale[first : first + batch]
        here = steps.size
        ends_of_blocks(bits, segment, first, tops_bits[:here], bottoms_bits[:here])
        found = zero_point[first : first + batch]
        finite &= _grids(span, numbers, tops, bottoms, factors, zeros, asks, steps, found)
        # What both loops are given; see `lanes`.
        given = (values, segment, first, steps, zeros, factors, asks, low, high, past, order, codes)
        if reciprocal:
            fold_blocks_by_products(*given)
        else:
            fold_blocks_by_quotients(*given)
    return finite


@inlined
def _grids(
    span: bool,
    numbers: Numbers,
    tops: Singles,
    bottoms: Singles,
    factors: Singles,
    zeros: Singles,
    asks: NDArray[np.int32],
    scale: Singles,
    zero_point: NDArray[Any],
) -> bool:
    """Turn the ends of blocks, zero in range, into scales and zero points, and what codes need."""
    denominator, below, tiny, lowest, highest, low, high, moved = numbers
    finite = True
    for s in range(scale.size):
        top, bottom = tops[s], bottoms[s]
        finite &= (top < np.float32(np.inf)) & (bottom > np.float32(-np.inf))
        extent = top - bottom if span else (top if top > -bottom else -bottom)
        step = extent / denominator
        step = step if step >= below else tiny
        zero = np.rint(lowest - bottom / step)
        zero = zero if zero > lowest else lowest
        zero = zero if zero < highest else highest
        scale[s], zero_point[s] = step, np.int32(zero)
        zero += moved
        factors[s], zeros[s] = np.float32(1) / step, zero
        beyond = (np.rint(top / step) + zero > high) | (np.rint(bottom / step) + zero < low)
        ask = np.int32(HOLD) if beyond else np.int32(0)
        asks[s] = ask if (step >= SMALLEST) & (step <= LARGEST) else np.int32(DIVIDE)
    return finite
