"""The block types of ggml: how each packs its codes, scales and minima.

Every type is a small class over blocks, uint8 (n, bytes of a block): `planes` says where the bits
of its codes lie, `codes` gives them as integers (n, elements), and `scales` what turns them back
into numbers,

    value = scale * (number(code) - zero_point) + offset

with one scale for each sub-block of `group` neighbouring elements. In the drawings the fields
stand in file order, the lowest address first; `d` and `m` are float16, little-endian.

Source: the ggml and gguf-py sources; tested against gguf-py, bit for bit.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from foldmark.formats.stored import Part, ScaleFields

__all__ = ["BLOCK_TYPES", "BlockScales", "BlockType", "Plane"]

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# the number of each pattern of a float16, and of a byte that is a power of two
_HALVES: Floats = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
with np.errstate(over="ignore"):
    _POWERS: Floats = np.ldexp(np.float32(1), np.arange(256, dtype=np.int32) - 127)


@dataclass(frozen=True, eq=False)
class BlockScales:
    """Scales of n blocks: scale (n, sub-blocks), offset of the same shape or None."""

    scale: Floats
    offset: Floats | None = None


@dataclass(frozen=True)
class Plane:
    """Fields of `width` bits that hold the same bits of many codes.

    The bytes fall into runs of `run`; the lowest fields of a run's bytes belong to the first
    `run` elements, the next fields to the next, and so on:

        byte j of a run:  | element j + 3 run | j + 2 run | j + run | j |   (width 2)

    Attributes:
        start: first byte in the block.
        nbytes: bytes of the plane.
        width: bits of a field.
        run: bytes of a run.
    """

    start: int
    nbytes: int
    width: int
    run: int

    def peel(self, blocks: Bytes) -> Bytes:
        """Take the fields out: (n, bytes of a block) -> (n, nbytes * 8 / width)."""
        return _planes(blocks[:, self.start : self.start + self.nbytes], self.width, self.run)


# byte, shift and mask of a field, the same of its high part, bits of the low part
SubScale = tuple[int, int, int, int, int, int, int]


def _low(byte: int, shift: int, mask: int) -> SubScale:
    """Describe a field that stands in one place."""
    return (byte, shift, mask, byte, 0, 0, 0)


class BlockType:
    """What all block types say of themselves."""

    name: ClassVar[str]
    type_id: ClassVar[int]
    elements: ClassVar[int]
    nbytes: ClassVar[int]
    group: ClassVar[int]
    number_format: ClassVar[str]
    scale_format: ClassVar[str] = "float16"
    zero_point: ClassVar[int] = 0
    scale_bytes: ClassVar[int] = 2
    minimum_bytes: ClassVar[int] = 0
    # the bits of each code, lowest first; none where codes are not made of bit fields
    planes: ClassVar[tuple[Plane, ...]] = ()
    # where d stands; the integers that multiply it, what zero is stored as, and dmin's place
    scale_at: ClassVar[int] = 0
    sub_scales: ClassVar[tuple[SubScale, ...]] = ()
    sub_zero: ClassVar[int] = 0
    sub_signed: ClassVar[bool] = False
    minimum_at: ClassVar[int] = -1

    def codes(self, blocks: Bytes) -> NDArray[np.integer]:
        """Unpack (n, nbytes) into codes (n, elements): its bit planes, put side by side."""
        codes, width = self.planes[0].peel(blocks), self.planes[0].width
        for plane in self.planes[1:]:
            codes |= plane.peel(blocks) << np.uint8(width)
            width += plane.width
        return codes

    def scales(self, blocks: Bytes) -> BlockScales:
        """Unpack (n, nbytes) into scales (n, elements / group)."""
        raise NotImplementedError

    def scale_fields(self) -> ScaleFields:
        """Say where a block's scales stand; what `scales` works out, as data."""
        fields = np.array(self.sub_scales, np.int64).reshape(-1, 7)
        power_of_two = self.scale_bytes == 1
        return ScaleFields(
            self.scale_at,
            1 if power_of_two else 2,
            _POWERS if power_of_two else _HALVES,
            fields,
            self.sub_zero,
            self.sub_signed,
            self.minimum_at,
        )

    def parts(self, blocks: int) -> dict[Part, int]:
        """Return how many bytes of so many blocks serve what."""
        codes = self.nbytes - self.scale_bytes - self.minimum_bytes
        parts = {Part.CODES: blocks * codes, Part.SCALES: blocks * self.scale_bytes}
        if self.minimum_bytes:
            parts[Part.ZERO_POINTS] = blocks * self.minimum_bytes
        return parts


