"""SmoothQuant, AWQ, clipping and bias correction against their definitions and claims."""

import numpy as np
import pytest

from foldmark.errors import InvalidScheme
from foldmark.methods.awq import awq_factors, search_clip, search_scale
from foldmark.methods.bias_correction import mean_shift
from foldmark.methods.clipping import clipped_scales
from foldmark.methods.smoothquant import search_alpha, smoothing_factors


def layer(inner=32, outer=16, tokens=200, seed=0):
    """Inputs with three channels a hundred times larger, as in transformers."""
    random = np.random.default_rng(seed)
    X = random.standard_normal((tokens, inner)).astype(np.float32)
    X[:, [3, 9, 20]] *= 100
    return X, random.standard_normal((inner, outer)).astype(np.float32)


def fake(values, bits=8, axis=None):
    top = np.abs(values).max(axis=axis, keepdims=axis is not None)
    scale = np.where(top == 0, 1, top) / ((1 << (bits - 1)) - 1)
    return (np.rint(values / scale) * scale).astype(np.float32)


def quantized(X, W, seen):
    top = np.abs(seen).max()
    scale = top / 127 if top else 1
    codes = np.clip(np.rint(X / scale), -128, 127)
    return (codes * scale).astype(np.float32) @ fake(W, axis=0)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_smoothing_is_its_formula(alpha):
    X, W = layer()
    x, w = np.abs(X).max(0), np.abs(W).max(1)
    found = smoothing_factors(x, w, alpha)
    by_hand = [float(a) ** alpha / float(b) ** (1 - alpha) for a, b in zip(x, w, strict=True)]
    assert found.factors == pytest.approx(by_hand, rel=1e-5)
    assert found.kept == ()


def test_smoothing_helps_where_the_paper_says():
    X, W = layer()
    exact = X @ W
    found = search_alpha(X, W, np.abs(X).max(0), quantized)
    s = found.factors.astype(np.float32)
    assert (X / s) @ (W * s[:, None]) == pytest.approx(exact, rel=1e-3, abs=1e-2)
    plain = np.linalg.norm(quantized(X, W, X) - exact)
    assert np.linalg.norm(quantized(X / s, W * s[:, None], X / s) - exact) < 0.5 * plain


def test_smoothing_is_judged_on_inputs_that_made_neither_factors_nor_ranges():
    X, W = layer(tokens=400)
    X[0, 5] = 70
    found = search_alpha(X, W, np.abs(X).max(0), quantized)
    blocks = X.reshape(8, 50, -1)
    halves = blocks[::2].reshape(200, -1), blocks[1::2].reshape(200, -1)
    pairs = (halves, halves[::-1])
    plain = [((quantized(judged, W, seen) - judged @ W) ** 2).sum() for judged, seen in pairs]
    errors = []
    for step in range(2, 19):
        own = []
        for judged, seen in pairs:
            s = smoothing_factors(np.abs(seen).max(0), np.abs(W).max(1), step / 20).factors
            s = s.astype(np.float32)
            made = quantized(judged / s, W * s[:, None], seen / s)
            own.append(float(((made - judged @ W) ** 2).sum()))
        errors.append(own)
    best = int(np.argmin((np.array(errors) / plain).max(1)))
    assert found.alpha == (2 + best) / 20
    assert found.error == pytest.approx(sum(errors[best]), rel=1e-6)
    chosen = smoothing_factors(np.abs(X).max(0), np.abs(W).max(1), found.alpha)
    assert (found.factors == chosen.factors).all()


def test_smoothing_that_fits_only_what_it_saw_is_not_done():
    """A few rows set each channel's largest value; others go far beyond it."""
    random = np.random.default_rng(0)
    X = np.where(random.random((16, 64)) < 0.1, 5, 0.05).astype(np.float32)
    X *= np.geomspace(0.2, 1, 64, dtype=np.float32)
    X[:, 0] = 5
    W = random.standard_normal((64, 16)).astype(np.float32)
    x = np.abs(X).max(0)
    exact = X @ W

    def gain(alpha):
        s = smoothing_factors(x, np.abs(W).max(1), alpha).factors.astype(np.float32)
        made = quantized(X / s, W * s[:, None], X / s)
        return ((quantized(X, W, X) - exact) ** 2).sum() - ((made - exact) ** 2).sum()

    assert max(gain(step / 20) for step in range(2, 19)) > 0  # on what it saw it would help
    assert search_alpha(X, W, x, quantized) is None


