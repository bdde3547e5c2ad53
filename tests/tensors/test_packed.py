"""Packed tensors are quantized tensors whose codes were packed, and give the same numbers back."""

import ml_dtypes
import numpy as np
import pytest

import foldmark as fm
from foldmark.errors import InvalidScheme, NonFiniteValue
from foldmark.exact import packing as exact
from foldmark.exact.catalog import INT4, UINT2, UINT4
from foldmark.exact.packing import AWQ_WORD, HIGH_NIBBLE_FIRST, LOW_NIBBLE_FIRST, BitLayout, stream
from foldmark.tensors.scheme import Scheme

CASES = [
    (fm.symmetric(INT4, fm.per_axis(0)), LOW_NIBBLE_FIRST, 0),
    (fm.symmetric(INT4, fm.per_group(16)), HIGH_NIBBLE_FIRST, 8),
    (fm.asymmetric(UINT4, fm.per_group(32)), AWQ_WORD, 0),
    (fm.asymmetric(UINT4), LOW_NIBBLE_FIRST, 0),
    (fm.asymmetric(UINT2, fm.per_axis(1)), stream(2), 0),
]


@pytest.mark.parametrize(("scheme", "layout", "offset"), CASES, ids=str)
@pytest.mark.parametrize("shape", [(6, 64), (3, 5, 33), (1, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_the_same_bytes_and_numbers(
    scheme: Scheme, layout: BitLayout, offset: int, shape: tuple[int, ...], dtype: type
) -> None:
    numbers = np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)
    packed = fm.quantize_packed(numbers, scheme, layout, offset)
    tensor = fm.quantize(numbers, scheme)
    codes = [int(code) for code in tensor.codes.ravel()]
    assert bytes(packed.packed) == bytes(exact.pack(codes, layout, offset))
    assert np.array_equal(packed.scale, tensor.scale)
    assert np.array_equal(packed.zero_point, tensor.zero_point)
    back = packed.dequantize()
    assert back.dtype == dtype
    assert np.array_equal(back, tensor.dequantize())


def test_nothing_is_packed_as_nothing() -> None:
    scheme = fm.symmetric(INT4, fm.per_axis(0))
    packed = fm.quantize_packed(np.zeros((3, 0), np.float32), scheme)
    assert packed.packed.size == 0
    assert packed.scale.shape == (3, 1)
    assert packed.dequantize().shape == (3, 0)


def test_what_can_not_be_packed_is_named() -> None:
    numbers = np.ones((2, 4), np.float32)
    numbers[1, 2] = np.inf
    with pytest.raises(NonFiniteValue, match=r"\[1, 2\]"):
        fm.quantize_packed(numbers, fm.symmetric(INT4))
    with pytest.raises(InvalidScheme):
        fm.quantize_packed(np.ones(4, np.float32), fm.symmetric(INT4, fm.per_axis(1)))


def test_it_names_itself_without_its_numbers() -> None:
    packed = fm.quantize_packed(np.ones((2, 8), np.float32), fm.symmetric(INT4))
    assert repr(packed) == "PackedTensor(int4, shape=(2, 8), data=float32, 8 bytes of codes)"
