"""From numbers to packed bytes and back, without the codes of a whole array in between."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.catalog import FLOAT32
from foldmark.exact.number import FloatFormat
from foldmark.exact.packing import HIGH_NIBBLE_FIRST, LOW_NIBBLE_FIRST, BitLayout, stream
from foldmark.exact.rule import Rule
from foldmark.kernels.blocks import Layout, Piece
from foldmark.kernels.dense import dense_blocks
from foldmark.kernels.floats import Floats
from foldmark.kernels.fold import quantize_array
from foldmark.kernels.lanes import Order
from foldmark.kernels.numbers import is_plain, numbers_from
from foldmark.kernels.packing import Bytes, pack, unpack, unpack_into
from foldmark.kernels.scratch import new_memory, scratch
from foldmark.kernels.unfolding import unfolded

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

    The same as `quantize_array` and then `pack`; where the rule is plain and two codes go into a
    byte, no code is ever written by itself.

    Raises NonFiniteValue naming the first index that the rule has no code for, DataMismatch for a
    code that does not fit its bits.
    """
    walk = Layout.of(values, block)
    order = _nibble_order(layout)
    straight = order and walk.segment % 2 == 0 and values.flags.c_contiguous
    fits = rule.codes.bits <= layout.bits
    blocks = dense_blocks(values, walk, rule) if straight and fits else None
    packed = new_memory(values.size // 2, np.uint8)
    if blocks is None or not blocks.fold(lambda place: packed[_halved(place)], order, offset):
        group = quantize_array(values, block, rule)
        return PackedGroup(pack(group.codes, layout, offset), group.scale, group.zero_point)
    scale, zero_point = blocks.parameters()
    return PackedGroup(packed, scale, zero_point)


def _nibble_order(layout: BitLayout) -> Order:
    """Return a layout of two codes a byte as `lanes` wants it, () for any other."""
    if sys.byteorder != "little":
        return ()
    return {LOW_NIBBLE_FIRST: (0,), stream(4): (0,), HIGH_NIBBLE_FIRST: (4,)}.get(layout, ())


def _halved(place: slice) -> slice:
    return slice(place.start // 2, place.stop // 2)


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
    order = _nibble_order(layout)
    scale, zero_point = group.scale, group.zero_point
    if order and data == FLOAT32 and is_plain(dtype, scale, zero_point, affine):
        sign = 8 if signed else 0
        moved = zero_point.astype(np.int64) + sign + offset
        found = unfolded(group.packed, scale, moved, walk, order, sign)
        if found is not None:
            return found
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

    return numbers_from(read, dtype, scale, zero_point, affine, data, walk)
