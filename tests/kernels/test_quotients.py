"""Codes decided by two products are those of the division, whatever the step and the number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties import examples

from foldmark.kernels import lanes
from foldmark.kernels.quotients import codes_of_one_block

CODES = {np.int8: (-128, 127), np.uint8: (0, 255), np.int16: (-32768, 32767), np.uint16: (0, 65535)}
NARROW = {np.int8: (-8, 7), np.uint8: (0, 15)}
single = np.float32


def divided(values: np.ndarray, step: np.float32, zero: int, limits: tuple[int, int]) -> np.ndarray:
    with np.errstate(all="ignore"):
        whole = np.rint(values / step) + single(zero)
    return np.clip(whole, single(limits[0]), single(limits[1]))


def numbers_near_ties(step: np.float32, draw: np.random.Generator) -> np.ndarray:
    """Return half-steps, their neighbours, any bit pattern, and zeros, all finite."""
    halves = np.concatenate([np.arange(-300, 300), draw.integers(-70_000, 70_000, 400)]) + 0.5
    with np.errstate(all="ignore"):
        ties = (halves * np.float64(step)).astype(single)
        patterns = draw.integers(0, 1 << 32, 500, np.uint32).view(single)
        up, down = np.nextafter(ties, single(np.inf)), np.nextafter(ties, single(-np.inf))
        both = np.concatenate([ties, up, down, patterns, single([0, -0.0, 1e-45, -1e-45])])
    return both[np.isfinite(both)]


@examples(300)
@given(
    st.integers(1, 0x7F7FFFFF),
    st.integers(-(1 << 16), 1 << 16) | st.integers(-130, 260),
    st.sampled_from([*CODES.items(), *NARROW.items()]),
    st.integers(0, 1 << 32),
)
def test_any_step_and_number(
    bits: int, zero: int, codes: tuple[type, tuple[int, int]], seed: int
) -> None:
    dtype, (low, high) = codes
    step = np.array([bits], np.int32).view(single)[0]
    values = numbers_near_ties(step, np.random.default_rng(seed))
    found = np.empty(values.size, dtype)
    codes_of_one_block(values, step, single(zero), single(low), single(high), found)
    assert np.array_equal(found, divided(values, step, zero, (low, high)))


@pytest.mark.parametrize("step", [0.00214854861, 0.1, 1 / 3, 2.0**-7, 1e-30, 1e30])
def test_ordinary_steps_by_their_half_steps(step: float) -> None:
    values = numbers_near_ties(single(step), np.random.default_rng(0))
    for zero in (0, 3, 128, -1):
        found = np.empty(values.size, np.int16)
        codes_of_one_block(values, single(step), single(zero), *single([-32768, 32767]), found)
        assert np.array_equal(found, divided(values, single(step), zero, (-32768, 32767)))


def test_one_product_alone_would_be_wrong() -> None:
    # 0.273939937 / 0.00214854861 rounds to 127.49999, times the reciprocal it is 127.5: the pair
    # that the bracket must not decide.
    step, value = single(0.00214854861), single(0.273939937)
    assert np.rint(value / step) == 127
    assert np.rint(value * (single(1) / step)) == 128
    found = np.empty(64, np.uint8)
    codes_of_one_block(np.full(64, value), step, single(0), single(0), single(255), found)
    assert (found == 127).all()


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 64, 1023, 1024, 1025, 1056, 5000])
def test_lengths_around_a_step_of_the_loop(size: int) -> None:
    values = np.random.default_rng(size).standard_normal(size).astype(single) * single(20)
    found = np.full(size + 8, 99, np.int8)
    codes_of_one_block(values, single(0.25), single(3), single(-128), single(127), found[:size])
    assert np.array_equal(found[:size], divided(values, single(0.25), 3, (-128, 127)))
    assert (found[size:] == 99).all()


def test_the_factors_lie_apart_from_the_reciprocal() -> None:
    # fl(1 / step) errs by 2^-24, each product by 2^-24, and so does the quotient.
    assert single(1 - 3 * 2.0**-23) >= lanes.BELOW
    assert single(1 + 3 * 2.0**-23) <= lanes.ABOVE