def _half(blocks: Bytes, at: int) -> Floats:
    """Read the float16 at byte `at` of each block: (n, 1) float32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _halves(packed: Bytes) -> Bytes:
    """Split bytes into low nibbles first, then high nibbles: (n, k) -> (n, 2k)."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _planes(packed: Bytes, width: int, run: int) -> Bytes:
    """Peel `width`-bit fields off runs of bytes: all lowest fields of a run, then the next.

    (n, k) -> (n, k * 8 / width); byte j of a run holds elements j, j + run, j + 2 run ...
    """
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    fields = packed.reshape(len(packed), -1, 1, run) >> shifts & np.uint8((1 << width) - 1)
    return fields.reshape(len(packed), -1)


class Q8_0(BlockType):  # noqa: N801  (the names are ggml's)
    """32 signed bytes and one scale.

    | d (2) | code 0 | code 1 | ... | code 31 |
    """

    name, type_id, elements, nbytes, group = "Q8_0", 8, 32, 34, 32
    number_format = "int8"
    planes = (Plane(2, 32, 8, 32),)

    def codes(self, blocks: Bytes) -> NDArray[np.integer]:
        """Take the bytes as they are, signed."""
        return blocks[:, 2:].view(np.int8)

    def scales(self, blocks: Bytes) -> BlockScales:
        """Take d."""
        return BlockScales(_half(blocks, 0))


class Q4_0(BlockType):  # noqa: N801
    """32 nibbles around 8 and one scale.

    | d (2) | 16 bytes: byte j = code[j] in the low nibble, code[j + 16] in the high one |
    """

    name, type_id, elements, nbytes, group = "Q4_0", 2, 32, 18, 32
    number_format, zero_point = "uint4", 8
    planes = (Plane(2, 16, 4, 16),)

    def scales(self, blocks: Bytes) -> BlockScales:
        """Take d."""
        return BlockScales(_half(blocks, 0))


class Q4_1(BlockType):  # noqa: N801
    """32 nibbles, a scale and a minimum: value = d code + m.

    | d (2) | m (2) | 16 bytes as in Q4_0 |
    """

    name, type_id, elements, nbytes, group = "Q4_1", 3, 32, 20, 32
    number_format, minimum_bytes = "uint4", 2
    planes = (Plane(4, 16, 4, 16),)
    minimum_at = 2

    def scales(self, blocks: Bytes) -> BlockScales:
        """Take d and m."""
        return BlockScales(_half(blocks, 0), _half(blocks, 2))


class Q5_0(BlockType):  # noqa: N801
    """32 five-bit codes around 16 and one scale.

    | d (2) | qh (4): bit j = fifth bit of code[j] | 16 bytes as in Q4_0 |
    """

    name, type_id, elements, nbytes, group = "Q5_0", 6, 32, 22, 32
    number_format, zero_point = "uint5", 16
    planes = (Plane(6, 16, 4, 16), Plane(2, 4, 1, 1))

    def scales(self, blocks: Bytes) -> BlockScales:
        """Take d."""
        return BlockScales(_half(blocks, 0))


