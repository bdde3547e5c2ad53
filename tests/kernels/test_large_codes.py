"""Zero points and codes with more bits than the arithmetic: exact, or refused by name."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from foldmark.errors import DataMismatch
from foldmark.exact import affine as exact
from foldmark.exact.catalog import BFLOAT16, FLOAT16, FLOAT32, INT16, INT32
from foldmark.exact.number import FloatFormat
from foldmark.exact.rule import AffineRule, Clip, ZeroOrder
from foldmark.kernels.affine import quantize

TINY = [1e-30, -1e-30, 1e-7, -1e-7, 2.0**-24, 0.0, 0.5, -0.5, 3.0, -3.0]


@pytest.mark.parametrize("order", [ZeroOrder.BEFORE_ROUNDING, ZeroOrder.WITH_HALF])
@pytest.mark.parametrize(
    ("precision", "zero_point"),
    [
        (BFLOAT16, 257),
        (BFLOAT16, -259),
        (FLOAT16, 2049),
        (FLOAT16, -2051),
        (FLOAT32, (1 << 24) + 1),
    ],
)
def test_a_zero_point_between_two_numbers_of_the_precision(
    precision: FloatFormat, zero_point: int, order: ZeroOrder
) -> None:
    # Added to 257, 1e-30 decides whether bfloat16 goes up to 258 or down to the even 256; a
    # float64 sum has lost it.
    rule = AffineRule(codes=INT32, precision=precision, order=order)
    values = np.array(TINY, np.float32)
    expected = exact.quantize([float(x) for x in values], 1.0, zero_point, rule)
    assert quantize(values, 1.0, zero_point, rule).tolist() == expected


def test_bfloat16_data_and_a_zero_point_of_nine_bits() -> None:
    rule = AffineRule(codes=INT16, precision=BFLOAT16, order=ZeroOrder.BEFORE_ROUNDING)
    values = np.array([1e-30, -1e-30], ml_dtypes.bfloat16)
    assert quantize(values, 1.0, 257, rule).tolist() == [258, 256]


@pytest.mark.parametrize("order", list(ZeroOrder), ids=lambda order: order.name)
def test_an_unclipped_code_beyond_53_bits_is_refused(order: ZeroOrder) -> None:
    rule = AffineRule(codes=INT16, clip=Clip.NONE, order=order)
    values = np.array([[1.0, 2.0], [3.0, 2.0**60]], np.float32)
    with pytest.raises(DataMismatch, match=r"index \[1, 1\].*53 bits"):
        quantize(values, 1.0, 1, rule)


def test_an_unclipped_code_of_53_bits_is_exact() -> None:
    rule = AffineRule(codes=INT16, clip=Clip.NONE)
    values = np.array([2.0**52, -(2.0**52), 70_000.0], np.float64)
    wide = replace(rule, precision=FLOAT32)
    expected = exact.quantize(values.tolist(), 1.0, 1, wide)
    assert expected == [(1 << 52) + 1, 1 - (1 << 52), 70_001]
    assert quantize(values, 1.0, 1, wide).tolist() == expected


def test_an_infinite_sum_still_has_the_outermost_code() -> None:
    rule = AffineRule(codes=INT16, clip=Clip.NONE, precision=FLOAT16)
    rule = replace(rule, order=ZeroOrder.BEFORE_ROUNDING)
    values = np.array([1.0], np.float32)
    expected = exact.quantize([1.0], 1.0, 70_001, rule)
    assert quantize(values, 1.0, 70_001, rule).tolist() == expected
