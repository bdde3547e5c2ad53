"""Clipping, smoothing, straight-through gradients and sizes, against numpy and torch."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldmark.exact.catalog import INT8, INT8_NARROW
from foldmark.exact.clipping import clipped_share, percentile_limit, split_error
from foldmark.exact.smoothing import smooth, smoothing_factors
from foldmark.exact.storage import bits_per_value, cache_bytes
from foldmark.exact.straight_through import straight_through

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


@given(NUMBERS, st.integers(1, 100))
def test_the_percentile_limit_is_numpys_inverted_cdf(values: list[float], percent: int) -> None:
    # numpy's rank is computed in floats; at a whole rank it may land one off, so ask for no more
    # than the definition: the smallest magnitude that enough values don't exceed.
    limit = percentile_limit(values, percent)
    magnitudes = np.abs(values)
    assert np.sum(magnitudes <= limit) * 100 >= percent * len(values)
    smaller = magnitudes[magnitudes < limit]
    if len(smaller):
        assert np.sum(magnitudes <= smaller.max()) * 100 < percent * len(values)
    if percent * len(values) % 100:
        assert limit == np.percentile(magnitudes, percent, method="inverted_cdf")


def test_the_percentile_of_nothing_is_zero() -> None:
    assert percentile_limit([], 99) == 0.0


@given(NUMBERS, st.floats(0, 1e6))
def test_clipped_share_and_split_error_add_up(values: list[float], limit: float) -> None:
    restored = np.clip(values, -limit, limit).tolist()
    clipped, rounded = split_error(values, restored, limit)
    assert rounded == 0
    assert clipped == sum(
        (abs(Fraction(x) - Fraction(y)) for x, y in zip(values, restored, strict=True)),
        Fraction(0),
    )
    assert clipped_share(values, limit) == Fraction(
        int(np.sum(np.abs(values) > limit)), len(values)
    )


def test_smoothing_is_numpys_division_and_root() -> None:
    random = np.random.default_rng(5)
    X, W = random.normal(size=(7, 4)) * [1, 60, 5, 0.1], random.normal(size=(4, 3))
    X[:, 3] = 0.0
    factors = smoothing_factors(X.tolist(), W.tolist())
    expected = np.sqrt(np.abs(X[:, :3]).max(axis=0) / np.abs(W[:3]).max(axis=1))
    assert factors == [*expected.tolist(), 1.0]
    thin, wide = smooth(X.tolist(), W.tolist(), factors)
    assert thin == (X / factors).tolist()
    assert wide == (W * np.array(factors)[:, None]).tolist()
    np.testing.assert_allclose(np.array(thin) @ np.array(wide), X @ W, rtol=1e-12, atol=1e-12)
    assert smoothing_factors([], W.tolist()) == [1.0] * 4


@pytest.mark.parametrize("codes", [INT8, INT8_NARROW], ids=lambda codes: codes.name)
def test_the_gradient_is_that_of_torchs_fake_quantization(codes: object) -> None:
    import torch

    assert codes in (INT8, INT8_NARROW)
    low, high = (-128, 127) if codes is INT8 else (-127, 127)
    # Half-steps of a scale that is a power of two: exact in float32 and float64 alike.
    points = [(n / 4) * 0.5 for n in range(-4 * 130, 4 * 130 + 1)]
    x = torch.tensor(points, requires_grad=True)
    torch.fake_quantize_per_tensor_affine(x, 0.5, 0, low, high).sum().backward()
    ours = [straight_through(point, 0.5, 1.0, codes) for point in points]
    assert ours == x.grad.tolist()


@given(st.integers(1, 10_000), st.integers(1, 300), st.integers(1, 16), st.integers(0, 32))
def test_sizes_count_every_bit(count: int, size: int, code_bits: int, scale_bits: int) -> None:
    blocks = len(range(0, count, size))
    total = sum([code_bits] * count) + sum([scale_bits] * blocks)
    assert bits_per_value(count, size, code_bits, scale_bits) * count == total
    bits = 2 * count * size * code_bits + (size + count) * scale_bits
    assert 0 <= cache_bytes(count, size, code_bits, scale_bits) * 8 - bits < 8


def test_q4_0_has_four_and_a_half_bits() -> None:
    assert bits_per_value(4096, 32, 4, 16) == Fraction(9, 2)