class Q5_1(BlockType):  # noqa: N801
    """32 five-bit codes, a scale and a minimum: value = d code + m.

    | d (2) | m (2) | qh (4) | 16 bytes as in Q4_0 |
    """

    name, type_id, elements, nbytes, group = "Q5_1", 7, 32, 24, 32
    number_format, minimum_bytes = "uint5", 2
    planes = (Plane(8, 16, 4, 16), Plane(4, 4, 1, 1))
    minimum_at = 2

    def scales(self, blocks: Bytes) -> BlockScales:
        """Take d and m."""
        return BlockScales(_half(blocks, 0), _half(blocks, 2))


class Q2_K(BlockType):  # noqa: N801
    """256 two-bit codes; 16 sub-blocks with a 4-bit scale and a 4-bit minimum each.

    | 16 bytes: sub-block i: scale low nibble, minimum high nibble | 64 bytes codes | d | dmin |

    codes: two runs of 32 bytes; byte j of a run holds elements j, j + 32, j + 64, j + 96
    of the run's 128, lowest bits first. value = d sc code - dmin m
    """

    name, type_id, elements, nbytes, group = "Q2_K", 10, 256, 84, 16
    number_format, scale_format = "uint2", "4 bits of a float16"
    planes = (Plane(16, 64, 2, 32),)
    scale_bytes, minimum_bytes = 10, 10
    scale_at, minimum_at = 80, 82
    sub_scales = tuple(_low(i, 0, 15) for i in range(16))

    def scales(self, blocks: Bytes) -> BlockScales:
        """Multiply out: d sc and -dmin m."""
        sub = blocks[:, :16]
        scale = _half(blocks, 80) * (sub & 15).astype(np.float32)
        return BlockScales(scale, -(_half(blocks, 82) * (sub >> 4).astype(np.float32)))


