"""GPTQ against the paper's claim and a second implementation that follows its derivation."""

import numpy as np
import pytest

from foldmark.errors import BadInput, NonFiniteValue
from foldmark.methods.gptq import Grid, gptq
from foldmark.methods.hessian import InputSums


def symmetric(bits):
    def make_grid(w):
        top = np.abs(w).max(1, keepdims=True)
        highest = (1 << (bits - 1)) - 1
        return Grid(top / highest, np.zeros_like(top), -highest, highest)

    return make_grid


def affine(bits):
    def make_grid(w):
        low, high = np.minimum(w.min(1, keepdims=True), 0), np.maximum(w.max(1, keepdims=True), 0)
        scale = (high - low) / ((1 << bits) - 1)
        return Grid(scale, np.rint(-low / scale), 0, (1 << bits) - 1)

    return make_grid


def layer(outer=24, inner=48, tokens=400, seed=0):
    """A weight and correlated inputs with columns of very different size."""
    random = np.random.default_rng(seed)
    mixing = random.standard_normal((inner, inner)) * np.geomspace(0.1, 3, inner)
    X = random.standard_normal((tokens, inner)) @ mixing / inner**0.5
    return random.standard_normal((outer, inner)), X


def hessian(X):
    return 2 * X.T @ X / len(X)


def restored(found, inner, group=None):
    size = group or inner
    parts = [
        (found.codes[:, i * size : (i + 1) * size] - grid.zero_point) * grid.scale
        for i, grid in enumerate(found.grids)
    ]
    return np.concatenate(parts, axis=1)


def optimal_brain_quantization(W, H, make_grid, damping):
    """The same result by its derivation: after each column, remove it from H^-1 outright.

    Column j's error e = (w_j - q_j) / [H_F^-1]_jj changes the columns left by
    -e [H_F^-1]_{j, F}; then row and column j leave H_F^-1 by Gaussian elimination.
    """
    W = W.copy()
    grid = make_grid(W)
    inverse = np.linalg.inv(H + damping * np.mean(np.diag(H)) * np.eye(len(H)))
    codes = np.zeros(W.shape, np.int64)
    for j in range(W.shape[1]):
        scale, zero = grid.scale[:, 0], grid.zero_point[:, 0]
        codes[:, j] = np.clip(np.rint(W[:, j] / scale) + zero, grid.lowest, grid.highest)
        error = (W[:, j] - (codes[:, j] - zero) * scale) / inverse[j, j]
        W[:, j:] -= np.outer(error, inverse[j, j:])
        inverse -= np.outer(inverse[:, j], inverse[j]) / inverse[j, j]
    return codes


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("kind", [symmetric, affine])
@pytest.mark.parametrize("inner", [20, 150])
def test_equal_to_the_derivation(kind, bits, inner):
    W, X = layer(inner=inner)
    H = hessian(X)
    found = gptq(W, H, kind(bits))
    assert np.array_equal(found.codes, optimal_brain_quantization(W, H, kind(bits), 0.01))


@pytest.mark.parametrize("group", [None, 16])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("bits", [3, 4])
def test_outputs_are_nearer_than_by_rounding(bits, act_order, group):
    """The paper's claim: || W X - Q X || falls."""
    W, X = layer()
    found = gptq(W, hessian(X), affine(bits), group=group, act_order=act_order)
    size = group or W.shape[1]
    nearest = []
    for start in range(0, W.shape[1], size):
        w = W[:, start : start + size]
        grid = affine(bits)(w)
        codes = np.clip(np.rint(w / grid.scale) + grid.zero_point, grid.lowest, grid.highest)
        nearest.append((codes - grid.zero_point) * grid.scale)
    error = np.linalg.norm(X @ (restored(found, W.shape[1], group) - W).T)
    plain = np.linalg.norm(X @ (np.concatenate(nearest, axis=1) - W).T)
    # The largest columns come last here: without act_order little is left to make up for them.
    assert error < (0.85 if act_order else 0.98) * plain


def test_the_loss_is_the_output_error():
    W, X = layer()
    H = hessian(X)
    found = gptq(W, H, affine(4), damping=1e-9)
    gap = restored(found, W.shape[1]) - W
    assert found.loss == pytest.approx(np.trace(gap @ H @ gap.T) / 2, rel=1e-4)


def test_dead_columns_are_named():
    W, X = layer(inner=4, tokens=64)
    X[:, 2] = 0
    found = gptq(W, hessian(X), affine(4))
    assert found.dead == (2,)
    assert (restored(found, 4)[:, 2] == 0).all()


def test_too_few_tokens_are_damped_and_reported():
    W, X = layer(inner=16, tokens=10)
    assert gptq(W, hessian(X), affine(4)).damping == 0.01
    assert gptq(W, hessian(X), affine(4), damping=0.0).damping > 0


def test_what_is_not_finite_is_refused():
    W, X = layer(inner=8)
    H = hessian(X)
    H[1, 1] = np.nan
    with pytest.raises(NonFiniteValue, match="H is not finite"):
        gptq(W, H, affine(4))
    with pytest.raises(NonFiniteValue, match="W is not finite"):
        gptq(np.full_like(W, np.inf), hessian(X), affine(4))


def test_h_of_the_wrong_shape():
    with pytest.raises(BadInput, match="does not fit"):
        gptq(np.ones((2, 3)), np.eye(4), affine(4))


def test_sums_stream():
    _, X = layer(tokens=90)
    sums = InputSums("x")
    for part in np.array_split(X.astype(np.float32).reshape(3, 30, -1), 3):
        sums.add(part)
    seen = sums.finish()
    assert pytest.approx(hessian(X), rel=1e-4, abs=1e-5) == seen.H
    assert seen.largest == pytest.approx(np.abs(X).max(0), rel=1e-6)
    assert seen.mean == pytest.approx(X.mean(0), rel=1e-4, abs=1e-6)
    assert seen.mean_size == pytest.approx(np.abs(X).mean(0), rel=1e-5)
    assert seen.tokens == 90
