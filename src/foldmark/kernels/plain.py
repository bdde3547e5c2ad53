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
from foldmark.kernels.compiled import compiled, inlined, prefetch
from foldmark.kernels.lanes import LANES, ends_of_lanes
from foldmark.kernels.loops import Codes
from foldmark.kernels.quotients import codes_by_quotient

__all__ = ["Plain", "plain"]

Singles = NDArray[np.float32]
_FIRST_NON_FINITE = 0x7F800000
_MINUS_ZERO = 0x80000000
_BATCH = 1 << 13
"""Elements whose ranges are found before their codes: they stay in the first cache."""
_AHEAD = 1024
"""Elements between the block worked on and the one that memory is asked for: a page of 4096 bytes,
where the processor's own prefetching stops. Blocks of 512 bytes gain two fifths by it."""


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
        self, values: Singles, segment: int, scale: Singles, offset: Singles, codes: Codes
    ) -> bool:
        """Fold whole blocks that follow one another; say whether all numbers were finite.

        values, codes  (n,)
        scale, offset  (ceil(n / segment),)  written, like the codes

        Where a number was not finite, what was written means nothing.
        """
        largest = _fold(
            values,
            values.view(np.int32),
            segment,
            self.span,
            self.reciprocal,
            self.denominator,
            self.below,
            self.tiny,
            self.lowest,
            self.highest,
            self.low,
            self.high,
            scale,
            offset,
            scale.view(np.int32),
            offset.view(np.uint32),
            codes,
        )
        return bool(largest < _FIRST_NON_FINITE)


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
    denominator: np.float32,
    below: np.float32,
    tiny: np.float32,
    lowest: np.float32,
    highest: np.float32,
    low: np.float32,
    high: np.float32,
    scale: Singles,
    offset: Singles,
    tops: NDArray[np.int32],
    bottoms: NDArray[np.uint32],
    codes: Codes,
) -> Any:
    beyond = np.uint32(0)
    batch = max(1, _BATCH // segment)
    for first in range(0, scale.size, batch):
        last = min(first + batch, scale.size)
        found = _ends(bits, segment, first, last, tops, bottoms)
        beyond = max(beyond, found)
        _grids(
            span, denominator, below, tiny, lowest, highest, scale[first:last], offset[first:last]
        )
        for s in range(first, last):
            begin, end = s * segment, min(s * segment + segment, values.size)
            if reciprocal:
                factor = np.float32(1) / scale[s]
                _multiplied(values[begin:end], factor, offset[s], low, high, codes[begin:end])
            else:
                codes_by_quotient(values, begin, end, scale[s], offset[s], low, high, codes)
    return beyond


@inlined
def _ends(
    bits: NDArray[np.int32],
    segment: int,
    first: int,
    last: int,
    tops: NDArray[np.int32],
    bottoms: NDArray[np.uint32],
) -> Any:
    """Write the ends of blocks, zero in range, as bits; return the largest magnitude's bits.

    Signed, the bits of floats that are not negative order like the numbers and stand above all
    others. Unsigned, those of negative floats stand above all others, the lowest number on top.
    """
    beyond = np.uint32(0)
    for s in range(first, last):
        begin, end = s * segment, min(s * segment + segment, bits.size)
        if segment <= _AHEAD:
            for i in range(begin + _AHEAD, end + _AHEAD, 16):
                prefetch(bits, i)
        whole = (end - begin) // LANES * LANES
        top, bottom = ends_of_lanes(bits, begin, whole)
        for i in range(begin + whole, end):
            top = max(top, bits[i])
            bottom = max(bottom, np.uint32(bits[i]))
        tops[s], bottoms[s] = top, bottom
        beyond = max(beyond, np.uint32(top), np.uint32(bottom - np.uint32(_MINUS_ZERO)))
    return beyond


@inlined
def _grids(
    span: bool,
    denominator: np.float32,
    below: np.float32,
    tiny: np.float32,
    lowest: np.float32,
    highest: np.float32,
    scale: Singles,
    offset: Singles,
) -> None:
    """Turn the ends of blocks, top and bottom, into scales and zero points where they stand."""
    for s in range(scale.size):
        top, bottom = scale[s], offset[s]
        extent = top - bottom if span else max(top, -bottom)
        step = extent / denominator
        step = step if step >= below else tiny
        zero = np.rint(lowest - bottom / step)
        zero = zero if zero > lowest else lowest
        scale[s] = step
        offset[s] = zero if zero < highest else highest


@inlined
def _multiplied(
    values: Singles,
    factor: np.float32,
    zero: np.float32,
    low: np.float32,
    high: np.float32,
    codes: Codes,
) -> None:
    for i in range(values.size):
        code = np.rint(values[i] * factor) + zero
        code = code if code > low else low
        codes[i] = np.int32(code if code < high else high)
