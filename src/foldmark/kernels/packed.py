"""From numbers to packed bytes and back, without the codes of a whole array in between."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.catalog import FLOAT32
from foldmark.exact.number import FloatFormat
from foldmark.exact.packing import BitLayout
from foldmark.exact.rule import Rule
from foldmark.kernels.blocks import Layout, Piece
from foldmark.kernels.codes import codes_dtype
from foldmark.kernels.floats import Floats
from foldmark.kernels.fold import PlainRuns, quantize_array
from foldmark.kernels.numbers import numbers_from
from foldmark.kernels.packing import Bytes, pack, pack_into, unpack, unpack_into
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
    if runs is None or rule.codes.bits > layout.bits:
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
