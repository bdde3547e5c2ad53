"""From numbers to packed bytes and back, without the codes of a whole array in between."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.catalog import FLOAT32
from foldmark.exact.number import FloatFormat
from foldmark.exact.packing import BitLayout
from foldmark.exact.rule import Rule
from foldmark.kernels.blocks import RUN, Layout, Piece
from foldmark.kernels.codes import codes_dtype, has_a_quotient_loop
from foldmark.kernels.floats import Floats
from foldmark.kernels.fold import PlainRuns, quantize_array, ranges_to_grid
from foldmark.kernels.numbers import numbers_from
from foldmark.kernels.packing import Bytes, pack, pack_into, unpack, unpack_into
from foldmark.kernels.quotients import codes_of_one_block
from foldmark.kernels.scratch import scratch
from foldmark.kernels.threads import each

__all__ = ["PackedGroup", "dequantize_packed", "quantize_packed"]


@dataclass(frozen=True, slots=True, eq=False)
class PackedGroup:
    """Packed codes, in C order of the array, with the scales and zero points beside them.

    packed      (bytes,)          uint8
    scale       the grid's shape  in the dtype that the rule stores scales in
    zero_point  the grid's shape  integers, or floats where the rule's zero points are real
    """

    packed: Bytes
    scale: Floats
    zero_point: NDArray[Any]


def quantize_packed(
    values: NDArray[Any], block: Sequence[int], rule: Rule, layout: BitLayout, offset: int = 0
) -> PackedGroup:
    """Quantize every block of an array on its own and pack the codes.

    The same as `quantize_array` and then `pack`; where the rule is plain, the codes of a run of
    blocks are packed while they are in the cache.

    Raises NonFiniteValue naming the first index that the rule has no code for, DataMismatch for a
    code that does not fit its bits.
    """
    walk = Layout.of(values, block)
    runs = PlainRuns.of(values, walk, rule) if values.flags.c_contiguous else None
    fits = rule.codes.bits <= layout.bits
    if runs is None and fits and prod(walk.grid) == 1 and values.flags.c_contiguous:
        whole = _quantize_one_block(values, rule, layout, offset)
        if whole is not None:
            return whole
    if runs is None or not fits:
        group = quantize_array(values, block, rule)
        return PackedGroup(pack(group.codes, layout, offset), group.scale, group.zero_point)
    starts = runs.starts(layout.codes // gcd(layout.codes, walk.segment))
    packed = np.empty(-(-values.size // layout.codes) * layout.size, np.uint8)

    def run(first: int) -> None:
        place = runs.place(first)
        codes = scratch("codes", (place.stop - place.start,), codes_dtype(rule.codes))
        runs.fold(first, codes)
        begin = place.start // layout.codes * layout.size
        size = -(-codes.size // layout.codes) * layout.size
        pack_into(codes, layout, offset, packed[begin : begin + size])

    each(run, starts)
    if not runs.finite:
        quantize_array(values, block, rule)  # says which number it was
    scale, zero_point = runs.parameters()
    return PackedGroup(packed, scale, zero_point)


def _quantize_one_block(
    values: NDArray[Any], rule: Rule, layout: BitLayout, offset: int
) -> PackedGroup | None:
    """Quantize and pack an array with one scale; None where that asks for more than one loop."""
    affine = rule.for_data(FLOAT32).affine
    if values.dtype != np.float32 or not values.dtype.isnative or not has_a_quotient_loop(affine):
        return None
    grid = ranges_to_grid(values, rule, None)
    step, zero = np.float32(grid.step.item()), np.float32(grid.offset.item())
    if not 0 < step < np.inf or not abs(zero) <= 1 << 16:
        return None
    low, high = np.float32(affine.codes.minimum), np.float32(affine.codes.maximum)
    numbers = values.reshape(-1)
    packed = np.empty(-(-values.size // layout.codes) * layout.size, np.uint8)
    count = RUN - RUN % layout.codes

    def run(first: int) -> None:
        part = numbers[first : first + count]
        codes = scratch("codes", part.shape, codes_dtype(rule.codes))
        codes_of_one_block(part, step, zero, low, high, codes)
        begin = first // layout.codes * layout.size
        size = -(-codes.size // layout.codes) * layout.size
        pack_into(codes, layout, offset, packed[begin : begin + size])

    each(run, range(0, numbers.size, count))
    return PackedGroup(packed, grid.scale, grid.zero_point)


def dequantize_packed(
    group: PackedGroup,
    shape: Sequence[int],
    block: Sequence[int],
    rule: Rule,
    layout: BitLayout,
    offset: int = 0,
    data: FloatFormat = FLOAT32,
) -> Floats:
    """Return the numbers of a given shape that packed codes stand for, in the dtype of `data`.

    The same as `unpack` and then `dequantize`. Raises DataMismatch when there are too few bytes.
    """
    affine = rule.affine.for_data(data)
    signed = affine.codes.signed and not offset
    dtype = np.dtype(np.int8 if signed or offset else np.uint8)
    walk = Layout.of(np.empty(shape, dtype), block)  # for its strides; its memory stays untouched
    begins = [piece.first * walk.length + piece.start for piece in walk.pieces()]
    codes = None
    if any(begin % layout.codes for begin in begins):
        count = int(np.prod(shape, dtype=np.int64))
        codes = unpack(group.packed, layout, count, offset, signed=signed)

    def read(piece: Piece) -> NDArray[Any]:
        begin = piece.first * walk.length + piece.start
        form = piece.last - piece.first, piece.stop - piece.start
        if codes is not None:
            return codes[begin : begin + piece.size].reshape(form)
        found = scratch("unpacked", (piece.size,), dtype)
        packed = group.packed[begin // layout.codes * layout.size :]
        unpack_into(packed, layout, offset, signed, found)
        return found.reshape(form)

    return numbers_from(read, dtype, group.scale, group.zero_point, affine, data, walk)
