"""SmoothQuant: move the large channels of an activation into the weight that reads it.

Xiao et al. 2022, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
Language Models" (arXiv 2211.10438):

    Y = (X diag(s)^-1) (diag(s) W),    s_j = max|X_j|^alpha / max|W_j|^(1 - alpha)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import InvalidScheme

__all__ = ["Smoothing", "search_alpha", "smoothing_factors"]

Floats = NDArray[np.floating]
_ALPHAS = tuple(step / 20 for step in range(6, 19))  # 0.3 to 0.9
FakeQuantize = Callable[[Floats, Floats], Floats]
"""The product of X (tokens, in) and W (in, out) as the quantized layer would give it."""


@dataclass(frozen=True)
class Smoothing:
    """Factors for the inputs of a layer.

    Attributes:
        factors: (in,)  s: the activation is divided, the weight multiplied by it.
        kept: channels that keep 1, because their activation or their weight is zero.
        alpha: how much of the difficulty was moved: 0 nothing, 1 all.
        error: squared output error with it; of the layer as it is for alpha None.
    """

    factors: NDArray[np.float64]
    kept: tuple[int, ...]
    alpha: float
    error: float = 0.0


def smoothing_factors(largest_x: Floats, largest_w: Floats, alpha: float) -> Smoothing:
    """Return s_j = max|X_j|^alpha / max|W_j|^(1 - alpha), finite and positive for every channel.

    largest_x  (in,)  max |X_j| >= 0
    largest_w  (in,)  max over outputs of |W_j|

    Raises InvalidScheme for a negative maximum (a forgotten absolute value) or alpha outside 0..1.
    """
    x, w = np.asarray(largest_x, np.float64), np.asarray(largest_w, np.float64)
    if (x < 0).any() or (w < 0).any():
        raise InvalidScheme("a largest magnitude is negative", where="smoothing factors")
    if not 0 <= alpha <= 1:
        raise InvalidScheme("alpha is between 0 and 1", got=f"{alpha:g}")
    # Below the smallest normal float32 a channel is as good as zero: its factor would overflow.
    tiny = float(np.finfo(np.float32).tiny)
    usable = (x > tiny) & (w > tiny)
    with np.errstate(all="ignore"):
        s = np.where(usable, x**alpha / w ** (1 - alpha), 1.0)
    usable &= np.isfinite(s) & (s > 0)
    s = np.where(usable, s, 1.0)
    return Smoothing(s, tuple(int(j) for j in np.flatnonzero(~usable)), alpha)


def search_alpha(
    X: Floats,
    W: Floats,
    largest_x: Floats,
    quantized_product: FakeQuantize,
    alphas: Sequence[float] = _ALPHAS,
) -> Smoothing | None:
    """Return the smoothing with the least squared output error, None when none helps.

    X                  (tokens, in)  some inputs
    W                  (in, out)     all weights that read them, side by side
    largest_x          (in,)         max |X_j| over all inputs
    quantized_product  X, W -> what the quantized layer gives
    """
    exact = X @ W
    plain = float(((quantized_product(X, W) - exact) ** 2).sum())
    largest_w = np.abs(W).max(1)
    best: Smoothing | None = None
    for alpha in alphas:
        tried = smoothing_factors(largest_x, largest_w, alpha)
        s = tried.factors.astype(X.dtype)
        error = float(((quantized_product(X / s, W * s[:, None]) - exact) ** 2).sum())
        if error < min(plain, best.error if best else np.inf):
            best = Smoothing(tried.factors, tried.kept, alpha, error)
    return best
