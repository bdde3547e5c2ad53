"""Requantization: float, and fixed point in each build's rounding, against recorded answers."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldmark.errors import InvalidScheme
from foldmark.exact import catalog
from foldmark.exact.requantize import (
    FixedPointMultiplier,
    FixedPointRounding,
    multiply_by_quantized_multiplier,
    multiply_by_reduced_multiplier,
    quantize_multiplier,
    requantize_fixed_point,
    requantize_float,
    rounding_divide_by_power_of_two,
    saturating_rounding_doubling_high_multiply,
)

int32 = st.integers(-(2**31), 2**31 - 1)


def test_high_multiply_rounds_ties_up() -> None:
    half = [saturating_rounding_doubling_high_multiply(x, 1 << 30) for x in (1, -1, 3, -3, 5, -5)]
    assert half == [1, 0, 2, -1, 3, -2]
    assert saturating_rounding_doubling_high_multiply(-(2**31), -(2**31)) == 2**31 - 1


@given(int32, int32)
def test_high_multiply_is_gemmlowps_integer_formula(a: int, b: int) -> None:
    if a == b == -(2**31):
        return
    nudged = a * b + ((1 << 30) if a * b >= 0 else 1 - (1 << 30))
    truncated = abs(nudged) // (1 << 31) * (1 if nudged >= 0 else -1)
    assert saturating_rounding_doubling_high_multiply(a, b) == truncated


def test_division_rounds_ties_away() -> None:
    assert [rounding_divide_by_power_of_two(x, 1) for x in (1, -1, 3, -3, 5, -5)] == [
        *(1, -1, 2, -2, 3, -3)
    ]


@given(int32, st.integers(0, 31))
def test_division_is_gemmlowps_integer_formula(x: int, exponent: int) -> None:
    mask = (1 << exponent) - 1
    threshold = (mask >> 1) + (1 if x < 0 else 0)
    expected = (x >> exponent) + (1 if (x & mask) > threshold else 0)
    assert rounding_divide_by_power_of_two(x, exponent) == expected


@given(st.floats(0, 2.0**30, allow_subnormal=False))
def test_multipliers_are_within_half_a_unit(real: float) -> None:
    multiplier = quantize_multiplier(real)
    if multiplier.mantissa == 0:
        assert real < 2**-31
        return
    assert 1 << 30 <= multiplier.mantissa < 1 << 31
    value = Fraction(multiplier.mantissa, 1 << 31) * Fraction(2) ** multiplier.shift
    assert abs(value - Fraction(real)) <= Fraction(2) ** (multiplier.shift - 32)


def test_a_mantissa_that_rounds_to_the_top_is_halved() -> None:
    assert quantize_multiplier(1 - 2**-40) == FixedPointMultiplier(1 << 30, 1)


@pytest.mark.parametrize(
    ("real", "rounding", "expected"),
    [
        (0.3, FixedPointRounding.DOUBLE, [1, -1, 1, -1, 1, -1, 2, -2]),
        (0.3, FixedPointRounding.SINGLE, [0, 0, 1, -1, 1, -1, 2, -2]),
        (0.75, FixedPointRounding.DOUBLE, [1, -1, 2, -1, 2, -2, 4, -4]),
        (0.25, FixedPointRounding.DOUBLE_UP, [1, 0, 1, 0, 1, 0, 2, -1]),
    ],
)
def test_builds_differ(real: float, rounding: FixedPointRounding, expected: list[int]) -> None:
    inputs = [1, -1, 2, -2, 3, -3, 5, -5]
    multiplier = quantize_multiplier(real)
    assert [multiply_by_quantized_multiplier(x, multiplier, rounding) for x in inputs] == expected


@given(st.integers(-(2**40), 2**40), st.floats(2.0**-20, 1.0))
def test_the_reduced_multiplier_has_16_bits(x: int, real: float) -> None:
    product = multiply_by_reduced_multiplier(x, quantize_multiplier(real))
    assert abs(product - x * real) <= abs(x) * real * 2**-14 + 1


@given(st.integers(-(2**24), 2**24), st.integers(-128, 127))
def test_fixed_point_and_float_agree_to_one_code(accumulator: int, zero_point: int) -> None:
    scale = catalog.FLOAT32.round(0.00037)
    by_float = requantize_float(accumulator, scale, zero_point, catalog.INT8)
    fixed = quantize_multiplier(scale)
    by_fixed = requantize_fixed_point(accumulator, fixed, zero_point, catalog.INT8)
    assert abs(by_float - by_fixed) <= 1


def test_float_rounds_before_the_zero_point() -> None:
    codes = [requantize_float(x, 0.5, 3, catalog.INT8) for x in range(-5, 6)]
    assert codes == [1, 1, 1, 2, 3, 3, 3, 4, 5, 5, 5]


def test_a_negative_multiplier_is_refused() -> None:
    with pytest.raises(InvalidScheme, match="must not be negative"):
        quantize_multiplier(-0.5)