class Q3_K(BlockType):  # noqa: N801
    """256 three-bit codes around 4; 16 sub-blocks with a 6-bit scale around 32 each.

    | hmask (32) | 64 bytes: low two bits as in Q2_K | 12 bytes of scales | d (2) |

    hmask: byte j, bit i is the third bit of element j + 32 i.
    scales: byte i < 8 holds the low nibbles of scales i (low) and i + 8 (high);
    byte 8 + i holds the top two bits of scales i, i + 4, i + 8, i + 12.
    """

    name, type_id, elements, nbytes, group = "Q3_K", 11, 256, 110, 16
    number_format, zero_point, scale_format = "uint3", 4, "6 bits of a float16"
    planes = (Plane(32, 64, 2, 32), Plane(0, 32, 1, 32))
    scale_bytes = 14
    scale_at, sub_zero = 108, 32
    sub_scales = tuple(
        (96 + i % 8, 4 * (i // 8), 15, 104 + i % 4, 2 * (i // 4), 3, 4) for i in range(16)
    )

    def scales(self, blocks: Bytes) -> BlockScales:
        """Multiply out: d (sc - 32)."""
        low, high = _halves(blocks[:, 96:104]), _planes(blocks[:, 104:108], 2, 4)
        sub = (low | high << 4).astype(np.float32) - np.float32(32)
        return BlockScales(_half(blocks, 108) * sub)


def _six_bit_pairs(packed: Bytes) -> tuple[Floats, Floats]:
    """Unpack the eight 6-bit scales and eight 6-bit minima of Q4_K and Q5_K.

    byte 0..3:  bits 0-5 scale i          bits 6-7 top bits of scale i + 4
    byte 4..7:  bits 0-5 minimum i        bits 6-7 top bits of minimum i + 4
    byte 8..11: bits 0-3 low of scale i+4 bits 4-7 low of minimum i + 4
    """
    # Four bytes at a time: no shift moves a bit into a neighbour that the mask does not drop.
    first, second, low = np.ascontiguousarray(packed).view("<u4").T
    scale, minimum = np.empty((2, len(packed), 2), "<u4")
    scale[:, 0], minimum[:, 0] = first & 0x3F3F3F3F, second & 0x3F3F3F3F
    scale[:, 1] = low & 0x0F0F0F0F | first >> 2 & 0x30303030
    minimum[:, 1] = low >> 4 & 0x0F0F0F0F | second >> 2 & 0x30303030
    return scale.view(np.uint8).astype(np.float32), minimum.view(np.uint8).astype(np.float32)


_SIX_BIT_SCALES: tuple[SubScale, ...] = (
    *(_low(4 + i, 0, 63) for i in range(4)),
    *((12 + i, 0, 15, 4 + i, 6, 3, 4) for i in range(4)),
)


class Q4_K(BlockType):  # noqa: N801
    """256 nibbles; 8 sub-blocks with a 6-bit scale and a 6-bit minimum each.

    | d (2) | dmin (2) | 12 bytes of scales and minima | 128 bytes of codes |

    codes: four runs of 32 bytes: 32 low nibbles, then the same bytes' 32 high nibbles.
    """

    name, type_id, elements, nbytes, group = "Q4_K", 12, 256, 144, 32
    number_format, scale_format = "uint4", "6 bits of a float16"
    planes = (Plane(16, 128, 4, 32),)
    scale_bytes, minimum_bytes = 8, 8
    sub_scales, minimum_at = _SIX_BIT_SCALES, 2

    def scales(self, blocks: Bytes) -> BlockScales:
        """Multiply out: d sc and -dmin m."""
        scale, minimum = _six_bit_pairs(blocks[:, 4:16])
        return BlockScales(_half(blocks, 0) * scale, -(_half(blocks, 2) * minimum))


class Q5_K(BlockType):  # noqa: N801
    """256 five-bit codes; scales and minima as in Q4_K.

    | d (2) | dmin (2) | 12 bytes | qh (32): byte j, bit i: fifth bit of element j + 32 i | 128 |
    """

    name, type_id, elements, nbytes, group = "Q5_K", 13, 256, 176, 32
    number_format, scale_format = "uint5", "6 bits of a float16"
    planes = (Plane(48, 128, 4, 32), Plane(16, 32, 1, 32))
    scale_bytes, minimum_bytes = 8, 8
    sub_scales, minimum_at = _SIX_BIT_SCALES, 2

    def scales(self, blocks: Bytes) -> BlockScales:
        """Multiply out: d sc and -dmin m."""
        scale, minimum = _six_bit_pairs(blocks[:, 4:16])
        return BlockScales(_half(blocks, 0) * scale, -(_half(blocks, 2) * minimum))


class Q6_K(BlockType):  # noqa: N801
    """256 six-bit codes around 32; 16 sub-blocks with a signed byte as scale each.

    | ql (128) | qh (64) | 16 signed scales | d (2) |

    ql: two runs of 64 bytes, 64 low nibbles then 64 high ones; qh: two runs of 32 bytes,
    byte j holds the top two bits of elements j, j + 32, j + 64, j + 96 of the run's 128.
    """

    name, type_id, elements, nbytes, group = "Q6_K", 14, 256, 210, 16
    number_format, zero_point, scale_format = "uint6", 32, "8 bits of a float16"
    planes = (Plane(0, 128, 4, 64), Plane(128, 64, 2, 32))
    scale_bytes = 18
    scale_at, sub_signed = 208, True
    sub_scales = tuple(_low(192 + i, 0, 255) for i in range(16))

    def scales(self, blocks: Bytes) -> BlockScales:
        """Multiply out: d sc."""
        sub = blocks[:, 192:208].view(np.int8).astype(np.float32)
        return BlockScales(_half(blocks, 208) * sub)


class IQ4_NL(BlockType):  # noqa: N801
    """32 places in a table of 16 unevenly spaced numbers, and one scale.

    | d (2) | 16 bytes as in Q4_0 |
    """

    name, type_id, elements, nbytes, group = "IQ4_NL", 20, 32, 18, 32
    number_format = "iq4_nl"
    planes = (Plane(2, 16, 4, 16),)

    def scales(self, blocks: Bytes) -> BlockScales:
        """Take d."""
        return BlockScales(_half(blocks, 0))


class IQ4_XS(BlockType):  # noqa: N801
    """256 places in the table of IQ4_NL; 8 sub-blocks with a 6-bit scale around 32 each.

    | d (2) | scales_h (2) | scales_l (4) | 8 times 16 bytes as in Q4_0 |

    scales_l: nibble i is the low part of scale i; scales_h: bits 2i, 2i + 1 its top bits.
    """

    name, type_id, elements, nbytes, group = "IQ4_XS", 23, 256, 136, 32
    number_format, scale_format = "iq4_nl", "6 bits of a float16"
    planes = (Plane(8, 128, 4, 16),)
    scale_bytes, sub_zero = 8, 32
    sub_scales = tuple(
        (4 + i // 2, 4 * (i % 2), 15, 2 + i // 4, 2 * (i % 4), 3, 4) for i in range(8)
    )

    def scales(self, blocks: Bytes) -> BlockScales:
        """Multiply out: d (sc - 32)."""
        low = _planes(blocks[:, 4:8], 4, 1)
        high = _planes(blocks[:, 2:4], 2, 1)
        sub = (low | high << 4).astype(np.float32) - np.float32(32)
        return BlockScales(_half(blocks, 0) * sub)


class MXFP4(BlockType):
    """32 four-bit floats (E2M1) and one power of two.

    | e (1): 2^(e - 127) | 16 bytes as in Q4_0 |

    ggml keeps the table doubled and the scale halved; the products are the same.
    """

    name, type_id, elements, nbytes, group = "MXFP4", 39, 32, 17, 32
    number_format, scale_format, scale_bytes = "float4_e2m1fn", "float8_e8m0fnu", 1
    planes = (Plane(1, 16, 4, 16),)

    def scales(self, blocks: Bytes) -> BlockScales:
        """Take the power of two."""
        return BlockScales(np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 127))


class TQ1_0(BlockType):  # noqa: N801
    """256 codes of three values, five to a byte, and one scale.

    | 48 bytes: 5 trits each | 4 bytes: 4 trits each | d (2) |

    A byte b stands for the fraction b / 256; each trit is the whole part of three times it:
    element i of a byte is (b 3^i mod 256) 3 div 256. The first 32 bytes hold elements
    j, j + 32, ...; the next 16 elements j, j + 16, ...; the last four j, j + 4, ...
    """

    name, type_id, elements, nbytes, group = "TQ1_0", 34, 256, 54, 256
    number_format, zero_point = "ternary", 1
    scale_at = 52

    def codes(self, blocks: Bytes) -> NDArray[np.integer]:
        """Read the trits of the three runs."""
        runs = [(blocks[:, :32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4)]
        trits = [self._trits(run, count) for run, count in runs]
        return np.concatenate(trits, axis=1)

    @staticmethod
    def _trits(run: Bytes, count: int) -> Bytes:
        powers = np.array([3**i for i in range(count)], dtype=np.uint8)[:, None]
        fraction = run[:, None, :] * powers  # wraps at 256 on purpose: the rest of the fraction
        trits = fraction.astype(np.uint16) * 3 >> 8
        return trits.astype(np.uint8).reshape(len(run), -1)

    def scales(self, blocks: Bytes) -> BlockScales:
        """Take d."""
        return BlockScales(_half(blocks, 52))


class TQ2_0(BlockType):  # noqa: N801
    """256 codes of three values, two bits each, and one scale.

    | 64 bytes: 2-bit planes of runs of 32 bytes, as in Q2_K | d (2) |
    """

    name, type_id, elements, nbytes, group = "TQ2_0", 35, 256, 66, 256
    number_format, zero_point = "ternary", 1
    planes = (Plane(0, 64, 2, 32),)
    scale_at = 64

    def scales(self, blocks: Bytes) -> BlockScales:
        """Take d."""
        return BlockScales(_half(blocks, 64))


_ALL: tuple[type[BlockType], ...] = (
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    TQ1_0,
    TQ2_0,
)
# ggml type number -> block type
BLOCK_TYPES: MappingProxyType[int, BlockType] = MappingProxyType(
    {block.type_id: block() for block in _ALL}
)