def test_smoothing_that_helps_nothing_is_not_done():
    X = np.ones((10, 4), np.float32)
    W = np.ones((4, 2), np.float32)
    assert search_alpha(X, W, np.abs(X).max(0), quantized) is None


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.95, 1.0])
def test_channels_of_zeros_keep_one(alpha):
    found = smoothing_factors(np.array([1, 0, 2, 0.5]), np.array([0.1, 0.2, 0, 0.3]), alpha)
    assert found.kept == (1, 2)
    assert (found.factors[[1, 2]] == 1).all()
    assert np.isfinite(found.factors).all()
    assert (found.factors > 0).all()


@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.95])
def test_awq_channels_of_zeros_keep_one(ratio):
    factors, kept = awq_factors(np.array([1, 0, 2, 0.5]), ratio)
    assert kept == (1,)
    assert factors[1] == 1
    assert np.isfinite(factors).all()
    live = factors[[0, 2, 3]]
    assert live.max() * live.min() == pytest.approx(1)


def test_a_forgotten_absolute_value_is_refused():
    with pytest.raises(InvalidScheme, match="negative"):
        awq_factors(np.array([1, -0.1]), 0.5)
    with pytest.raises(InvalidScheme, match="negative"):
        smoothing_factors(np.array([-0.1]), np.array([1.0]), 0.5)


def blocks(W, bits=4, size=16):
    parts = [fake(W[:, i : i + size], bits, axis=1) for i in range(0, W.shape[1], size)]
    return np.concatenate(parts, axis=1)


def test_awq_lowers_the_output_error():
    X, W = layer()
    W = np.ascontiguousarray(W.T)
    exact = X @ W.T
    found = search_scale(X, W, np.abs(X).mean(0), blocks)
    s = found.factors.astype(np.float32)
    error = float(((X @ (blocks(W * s) / s).T - exact) ** 2).mean())
    assert found.error == pytest.approx(error, rel=1e-4)
    assert found.plain_error == pytest.approx(
        float(((X @ blocks(W).T - exact) ** 2).mean()), rel=1e-5
    )
    assert error < 0.5 * found.plain_error
    # No other step of the grid does better.
    for step in range(20):
        other = awq_factors(np.abs(X).mean(0), step / 20)[0].astype(np.float32)
        assert float(((X @ (blocks(W * other) / other).T - exact) ** 2).mean()) >= error * 0.9999


def test_clipping_a_group_never_hurts_its_output():
    X, W = layer(seed=3)
    W = np.ascontiguousarray(W.T)
    W[0, 0] = 12
    cut = search_clip(X, W, 16, blocks)
    for start in range(0, 32, 16):
        part = slice(start, start + 16)
        x = X[:, part]
        before = ((x @ (blocks(W[:, part]) - W[:, part]).T) ** 2).sum(0)
        after = ((x @ (blocks(cut[:, part]) - W[:, part]).T) ** 2).sum(0)
        assert (after <= before * 1.0001).all()
    assert np.abs(cut).max() <= np.abs(W).max()


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_clipped_scales_have_the_least_error(bits):
    W = np.random.default_rng(0).standard_t(3, (20, 100)).astype(np.float32)
    highest = (1 << (bits - 1)) - 1
    plain = np.abs(W).max(1) / highest
    found = clipped_scales(W, plain, -highest - 1, highest)

    def error(scale):
        steps = np.clip(np.rint(W / scale[:, None]), -highest - 1, highest)
        return ((steps * scale[:, None] - W) ** 2).sum(1)

    assert (error(found) <= error(plain) * 1.000001).all()
    for shrink in np.linspace(0.4, 1, 13):
        assert (error(found) <= error(plain * shrink) * 1.01).all()
    assert bits > 4 or (found < plain).any()


@pytest.mark.parametrize("window", [(), (3, 3)])
def test_bias_correction_removes_the_mean_shift(window):
    random = np.random.default_rng(0)
    W = random.standard_normal((5, 4, *window))
    W_q = np.round(W * 2) / 2
    if not window:
        X = random.standard_normal((1000, 4)) + 3
        shift = (X @ (W_q - W).T).mean(0)
        assert mean_shift(W, W_q, X.mean(0)) == pytest.approx(shift)
        return
    level = random.standard_normal(4)
    X = np.broadcast_to(level[:, None, None], (4, *window))
    shift = ((W_q - W) * X).sum((1, 2, 3))
    assert mean_shift(W, W_q, level) == pytest.approx(shift)
