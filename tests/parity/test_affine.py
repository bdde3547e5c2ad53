"""The fast affine map gives the oracle's codes and numbers, bit for bit, and its errors."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.parity import strategies as draws
from tests.properties import examples

from foldmark.errors import FoldmarkError
from foldmark.exact import affine as exact
from foldmark.exact import group as exact_group
from foldmark.exact.catalog import FLOAT32, FLOAT64, INT8, UINT8
from foldmark.exact.number import FloatFormat
from foldmark.exact.rounding import Rounding, round_to_int
from foldmark.exact.rule import (
    AffineRule,
    Clip,
    Extent,
    NotANumber,
    Rule,
    ScaleRule,
    Scaling,
    ZeroForm,
    ZeroOrder,
    ZeroPointRule,
)
from foldmark.kernels import affine as fast
from foldmark.kernels import group as fast_group
from foldmark.kernels.floats import dtype_of

# Beyond this a float64 does not hold every whole number, and an unclipped code loses its end.
LARGEST = 2**53


def outcome(call: Callable[[], Any]) -> Any:
    """Return a call's result, or which error it raised and where."""
    try:
        return call()
    except FoldmarkError as error:
        return type(error), error.where


def as_bits(numbers: Any, dtype: Any = np.float64) -> list[int]:
    """Return floats as their bit patterns, every NaN as one, both zeros as one."""
    values = np.asarray(numbers, dtype) + np.asarray(0, dtype)
    return np.where(np.isnan(values), np.nan, values).astype(np.float64).view(np.int64).tolist()


@given(st.data())
@examples(200)
def test_codes_and_numbers_are_the_oracles(data: st.DataObject) -> None:
    number_format = data.draw(st.sampled_from(draws.DATA))
    rule = data.draw(draws.affine_rules())
    if rule.scaling in (Scaling.RATIO, Scaling.RATIO_OF_RECIPROCAL):
        rule = replace(rule, codes_per_scale=rule.ratio)
    values = data.draw(draws.arrays(number_format))
    kept = data.draw(st.sampled_from([FLOAT32, number_format]))
    scale = np.array(
        data.draw(st.sampled_from([0.5, 0.25, 1.0, 0.037, 0.1, -0.3, 1e-8, 0.0])), dtype_of(kept)
    )
    if rule.zero_is_real:
        drawn = data.draw(st.sampled_from([0.0, 0.5, -1.25, 2.7]))
        zero: Any = np.array(drawn, dtype_of(number_format)).item()
        zero = float(zero)
    else:
        zero = data.draw(st.sampled_from([0, 1, 3, 7, 8, rule.codes.minimum, rule.codes.maximum]))
    numbers = [float(value) for value in values]
    expected = outcome(lambda: exact.quantize(numbers, float(scale), zero, rule, number_format))
    if isinstance(expected, list) and any(abs(code) > LARGEST for code in expected):
        return
    codes = outcome(lambda: fast.quantize(values, scale, zero, rule))
    if not isinstance(expected, list):
        assert codes == expected
        return
    assert codes.tolist() == expected
    back = fast.dequantize(codes, scale, zero, rule, number_format)
    assert back.dtype == dtype_of(number_format)
    assert as_bits(back) == as_bits(
        exact.dequantize(expected, float(scale), zero, rule, number_format)
    )


@given(st.data())
@examples(200)
def test_whole_rules_are_the_oracles(data: st.DataObject) -> None:
    number_format = data.draw(st.sampled_from(draws.DATA))
    rule = data.draw(draws.rules())
    values = data.draw(draws.arrays(number_format))
    size = data.draw(st.sampled_from([1, 3, 8, 16, 32]))
    numbers = [float(value) for value in values]
    expected = outcome(lambda: exact_group.quantize_blocks(numbers, size, rule, number_format))
    if isinstance(expected, list):
        codes = [code for group in expected for code in group.codes]
        if any(abs(code) > LARGEST for code in codes):
            return
    found = outcome(lambda: fast_group.quantize_blocks(values, size, rule))
    if not isinstance(expected, list):
        assert isinstance(found, tuple), f"codes where the oracle raises {expected}"
        # Within a block the oracle counts from the block's start, the array from its own.
        assert found[0] == expected[0]
        return
    assert not isinstance(found, tuple), f"{found} where the oracle has codes"
    assert found.codes.tolist() == codes
    assert as_bits(found.scale) == as_bits([group.scale for group in expected])
    assert as_bits(found.zero_point) == as_bits([group.zero_point for group in expected])


