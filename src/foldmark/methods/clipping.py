"""MSE clipping: a smaller range for a weight's codes, where the rounding gained outweighs it."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["clipped_scales"]

Floats = NDArray[np.floating]
_CANDIDATES = np.linspace(1.0, 0.4, 49)


def clipped_scales(
    W: Floats, scale: Floats, lowest: int, highest: int, weight_of: Floats | None = None
) -> Floats:
    """Return per row the multiple of `scale` with the least squared error, symmetric codes.

    W          (rows, n)  values
    scale      (rows,)    from the rows' largest magnitudes
    weight_of  (n,)       importance of a column (mean squared input), 1 when None

        min over c in 0.4..1 of sum_j weight_j (clip(round(W_j / (c s))) c s - W_j)^2
    """
    importance = np.ones(W.shape[1]) if weight_of is None else np.asarray(weight_of, np.float64)
    best = np.array(scale, np.float64)
    least = np.full(len(W), np.inf)
    for shrink in _CANDIDATES:
        tried = (np.asarray(scale, np.float64) * shrink)[:, None]
        safe = np.where(tried == 0, 1, tried)
        codes = np.clip(np.rint(W / safe), lowest, highest)
        error = ((codes * tried - W) ** 2 * importance).sum(1)
        better = error < least
        least[better], best[better] = error[better], tried[better, 0]
    return best.astype(scale.dtype)
