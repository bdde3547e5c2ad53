"""Bit layouts: drawn ones against known bytes, all of them there and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldmark.errors import DataMismatch
from foldmark.exact import packing
from foldmark.exact.packing import BitLayout, pack, stream, unpack

NAMED = [
    packing.LOW_NIBBLE_FIRST,
    packing.HIGH_NIBBLE_FIRST,
    packing.AWQ_WORD,
    packing.GGML_Q4,
    packing.GGML_Q5_HIGH,
    packing.GGML_Q2_K,
    packing.GGML_Q4_K,
    packing.GGML_Q6_K_LOW,
    packing.GGML_Q6_K_HIGH,
    *(stream(bits) for bits in (2, 3, 4, 5, 6)),
    packing.halves(10, 4),
    packing.halves(9, 4, low_first=False),
    packing.halves(12, 2),
]


@pytest.mark.parametrize("layout", NAMED, ids=lambda layout: layout.name)
def test_no_bit_is_used_twice(layout: BitLayout) -> None:
    used = [place for code in layout.places for place in code]
    assert len(set(used)) == len(used) == layout.codes * layout.bits
    assert max(used) < 8 * layout.size


@pytest.mark.parametrize("layout", NAMED, ids=lambda layout: layout.name)
@given(st.data())
def test_there_and_back(layout: BitLayout, data: st.DataObject) -> None:
    field = st.integers(0, (1 << layout.bits) - 1)
    codes = data.draw(st.lists(field, max_size=2 * layout.codes + 1))
    packed = pack(codes, layout)
    assert unpack(packed, layout, len(codes)) == codes
    assert len(packed) == -(-len(codes) // layout.codes) * layout.size


@pytest.mark.parametrize(
    ("layout", "codes", "expected"),
    [
        (packing.LOW_NIBBLE_FIRST, [1, 2, 3], "2103"),
        (packing.HIGH_NIBBLE_FIRST, [1, 2, 3], "1230"),
        (packing.AWQ_WORD, [0, 1, 2, 3, 4, 5, 6, 7], "20643175"),
        (stream(3), [0, 1, 2, 3, 4, 5, 6, 7], "88c6fa"),
        (stream(2), [0, 1, 2, 3], "e4"),
        (stream(6), [1, 2, 3, 4], "813010"),
        (packing.halves(4, 4), [1, 2, 3, 4], "3142"),
        (packing.halves(4, 4, low_first=False), [1, 2, 3, 4], "1324"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_as_drawn(layout: BitLayout, codes: list[int], expected: str) -> None:
    assert pack(codes, layout).hex() == expected


def test_signed_codes_with_and_without_offset() -> None:
    codes = [-8, -1, 0, 7]
    assert pack(codes, packing.LOW_NIBBLE_FIRST).hex() == "f870"
    assert pack(codes, packing.LOW_NIBBLE_FIRST, offset=8).hex() == "70f8"
    two = bytes.fromhex("f870")
    assert unpack(two, packing.LOW_NIBBLE_FIRST, 4, signed=True) == codes
    assert unpack(bytes.fromhex("70f8"), packing.LOW_NIBBLE_FIRST, 4, offset=8) == codes


def test_gptq_three_bits_cross_words() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 8, 32)
    words = [0, 0, 0]
    for i in range(10):
        words[0] |= int(codes[i]) << 3 * i
    words[0] |= (int(codes[10]) & 3) << 30
    words[1] |= int(codes[10]) >> 2
    for i in range(10):
        words[1] |= int(codes[11 + i]) << (3 * i + 1)
    words[1] |= (int(codes[21]) & 1) << 31
    words[2] |= int(codes[21]) >> 1
    for i in range(10):
        words[2] |= int(codes[22 + i]) << (3 * i + 2)
    packed = pack(codes.tolist(), stream(3))
    assert [int.from_bytes(packed[4 * i : 4 * i + 4], "little") for i in range(3)] == words


def test_gptq_zero_of_zero_wraps_in_its_own_field() -> None:
    fields = packing.gptq_v1_zero_fields([0, 8, 15, 1], 4)
    assert fields == [15, 7, 14, 0]
    word = int.from_bytes(pack([0, 8, 15, 1, 1, 1, 1, 1], stream(4)), "little")
    borrowed = (word - 0x11111111) & 0xFFFFFFFF
    assert unpack(borrowed.to_bytes(4, "little"), stream(4), 4) == [15, 6, 14, 0]


def test_words_are_little_endian_and_signed() -> None:
    packed = pack(list(range(-8, 8)), stream(4), offset=8)
    assert packing.words_from_bytes(packed) == [0x76543210, 0xFEDCBA98 - (1 << 32)]


def test_refusals() -> None:
    with pytest.raises(DataMismatch, match="index 1: code does not fit; got 16; expected 4 bits"):
        pack([0, 16], packing.LOW_NIBBLE_FIRST)
    with pytest.raises(DataMismatch, match="too few bytes; got 1; expected 3 codes"):
        unpack(b"\0", packing.LOW_NIBBLE_FIRST, 3)
