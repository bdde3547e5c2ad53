"""Fields of 1 to 8 bits packed without gaps, the lowest bits first.

Little-endian words that are filled from their low end are one such stream, whatever their
width: a 32-bit word of eight nibbles reads as four bytes of two, low nibble first.

    byte     0                 1
    bits     7 6 5 4 3 2 1 0   7 6 5 4 3 2 1 0
    4 bit    [ c1  ] [ c0  ]   [ c3  ] [ c2  ]
    3 bit    c2 [ c1 ] [ c0 ]  c5 [c4 ] [c3 ] c2   (c2 and c5 cross into the next byte)
    2 bit    c3 c2 c1 c0       c7 c6 c5 c4
"""

import numpy as np

from foldmark.exact.packing import stream
from foldmark.formats.values import Array, PackedCodes
from foldmark.kernels.packing import pack

__all__ = ["pack_fields", "packed_codes", "unpack_fields"]


def unpack_fields(stream: Array, bits: int) -> Array:
    """Take the bytes of the last axis apart: (..., n) uint8 -> (..., 8 n / bits) uint8.

    Fields that would reach past the last byte are left out.
    """
    if bits == 8:
        return stream
    if bits in (1, 2, 4):
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        fields = stream[..., None] >> shifts & np.uint8((1 << bits) - 1)
        return fields.reshape(*stream.shape[:-1], -1)
    whole = stream.shape[-1] * 8 // bits
    single = np.unpackbits(stream, axis=-1, count=whole * bits, bitorder="little")
    return np.packbits(single.reshape(*stream.shape[:-1], whole, bits), axis=-1, bitorder="little")[
        ..., 0
    ]


def packed_codes(
    stream: Array, bits: int, shape: tuple[int, ...], numbers: Array | None = None
) -> PackedCodes:
    """Leave fields of 1, 2, 4 or 8 bits in their bytes: counting them needs no unpacking.

    Args:
        stream: uint8 (n, k), every field of it a code of the tensor.
        bits: width of a field.
        shape: of the codes, row after row of the stream.
        numbers: int8 (2^bits,): the code of each field, None where it is the field.
    """

    def unpack() -> Array:
        fields = unpack_fields(stream, bits).reshape(shape)
        return fields if numbers is None else numbers[fields]

    return PackedCodes(stream, ((0, stream.shape[1], bits, 1),), unpack, numbers)


def pack_fields(codes: Array, bits: int) -> Array:
    """Put codes below 2^bits together: (..., k) uint8 -> (..., ceil(k bits / 8)) uint8.

    A last byte that is not filled ends in zeros.
    """
    layout, length = stream(bits), codes.shape[-1]
    rest = -length % layout.codes  # a row begins with a byte of its own
    whole = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, rest)]) if rest else codes
    rows = pack(whole, layout).reshape(*codes.shape[:-1], -1)
    return rows[..., : -(-length * bits // 8)]