@pytest.mark.parametrize("value", [2.0**128, 6.80564734e38, -1e300])
@pytest.mark.parametrize("nan", NotANumber)
def test_numbers_beyond_the_precision_computed_in(value: float, nan: NotANumber) -> None:
    # Infinite as float32: so is the scale, whose reciprocal is 0, and infinity * 0 is no number.
    affine = AffineRule(codes=INT8, scaling=Scaling.RECIPROCAL, precision=FLOAT32, nan=nan)
    scale = ScaleRule(extent=Extent.SPAN, denominator=Fraction(255))
    zero_point = ZeroPointRule(
        form=ZeroForm.ROUND_DIFFERENCE, lowest=-128, highest=127, clip=Clip.NONE
    )
    rule = Rule(
        name="beyond",
        scale=scale,
        zero_point=zero_point,
        affine=affine,
        source="",
        versions="",
    )
    values = np.array([value, 1.0])
    expected = outcome(lambda: exact_group.quantize_group(values.tolist(), rule, FLOAT64))
    found = outcome(lambda: fast_group.quantize_group(values, rule))
    if isinstance(expected, tuple):
        assert found == expected
        return
    assert found.codes.tolist() == list(expected.codes)


def every_half(data: FloatFormat) -> np.ndarray:
    """Return all 65536 patterns of a 16-bit float."""
    return np.arange(1 << 16, dtype=np.uint16).view(dtype_of(data))


@pytest.mark.parametrize("data", draws.DATA[1:3], ids=lambda data: data.name)
@pytest.mark.parametrize("scale", [3e-4])
def test_every_16_bit_pattern(data: FloatFormat, scale: float) -> None:
    rule = AffineRule(codes=UINT8, nan=NotANumber.HIGHEST)
    rule = replace(rule, infinity=exact.Infinity.SATURATE)
    values = every_half(data)
    numbers = [float(value) for value in values]
    kept = float(np.float32(scale))
    expected = exact.quantize(numbers, kept, 127, rule, data)
    assert fast.quantize(values, np.float32(scale), 127, rule).tolist() == expected


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_at_and_beside_ties(rounding: Rounding, dtype: type) -> None:
    from foldmark.kernels.rounding import round_to_int as fast_round

    ties = np.arange(-20, 20).astype(dtype) + dtype(0.5)
    beside = [np.nextafter(ties, dtype(side)) for side in (-np.inf, np.inf)]
    large = np.array([2**23 - 0.5, 2**22 + 0.5, 2**24 + 1, -(2**23) - 1, 1e30], dtype)
    small = np.array([0.0, -0.0, 1e-45, -1e-45, 0.49999997, -0.49999997], dtype)
    values = np.concatenate([ties, *beside, large, -large, small])
    expected = [round_to_int(Fraction(float(value)), rounding) for value in values]
    assert [int(value) for value in fast_round(values, rounding)] == expected


@pytest.mark.parametrize("order", ZeroOrder)
@pytest.mark.parametrize("zero", [3, 127, -5])
def test_ties_with_odd_zero_points(order: ZeroOrder, zero: int) -> None:
    values = (np.arange(-400, 400) / 2).astype(np.float32)
    rule = AffineRule(codes=UINT8, scaling=Scaling.RECIPROCAL, order=order)
    numbers = [float(value) for value in values]
    expected = exact.quantize(numbers, 1.0, zero, rule)
    assert fast.quantize(values, 1.0, zero, rule).tolist() == expected


def test_a_wrong_order_is_seen() -> None:
    values = (np.arange(-100, 100) / 2).astype(np.float32)
    right = AffineRule(codes=UINT8)
    wrong = replace(right, order=ZeroOrder.BEFORE_ROUNDING)
    numbers = [float(value) for value in values]
    assert fast.quantize(values, 1.0, 127, wrong).tolist() != exact.quantize(
        numbers, 1.0, 127, right
    )


def drawn_rule() -> Rule:
    from foldmark.tensors.scheme import asymmetric

    return asymmetric(UINT8).rule


@pytest.mark.parametrize("length", [65535, 65536, 65537, 300_001])
def test_rows_longer_than_a_piece(length: int) -> None:
    values = np.random.default_rng(length).standard_normal(length)
    values = (np.round(values * 64) / 64).astype(np.float32)
    found = fast_group.quantize_group(values, drawn_rule())
    # The oracle needs the ends for the grid, and answers for one number at a time.
    ends = [float(values.min()), float(values.max())]
    group = exact_group.quantize_group(ends, drawn_rule())
    assert (found.scale.item(), found.zero_point.item()) == (group.scale, group.zero_point)
    places = np.unique(np.concatenate([np.arange(0, length, 509), np.arange(length)[-70:]]))
    asked = [float(value) for value in values[places]]
    expected = exact.quantize(asked, group.scale, group.zero_point, drawn_rule().affine)
    assert found.codes[places].tolist() == expected


def test_float64_is_rounded_once_where_the_rule_computes_in_float32() -> None:
    values = np.array([0.1, 1 / 3, 2 / 3, 1e300, 1e-300], np.float64)
    rule = AffineRule(codes=UINT8)
    expected = exact.quantize(list(values), 0.003, 0, rule, FLOAT64)
    assert fast.quantize(values, 0.003, 0, rule).tolist() == expected
