"""Bias correction: what quantizing a weight adds to the mean of a layer's output, taken away.

Nagel et al. 2019, "Data-Free Quantization through Weight Equalization and Bias Correction"
(arXiv 1906.04721): E[y_q] - E[y] = (W_q - W) E[x].
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["mean_shift"]

Floats = NDArray[np.floating]


def mean_shift(W: Floats, W_q: Floats, mean_x: Floats) -> NDArray[np.float64]:
    """Return (W_q - W) E[x], to be subtracted from the bias.

    W, W_q  (out, in) or (out, in, *window)  a window counts with the sum over its positions,
            which is exact where the window reads no padding
    mean_x  (in,), or (out, in) where each output reads channels of its own (grouped)
    ->      (out,)
    """
    gap = (np.asarray(W_q, np.float64) - W).reshape(*W.shape[:2], -1).sum(-1)
    return np.asarray((gap * np.asarray(mean_x, np.float64)).sum(-1))
