"""SmoothQuant at alpha = 1/2: move part of a channel's width from activations into weights.

Source: Xiao et al. 2022, arXiv 2211.10438, equation 4.
"""

from collections.abc import Sequence

from foldmark.exact.arithmetic import divide, multiply, square_root
from foldmark.exact.catalog import FLOAT64

__all__ = ["smooth", "smoothing_factors"]


def smoothing_factors(X: Sequence[Sequence[float]], W: Sequence[Sequence[float]]) -> list[float]:
    """Return s_j = sqrt(max|X_j| / max|W_j|) for every channel j, in float64.

    X   (samples, channels)
    W   (channels, out)
    ->  (channels,); 1 where either side of the channel is zero throughout
    """
    factors = []
    for j, row in enumerate(W):
        wide = max((abs(sample[j]) for sample in X), default=0.0)
        narrow = max(map(abs, row), default=0.0)
        known = wide > 0 and narrow > 0
        factors.append(square_root(divide(wide, narrow, FLOAT64), FLOAT64) if known else 1.0)
    return factors


def smooth(
    X: Sequence[Sequence[float]], W: Sequence[Sequence[float]], factors: Sequence[float]
) -> tuple[list[list[float]], list[list[float]]]:
    """Return X_ij / s_j and W_jk * s_j: their product is that of X and W.

    X        (samples, channels)
    W        (channels, out)
    factors  (channels,)
    """
    thin = [[divide(x, s, FLOAT64) for x, s in zip(row, factors, strict=True)] for row in X]
    wide = [[multiply(w, s, FLOAT64) for w in row] for row, s in zip(W, factors, strict=True)]
    return thin, wide
