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
_ALPHAS = tuple(step / 20 for step in range(2, 19))  # 0.1 to 0.9
_BLOCKS = 8  # of consecutive rows, seen and judged in turns
_WORTH = 0.9  # of the error may be left: less gain is not worth a multiplication in every run
FakeQuantize = Callable[[Floats, Floats, Floats], Floats]
"""The product of X (tokens, in) and W (in, out) as a layer gives it whose ranges are of other X."""


@dataclass(frozen=True)
class Smoothing:
    """Factors for the inputs of a layer.

    Attributes:
        factors: (in,)  s: the activation is divided, the weight multiplied by it.
        kept: channels that keep 1, because their activation or their weight is zero.
        alpha: how much of the difficulty was moved: 0 nothing, 1 all.
        error: squared output error with it, on inputs that it was not made from.
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
    """Return the smoothing with the least squared output error, None when none saves a tenth.

    Factors and ranges come from one half of the inputs and are judged on the other, both ways:
    a channel made as large as the loudest must hold for inputs that nobody has seen. What is left
    of the plain error in the worse half decides.

    X                  (tokens, in)  some inputs
    W                  (in, out)     all weights that read them, side by side
    largest_x          (in,)         max |X_j| over all inputs
    quantized_product  X, W, X seen -> what the quantized layer gives
    """
    halves = _halves(X)
    exact = [judged @ W for judged, _ in halves]
    largest_w = np.abs(W).max(1)

    def errors(alpha: float | None) -> NDArray[np.float64]:
        found = []
        for (judged, seen), product in zip(halves, exact, strict=True):
            s = np.ones(X.shape[1], X.dtype)
            if alpha is not None:
                factors = smoothing_factors(np.abs(seen).max(0), largest_w, alpha).factors
                s = factors.astype(X.dtype)
            made = quantized_product(judged / s, W * s[:, None], seen / s)
            found.append(float(((made - product) ** 2).sum()))
        return np.array(found)

    plain = errors(None)
    if not plain.all():
        return None
    tried = {alpha: errors(alpha) for alpha in alphas}
    best = min(tried, key=lambda alpha: float((tried[alpha] / plain).max()))
    if not (tried[best] < _WORTH * plain).all():
        return None
    chosen = smoothing_factors(largest_x, largest_w, best)
    return Smoothing(chosen.factors, chosen.kept, best, float(tried[best].sum()))


def _halves(X: Floats) -> list[tuple[Floats, Floats]]:
    """Return two pairs of rows to judge and rows seen; a single row is both."""
    if len(X) < 2:
        return [(X, X)]
    blocks = np.array_split(X, min(_BLOCKS, len(X)))
    one, other = np.concatenate(blocks[::2]), np.concatenate(blocks[1::2])
    return [(one, other), (other, one)]
