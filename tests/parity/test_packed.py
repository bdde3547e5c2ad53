"""Folding into bytes gives the bytes of folding and then packing, and back."""

import numpy as np
import pytest

from foldmark.errors import NonFiniteValue
from foldmark.exact.catalog import INT4, UINT2, UINT4
from foldmark.exact.packing import AWQ_WORD, HIGH_NIBBLE_FIRST, LOW_NIBBLE_FIRST, stream
from foldmark.kernels.affine import dequantize
from foldmark.kernels.fold import quantize_array
from foldmark.kernels.packed import dequantize_packed, quantize_packed
from foldmark.kernels.packing import pack
from foldmark.tensors.scheme import asymmetric, symmetric

SCHEMES = [
    (symmetric(INT4).rule, LOW_NIBBLE_FIRST, 0),
    (symmetric(INT4).rule, LOW_NIBBLE_FIRST, 8),
    (asymmetric(UINT4).rule, HIGH_NIBBLE_FIRST, 0),
    (asymmetric(UINT4).rule, AWQ_WORD, 0),
    (asymmetric(UINT2).rule, stream(2), 0),
]
SHAPES = [((5, 64), (1, 32)), ((3, 33), (1, 33)), ((40, 30), (40, 1)), ((1000, 999), (1, 111))]


@pytest.mark.parametrize(("rule", "layout", "offset"), SCHEMES)
@pytest.mark.parametrize(("shape", "block"), [*SHAPES, ((700, 1024), (700, 1024))])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_there_and_back(rule, layout, offset, shape, block, dtype) -> None:  # noqa: PLR0917
    values = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    found = quantize_packed(values, block, rule, layout, offset)
    expected = quantize_array(values, block, rule)
    assert np.array_equal(found.packed, pack(expected.codes, layout, offset))
    assert np.array_equal(found.scale, expected.scale)
    assert np.array_equal(found.zero_point, expected.zero_point)
    back = dequantize_packed(found, shape, block, rule, layout, offset)
    scale, zero_point = expected.scale, expected.zero_point
    numbers = dequantize(expected.codes, scale, zero_point, rule.affine, block=block)
    assert np.array_equal(back, numbers)


def test_what_is_not_finite_is_named() -> None:
    values = np.ones((4, 64), np.float32)
    values[2, 3] = np.nan
    with pytest.raises(NonFiniteValue, match=r"\[2, 3\]"):
        quantize_packed(values, (1, 32), symmetric(INT4).rule, LOW_NIBBLE_FIRST)
