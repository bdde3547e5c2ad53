"""Codes of 2 to 6 bits packed into bytes: each layout of the field as one value.

A layout repeats: a period of `codes` codes fills `size` bytes. It says where each bit of each code
of a period goes; packing and unpacking read the same table. Bits are drawn from the highest to
the lowest of a byte, and 32-bit words are stored with their lowest byte first.

    LOW_NIBBLE_FIRST   byte 0: 1111 0000                two codes a byte, code 0 in the low half
    HIGH_NIBBLE_FIRST  byte 0: 0000 1111                code 0 in the high half
    AWQ_WORD           byte 0: 2222 0000  byte 1: 6666 4444
                       byte 2: 3333 1111  byte 3: 7777 5555
    GGML_Q4            byte j: code j + 16, code j      32 codes in 16 bytes, halves side by side
    stream(3)          byte 0: 2211 1000  byte 1: 5444 3332  byte 2: 7776 6655
    stream(2)          byte 0: 3322 1100
    stream(6)          byte 0: 1100 0000  byte 1: 2222 1111  byte 2: 3333 3322
    GGML_Q2_K          byte l: code l + 96, l + 64, l + 32, l    128 codes in 32 bytes
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Final

from foldmark.errors import DataMismatch

__all__ = [
    "AWQ_WORD",
    "GGML_Q2_K",
    "GGML_Q4",
    "GGML_Q4_K",
    "GGML_Q5_HIGH",
    "GGML_Q6_K_HIGH",
    "GGML_Q6_K_LOW",
    "HIGH_NIBBLE_FIRST",
    "LOW_NIBBLE_FIRST",
    "BitLayout",
    "fields_of",
    "gptq_v1_zero_fields",
    "halves",
    "pack",
    "stream",
    "unpack",
    "words_from_bytes",
]


@dataclass(frozen=True, slots=True)
class BitLayout:
    """Where the bits of a period of codes go.

    bits    bits of one code
    codes   codes of one period
    size    bytes of one period
    places  places[i][b] is the bit (8 * byte + bit) where bit b of code i of a period goes
    """

    name: str
    bits: int
    codes: int
    size: int
    places: tuple[tuple[int, ...], ...]


def pack(codes: Sequence[int], layout: BitLayout, offset: int = 0) -> bytes:
    """Return the packed bytes of a list of codes; a last, shorter period is filled with zeros.

    Each field holds the low bits of code + offset: two's complement for signed codes without an
    offset, a code without sign for an offset of 2^(bits - 1).

    Raises DataMismatch for a code that does not fit.
    """
    fields = fields_of(codes, layout.bits, offset)
    periods = -(-len(fields) // layout.codes)
    packed = bytearray(periods * layout.size)
    for index, field in enumerate(fields):
        period, place = divmod(index, layout.codes)
        for bit, position in enumerate(layout.places[place]):
            byte, shift = divmod(position, 8)
            packed[period * layout.size + byte] |= (field >> bit & 1) << shift
    return bytes(packed)


def unpack(
    packed: bytes, layout: BitLayout, count: int, offset: int = 0, *, signed: bool = False
) -> list[int]:
    """Return the first `count` codes of packed bytes.

    offset  what packing added to each code
    signed  whether the fields are two's complement

    Raises DataMismatch when there are too few bytes.
    """
    if -(-count // layout.codes) * layout.size > len(packed):
        raise DataMismatch("too few bytes", got=str(len(packed)), expected=f"{count} codes")
    codes = []
    for index in range(count):
        period, place = divmod(index, layout.codes)
        field = 0
        for bit, position in enumerate(layout.places[place]):
            byte, shift = divmod(position, 8)
            field |= (packed[period * layout.size + byte] >> shift & 1) << bit
        if signed and field >> (layout.bits - 1):
            field -= 1 << layout.bits
        codes.append(field - offset)
    return codes


def fields_of(codes: Sequence[int], bits: int, offset: int = 0) -> list[int]:
    """Return the bit fields of codes: (code + offset) as an unsigned number of `bits` bits."""
    lowest, beyond = -(1 << (bits - 1)), 1 << bits
    for index, code in enumerate(codes):
        if not lowest <= code + offset < beyond:
            raise DataMismatch(
                "code does not fit", where=f"index {index}", got=str(code), expected=f"{bits} bits"
            )
    return [(code + offset) & (beyond - 1) for code in codes]


def words_from_bytes(packed: bytes) -> list[int]:
    """Return packed bytes as int32 words, lowest byte first."""
    starts = range(0, len(packed), 4)
    return [int.from_bytes(packed[s : s + 4], "little", signed=True) for s in starts]


def _layout(
    name: str, bits: int, codes: int, size: int, first_bit: Callable[[int], int]
) -> BitLayout:
    """Return a layout whose codes each lie in one piece, from a given first bit upward."""
    places = tuple(tuple(first_bit(i) + b for b in range(bits)) for i in range(codes))
    return BitLayout(name, bits, codes, size, places)


def stream(bits: int) -> BitLayout:
    """Return the layout without gaps: code i begins at bit i * bits, low bits first.

        3 bits   byte 0: 2211 1000   byte 1: 5444 3332   byte 2: 7776 6655

    So pack GPTQ (its 3-bit codes cross word borders just like this), compressed-tensors and MLX,
    all into 32-bit words; with 4 bits it is LOW_NIBBLE_FIRST.
    """
    shared = gcd(bits, 8)
    return _layout(f"stream of {bits} bits", bits, 8 // shared, bits // shared, lambda i: i * bits)


def halves(count: int, bits: int, *, low_first: bool = True) -> BitLayout:
    """Return the layout of whole lists that are cut in 8 / bits parts laid over one another.

        low first    byte j: code j + count/2, code j      optimum-quanto, on rows
        high first   byte j: code j, code j + count/2      HQQ, on rows

    A count that does not divide leaves the last fields of the last part empty.
    """
    parts = 8 // bits
    size = -(-count // parts)

    def first_bit(index: int) -> int:
        part, byte = divmod(index, size)
        return 8 * byte + bits * (part if low_first else parts - 1 - part)

    return _layout(f"{parts} parts of {count}", bits, count, size, first_bit)


_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

LOW_NIBBLE_FIRST: Final = _layout("low nibble first", 4, 2, 1, lambda i: 4 * i)
"""ONNX initializers, ONNX Runtime's MatMulNBits, OpenVINO, MLX and GPTQ words of 4 bits."""
HIGH_NIBBLE_FIRST: Final = _layout("high nibble first", 4, 2, 1, lambda i: 4 * (1 - i))
"""bitsandbytes NF4 and FP4, ModelOpt's INT4QTensor."""
AWQ_WORD: Final = _layout("AWQ word", 4, 8, 4, lambda i: 4 * _AWQ_ORDER.index(i))
"""AutoAWQ GEMM: the nibbles of a word hold outputs 0, 2, 4, 6, 1, 3, 5, 7."""
GGML_Q4: Final = _layout("ggml Q4", 4, 32, 16, lambda i: 8 * (i % 16) + 4 * (i // 16))
"""ggml Q4_0, Q4_1 and the low four bits of Q5_0 and Q5_1."""
GGML_Q5_HIGH: Final = _layout("ggml Q5 high", 1, 32, 4, lambda i: i)
"""The fifth bits of Q5_0 and Q5_1: bit i of a 32-bit word belongs to code i."""
GGML_Q2_K: Final = _layout("ggml Q2_K", 2, 128, 32, lambda i: 8 * (i % 32) + 2 * (i // 32))
"""ggml Q2_K, Q3_K's low bits: four codes 32 apart share a byte."""
GGML_Q4_K: Final = _layout("ggml Q4_K", 4, 64, 32, lambda i: 8 * (i % 32) + 4 * (i // 32))
"""ggml Q4_K: 32 low nibbles, then the next 32 codes in the high nibbles of the same bytes."""
GGML_Q6_K_LOW: Final = _layout("ggml Q6_K low", 4, 128, 64, lambda i: 8 * (i % 64) + 4 * (i // 64))
"""The low four bits of Q6_K: codes l and l + 64 share a byte."""
GGML_Q6_K_HIGH: Final = _layout(
    "ggml Q6_K high", 2, 128, 32, lambda i: 8 * (i % 32) + 2 * (i // 32)
)
"""The high two bits of Q6_K: codes l, l + 32, l + 64 and l + 96 share a byte."""


def gptq_v1_zero_fields(zero_points: Sequence[int], bits: int) -> list[int]:
    """Return the fields that the first GPTQ file format stores: zero point - 1, wrapped.

    A zero point of 0 is stored as all ones; subtracting 0x11111111 from a whole word instead
    borrows from the next field whenever a zero point is 0.
    """
    return [(zero - 1) & ((1 << bits) - 1) for zero in zero_points]
