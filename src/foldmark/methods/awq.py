"""AWQ: scale up the weights that meet large activations, so that rounding hurts them less.

Lin et al. 2023, "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration"
(arXiv 2306.00978): min over r of || Q(W diag(s)) diag(s)^-1 X - W X ||, s = mean|X|^r.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import InvalidScheme

__all__ = ["AwqScale", "awq_factors", "search_clip", "search_scale"]

Floats = NDArray[np.floating]
FakeQuantize = Callable[[Floats], Floats]
"""A weight W (out, in) as its codes would give it back."""

_GRID = 20
_SHRINKS = 10


@dataclass(frozen=True)
class AwqScale:
    """Factors for a layer's input channels.

    Attributes:
        factors: (in,)  the weight's columns are multiplied, the activation divided by them.
        ratio: r of the search, 0 for no scaling.
        error: mean squared output error with it.
        plain_error: without.
        kept: channels that keep 1, because nothing was seen of them.
    """

    factors: NDArray[np.float64]
    ratio: float
    error: float
    plain_error: float
    kept: tuple[int, ...]


def awq_factors(mean_size: Floats, ratio: float) -> tuple[NDArray[np.float64], tuple[int, ...]]:
    """Return s = mean|X|^ratio, normalized to sqrt(max s min s) = 1, and the channels kept at 1.

    Raises InvalidScheme for a negative mean (a forgotten absolute value).
    """
    x = np.asarray(mean_size, np.float64)
    if (x < 0).any():
        raise InvalidScheme("a mean magnitude is negative", where="AWQ factors")
    usable = x > float(np.finfo(np.float32).tiny)
    s = np.where(usable, np.maximum(x, 1e-30) ** ratio, 1.0)
    if usable.any():
        s[usable] /= np.sqrt(s[usable].max() * s[usable].min())
        s[usable] = np.clip(s[usable], 1e-4, 1e4)
    return s, tuple(int(j) for j in np.flatnonzero(~usable))


def search_scale(X: Floats, W: Floats, mean_size: Floats, fake_quantize: FakeQuantize) -> AwqScale:
    """Return the factors with the least output error over r = 0, 1/20, ..., 19/20.

    X          (tokens, in)
    W          (out, in)
    mean_size  (in,)  mean |X_j| over all inputs
    """
    exact = X @ W.T
    best: AwqScale | None = None
    plain = 0.0
    for step in range(_GRID):
        s, kept = awq_factors(mean_size, step / _GRID)
        factors = s.astype(W.dtype)
        restored = fake_quantize(W * factors) / factors
        error = float(((X @ restored.T - exact) ** 2).mean())
        plain = error if step == 0 else plain
        if best is None or error < best.error:
            best = AwqScale(s, step / _GRID, error, plain, kept)
    assert best is not None
    return best


def search_clip(
    X: Floats, W: Floats, group: int, fake_quantize: FakeQuantize
) -> NDArray[np.floating]:
    """Return W clipped per row and group of columns where that lowers the output error.

    Limits tried are 1.0, 0.95, ... 0.55 of the group's largest magnitude, each judged by the
    group's own share of the output, sum over its columns.
    """
    clipped = np.array(W)
    for start in range(0, W.shape[1], group):
        columns = slice(start, start + group)
        w, x = W[:, columns], X[:, columns]
        gram = x.T @ x
        top = np.abs(w).max(1, keepdims=True)
        least = np.full(len(w), np.inf)
        for step in range(_SHRINKS):
            limit = top * (1 - step / (2 * _SHRINKS))
            tried = np.clip(w, -limit, limit)
            gap = fake_quantize(tried) - w
            error = np.einsum("oi,ij,oj->o", gap, gram, gap)
            better = error < least
            least[better] = error[better]
            clipped[:, columns][better] = tried[better]
    return clipped
