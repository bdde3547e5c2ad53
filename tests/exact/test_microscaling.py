"""Microscaling blocks: worked values, ml_dtypes for the elements, and the formats' limits."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foldmark.errors import DataMismatch, NonFiniteValue
from foldmark.exact import catalog
from foldmark.exact import microscaling as mx
from foldmark.exact.microscaling import MX_FORMATS, MicroscalingFormat

blocks = st.lists(st.floats(-1e4, 1e4, width=32), min_size=32, max_size=32)


@pytest.mark.parametrize("number_format", MX_FORMATS, ids=lambda f: f.name)
@given(blocks)
def test_elements_are_rounded_as_ml_dtypes(number_format: MicroscalingFormat, values) -> None:
    block = mx.quantize_mx(values, number_format)
    scale = catalog.E8M0.decode(block.scale)
    dtype = np.dtype(getattr(ml_dtypes, number_format.element.name))
    limit = float(number_format.element.maximum)
    scaled = np.clip(np.array(values, np.float64) / scale, -limit, limit)
    expected = scaled.astype(np.float32).astype(dtype).view(np.uint8)
    restored = [number_format.element.decode(code) for code in block.codes]
    assert restored == expected.view(dtype).astype(float).tolist()


@pytest.mark.parametrize("number_format", MX_FORMATS, ids=lambda f: f.name)
@given(blocks)
@example([1e-45] * 32)
@example([2.0**-119] * 32)
def test_the_largest_value_keeps_its_exponent(number_format: MicroscalingFormat, values) -> None:
    block = mx.quantize_mx(values, number_format)
    restored = mx.dequantize_mx(block, number_format)
    largest = max(map(abs, values))
    # Below, no power of two is small enough: X stays at 2^-127.
    if largest >= 2.0 ** (number_format.largest_exponent - 127):
        assert 0.5 < max(map(abs, restored)) / largest <= 1.25


def test_a_block_by_hand() -> None:
    values = [6.0, -3.0, 0.25, 0.75] + [0.0] * 28
    block = mx.quantize_mx(values, mx.MXFP4)
    assert block.scale == 127  # 6 = 1.5 * 4, and 4 is E2M1's largest exponent: X = 1
    restored = mx.dequantize_mx(block, mx.MXFP4)[:4]
    assert restored == [6.0, -3.0, 0.0, 1.0]  # 0.25 and 0.75 are ties, to the even code


def test_seven_saturates_although_it_rounds_to_eight() -> None:
    values = [7.9] + [0.0] * 31
    assert mx.dequantize_mx(mx.quantize_mx(values, mx.MXFP4), mx.MXFP4)[0] == 6.0


def test_zero_and_tiny_blocks_get_the_smallest_scale() -> None:
    assert mx.quantize_mx([0.0] * 32, mx.MXFP4).scale == 0
    tiny = mx.quantize_mx([1e-44] * 32, mx.MXFP8_E4M3)
    assert tiny.scale == 0
    assert set(tiny.codes) == {0}


def test_bits_per_value() -> None:
    assert float(mx.MXFP4.bits_per_value) == 4.25
    assert float(mx.MXFP8_E4M3.bits_per_value) == 8.25


def test_nvfp4_by_hand() -> None:
    values = [6.0 * 448, 3.0 * 448] + [0.0] * 14
    scale = mx.nvfp4_tensor_scale(values)
    assert scale == 1.0
    block = mx.quantize_nvfp4(values, scale)
    assert catalog.E4M3FN.decode(block.scale) == 448.0
    assert mx.dequantize_nvfp4(block, scale) == values


@given(st.lists(st.floats(-100, 100, width=32), min_size=16, max_size=16))
def test_nvfp4_stays_within_a_step(values: list[float]) -> None:
    scale = mx.nvfp4_tensor_scale(values)
    restored = mx.dequantize_nvfp4(mx.quantize_nvfp4(values, scale), scale)
    largest = max(map(abs, values))
    assert all(abs(x - y) <= 0.25 * largest + 1e-30 for x, y in zip(values, restored, strict=True))


def test_refusals() -> None:
    with pytest.raises(DataMismatch, match="got 3 values; expected 32"):
        mx.quantize_mx([1.0] * 3, mx.MXFP4)
    with pytest.raises(NonFiniteValue, match="index 1: not finite; got nan"):
        mx.quantize_nvfp4([1.0, math.nan] + [0.0] * 14, 1.0)
