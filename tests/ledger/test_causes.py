"""Errors split exactly, and each planted cause is the one that is named."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties import examples

from foldmark.graphs.sites import Encoding
from foldmark.ledger.causes import Cause, split_error
from foldmark.ledger.grid import Grid, code_limits


def encoding(form="int8", *, scale=0.1, zero=0, axis=None, block=None):
    kind = np.int8 if not form.startswith("u") else np.uint8
    return Encoding(form, axis, block, np.asarray(scale, np.float32), np.asarray(zero, kind))


def on_grid(x, enc, shift=0):
    grid = Grid.of(enc, x)
    low, high = code_limits(enc.number_format)
    codes = np.clip(np.rint(x / grid.step) + grid.zero, low, high) + shift
    return ((codes - grid.zero) * grid.step).astype(np.float32)


def values(shape=(40, 30), seed=0, size=3.0):
    return (np.random.default_rng(seed).standard_normal(shape) * size).astype(np.float32)


def powers(parts):
    return {cause: float((part**2).sum()) for cause, part in parts.items()}


@pytest.mark.parametrize("form", ["int8", "uint8", "int4"])
@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_parts_sum_to_the_error(form, zero, axis):
    x = values()
    count = {None: (), 0: (40,), 1: (30,)}[axis]
    enc = encoding(form, scale=np.full(count, 0.05), zero=np.full(count, zero), axis=axis)
    delta = on_grid(x, enc) - x
    parts = split_error(x, delta, Grid.of(enc, x))
    assert set(parts) <= {Cause.ROUNDING, Cause.CLIPPING}
    np.testing.assert_allclose(sum(parts.values()), delta, atol=1e-6)
    inside = np.abs(parts[Cause.ROUNDING]) <= 0.05 * 0.5 * (1 + 1e-3)
    assert inside.all()


def test_a_clipped_range_is_clipping():
    x = values()
    enc = encoding(scale=2.0 / 127)
    parts = powers(split_error(x, on_grid(x, enc) - x, Grid.of(enc, x)))
    assert parts[Cause.CLIPPING] > 100 * parts[Cause.ROUNDING]


@pytest.mark.parametrize("shift", [-1, 1, 3])
@pytest.mark.parametrize("axis", [None, 1])
def test_a_shifted_zero_point_is_zero_point(shift, axis):
    x = values(size=1.0)
    scale = np.float32(0.1) if axis is None else np.full(30, 0.1)
    enc = encoding(scale=scale, zero=0 if axis is None else np.zeros(30), axis=axis)
    delta = on_grid(x, enc, shift) - x
    parts = split_error(x, delta, Grid.of(enc, x))
    assert powers(parts)[Cause.ZERO_POINT] > 0.8 * float((delta**2).sum())
    np.testing.assert_allclose(parts[Cause.ZERO_POINT], 0.1 * shift, rtol=1e-5)
    np.testing.assert_allclose(sum(parts.values()), delta, atol=1e-6)


def test_a_wrong_scale_is_scale():
    x = values(size=1.0)
    right, wrong = encoding(scale=0.03), encoding(scale=0.035)
    delta = on_grid(x, right) / np.float32(0.03) * np.float32(0.035) - x
    parts = split_error(x, delta, Grid.of(wrong, x))
    assert powers(parts)[Cause.SCALE] > 0.8 * float((delta**2).sum())
    np.testing.assert_allclose(sum(parts.values()), delta, atol=1e-5)


def test_codes_that_are_not_the_nearest_are_codes():
    x = values(size=1.0)
    enc = encoding(scale=0.05)
    near = on_grid(x, enc)
    moved = near.copy()
    moved.flat[::7] += np.float32(0.05 * 2)
    parts = split_error(x, moved - x, Grid.of(enc, x))
    assert np.count_nonzero(parts[Cause.CODES]) == len(moved.flat[::7])


def test_float16_overflow_is_clipping():
    x = np.array([1.0, 70000.0, -1e6], np.float32)
    delta = np.clip(x, -65504, 65504).astype(np.float16).astype(np.float32) - x
    parts = split_error(x, delta, Grid.of(Encoding("float16"), x))
    np.testing.assert_array_equal(parts[Cause.CLIPPING] != 0, [False, True, True])


def test_a_range_from_the_data_costs_only_what_its_zero_point_costs():
    x = np.array([-1.0, 0.3, 2.7], np.float32)
    enc = Encoding("uint8")
    step = np.float32(3.7 / 255)
    zero = np.rint(1.0 / step)
    after = (np.clip(np.rint(x / step) + zero, 0, 255) - zero) * step
    parts = split_error(x, after - x, Grid.of(enc, x))
    assert Cause.CLIPPING not in parts
    assert np.abs(parts.get(Cause.ZERO_POINT, np.zeros(3))).max() <= step / 2


def test_blocks_have_their_own_steps():
    x = values((6, 40))
    scale = np.random.default_rng(2).uniform(0.2, 1.0, (6, 3)).astype(np.float32)
    enc = Encoding("int4", 1, 16, scale, np.zeros((6, 3), np.int8))
    grid = Grid.of(enc, x)
    assert grid.step.shape == (6, 40)
    assert grid.step[2, 31] == pytest.approx(scale[2, 1])
    assert grid.step[2, 32] == pytest.approx(scale[2, 2])
    parts = split_error(x, on_grid(x, enc) - x, grid)
    assert set(parts) <= {Cause.ROUNDING, Cause.CLIPPING}


@examples(200)
@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40),
    st.floats(0.0078125, 2, width=32),
    st.integers(-120, 120),
    st.integers(-3, 3),
)
def test_the_split_is_exact_whatever_the_codes(numbers, scale, zero, shift):
    x = np.array(numbers, np.float32)
    enc = encoding(scale=scale, zero=zero)
    delta = on_grid(x, enc, shift) - x
    parts = split_error(x, delta, Grid.of(enc, x))
    np.testing.assert_allclose(sum(parts.values()), delta, atol=2e-4, rtol=1e-5)
