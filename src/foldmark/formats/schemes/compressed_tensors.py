"""compressed-tensors' packed forms.

pack-quantized (1 to 8 bits):
    X.weight_packed      int32 (out, ceil(in bits / 32)): code + 2^(bits - 1), low bits first
    X.weight_scale       (out, groups), (out, 1) or one
    X.weight_shape       int (2,): out, in
    X.weight_zero_point  int32, packed like the codes but along `out`; absent when symmetric

nvfp4-pack-quantized:
    X.weight_packed      uint8 (out, in / 2): two E2M1 codes, the even column in the low nibble
    X.weight_scale       float8_e4m3fn (out, in / 16)
    X.weight_global_scale float32, one: value = E2M1(code) * (scale / global scale)

mxfp4-pack-quantized: as nvfp4, with scales of one byte e, 2^(e - 127), groups of 32.
"""

import numpy as np

from foldmark.errors import HostileFile
from foldmark.formats.bitfields import packed_codes, unpack_fields
from foldmark.formats.codebooks import CODEBOOKS
from foldmark.formats.entry import Entry
from foldmark.formats.scaled_blocks import ScaledBlocks
from foldmark.formats.schemes.shelf import Shelf, block_of, demand, parts, spans
from foldmark.formats.stored import Part, StoredTensor
from foldmark.formats.values import Array, Layout, PackedCodes, Values

__all__ = ["claim"]

_PACKED, _SCALE, _SHAPE = ".weight_packed", ".weight_scale", ".weight_shape"
_ZERO_POINT, _GLOBAL = ".weight_zero_point", ".weight_global_scale"


def claim(shelf: Shelf) -> list[StoredTensor]:
    """Take every weight that is packed in one of these forms."""
    found = []
    for module in list(shelf.modules(_PACKED)):
        packed, scale = shelf.get(module + _PACKED), shelf.get(module + _SCALE)
        if packed is None or scale is None or len(packed.shape) != 2:
            continue
        if packed.number_format == "int32":
            tensor = _packed_integers(shelf, module, packed, scale)
        elif packed.number_format == "uint8":
            tensor = _packed_floats(shelf, module, packed, scale)
        else:
            continue
        found.append(tensor)
        suffixes = (_PACKED, _SCALE, _SHAPE, _ZERO_POINT, _GLOBAL)
        shelf.take(*(module + suffix for suffix in suffixes))
    return found


def _packed_integers(shelf: Shelf, module: str, packed: Entry, scale: Entry) -> StoredTensor:
    stated, zero_point = shelf.get(module + _SHAPE), shelf.get(module + _ZERO_POINT)
    if stated is None or stated.number_format not in ("int64", "int32") or stated.elements != 2:
        raise HostileFile(
            f"tensor {packed.name!r} comes without its shape",
            where=str(packed.source.path),
            expected=module + _SHAPE,
        )
    rows, columns = (int(n) for n in stated.load())
    bits = packed.shape[1] * 32 // columns if columns > 0 else 0
    fits = (
        rows == packed.shape[0] and 1 <= bits <= 8 and packed.shape[1] == -(-columns * bits // 32)
    )
    demand(packed, fits, f"codes for a weight of shape [{rows}, {columns}]")
    shape, offset = (rows, columns), 1 << (bits - 1)
    block = block_of(shape, scale)
    groups = scale.elements // rows if block[0] == 1 else scale.elements
    if zero_point is not None:
        words = -(-rows * bits // 32)
        demand(zero_point, zero_point.shape == (words, groups), f"[{words}, {groups}]")

    dense = Entry(packed.name, f"int{bits} + {offset}", shape, packed.source, packed.offset)
    is_dense = packed.in_order and bits in (1, 2, 4, 8) and columns * bits % 32 == 0

    def codes_of(first: int, last: int) -> Array | PackedCodes:
        if is_dense:
            return dense.stored(first * columns, last * columns, (last - first, columns))
        fields = unpack_fields(packed.rows(first, last).view(np.uint8), bits)[:, :columns]
        return (fields.astype(np.int16) - offset).astype(np.int8)

    def read(first: int, last: int) -> Values:
        zeros = None if zero_point is None else _zero_points(zero_point, bits, first, last)
        scales = _scale_rows(scale, block, first, last)
        return Values(codes_of(first, last), block, scales, zeros)

    blocks = ScaledBlocks(dense, scale, None, shape, block)
    layout = Layout(
        f"int{bits}",
        block,
        scale.number_format,
        "none" if zero_point is None else "stored",
        "compressed-tensors pack-quantized",
    )
    return StoredTensor(
        module + ".weight",
        shape,
        layout,
        spans(packed, scale, stated, zero_point),
        _with_extra(parts(codes=packed, scales=scale, zero_points=zero_point), stated),
        read,
        run=blocks.run() if is_dense and zero_point is None else None,
    )


def _with_extra(counted: dict[Part, int], shape: Entry) -> dict[Part, int]:
    counted[Part.INTEGERS] = shape.nbytes
    return counted


def _zero_points(entry: Entry, bits: int, first: int, last: int) -> Array:
    """Read the zero points of rows first..last: (words, groups) -> (rows, groups) int8."""
    start = first // 32 * 32  # so many rows are whole words, whatever the width
    words = entry.rows(start * bits // 32, -(-last * bits // 32))
    stream = np.ascontiguousarray(words.T).view(np.uint8)
    fields = unpack_fields(stream, bits)[:, first - start : last - start].T
    return (fields.astype(np.int16) - (1 << (bits - 1))).astype(np.int8)


def _scale_rows(scale: Entry, block: tuple[int, ...], first: int, last: int) -> Array:
    if block[0] != 1:
        return scale.load().astype(np.float32).reshape(1, -1)
    return scale.rows(first, last).astype(np.float32).reshape(last - first, -1)


def _packed_floats(shelf: Shelf, module: str, packed: Entry, scale: Entry) -> StoredTensor:
    shape = (packed.shape[0], packed.shape[1] * 2)
    wide = shelf.get(module + _GLOBAL)
    named = "mxfp4" if scale.number_format in ("uint8", "float8_e8m0fnu") else "nvfp4"
    demand(scale, len(scale.shape) == 2 and scale.shape[0] == shape[0], f"{shape[0]} rows")
    if wide is not None:
        demand(wide, wide.elements == 1 and wide.number_format == "float32", "one float32")
    block = block_of(shape, scale)

    def read(first: int, last: int) -> Values:
        return Values(
            packed_codes(packed.rows(first, last), 4, (last - first, shape[1])),
            block,
            _float4_scale(scale.rows(first, last), wide),
            codebook=CODEBOOKS["float4_e2m1fn"],
        )

    layout = Layout(
        "float4_e2m1fn",
        block,
        "float8_e8m0fnu" if named == "mxfp4" else f"{scale.number_format} of a float32",
        "none",
        f"compressed-tensors {named}-pack-quantized",
    )
    counted = parts(codes=packed, scales=scale)
    if wide is not None:
        counted[Part.SCALES] += wide.nbytes
    return StoredTensor(
        module + ".weight", shape, layout, spans(packed, scale, wide), counted, read
    )


def _float4_scale(raw: Array, wide: Entry | None) -> Array:
    if raw.dtype == np.uint8:
        return np.ldexp(np.float32(1), raw.astype(np.int32) - 127)
    scale = raw.astype(np.float32)
    return scale if wide is None else scale / wide.load().astype(np.float32).reshape(())
