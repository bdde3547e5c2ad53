"""Packed bytes are the oracle's in every layout, for every length around a period."""

import numpy as np
import pytest

from foldmark.errors import DataMismatch
from foldmark.exact import packing as exact
from foldmark.kernels import packing as fast

LAYOUTS = [
    *(value for value in vars(exact).values() if isinstance(value, exact.BitLayout)),
    *(exact.stream(bits) for bits in (1, 2, 3, 4, 5, 6, 7)),
    exact.halves(70, 4),
    exact.halves(71, 4, low_first=False),
    exact.halves(13, 2),
]


def codes(layout: exact.BitLayout, length: int, low: int) -> np.ndarray:
    numbers = np.random.default_rng(length).integers(low, low + (1 << layout.bits), length)
    return numbers.astype(np.int16)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("periods", [0, 1, 1.5, 3, 40.3])
@pytest.mark.parametrize(("signed", "offset"), [(False, 0), (True, 0), (False, 1), (False, 7)])
def test_bytes_are_the_oracles(
    layout: exact.BitLayout, periods: float, signed: bool, offset: int
) -> None:
    length = int(periods * layout.codes)
    offset = (1 << (layout.bits - 1)) if offset == 7 else offset
    low = -(1 << (layout.bits - 1)) if signed else -offset
    given = codes(layout, length, low)
    packed = fast.pack(given, layout, offset)
    assert packed.tobytes() == exact.pack(given.tolist(), layout, offset)
    back = fast.unpack(packed, layout, length, offset, signed=signed)
    assert back.tolist() == given.tolist()
    assert back.tolist() == exact.unpack(packed.tobytes(), layout, length, offset, signed=signed)
    assert fast.words_from_bytes(packed[: packed.size // 4 * 4]).tolist() == (
        exact.words_from_bytes(packed.tobytes()[: packed.size // 4 * 4])
    )


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
@pytest.mark.parametrize(
    "layout",
    [exact.LOW_NIBBLE_FIRST, exact.HIGH_NIBBLE_FIRST, exact.stream(2), exact.stream(3)],
    ids=lambda layout: layout.name,
)
def test_many_codes_of_any_dtype(dtype: type, layout: exact.BitLayout) -> None:
    given = codes(layout, 200_001, 0).astype(dtype)
    packed = fast.pack(given, layout)
    head = exact.pack(given[:4000].tolist(), layout)
    assert packed[: len(head)].tobytes() == head
    assert np.array_equal(fast.unpack(packed, layout, given.size), given)


def test_what_does_not_fit_is_named() -> None:
    wrong = np.array([1, 2, 16, 3], np.int16)
    for module in (fast, exact):
        with pytest.raises(DataMismatch, match=r"index 2: code does not fit; got 16"):
            module.pack(wrong if module is fast else wrong.tolist(), exact.LOW_NIBBLE_FIRST)
        packed = np.zeros(2, np.uint8)
        with pytest.raises(DataMismatch, match="too few bytes"):
            module.unpack(packed if module is fast else packed.tobytes(), exact.AWQ_WORD, 8)


def test_zero_points_of_gptq() -> None:
    zeros = np.array([0, 1, 8, 15])
    assert fast.gptq_v1_zero_fields(zeros, 4).tolist() == exact.gptq_v1_zero_fields(zeros, 4)
    assert fast.fields_of(zeros - 8, 4, 8).tolist() == exact.fields_of((zeros - 8).tolist(), 4, 8)
