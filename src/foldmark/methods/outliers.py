"""LLM.int8(): the few columns that hold very large activations stay in float, the rest is int8.

Dettmers et al. 2022, "LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale"
(arXiv 2208.07339):

    X W ~ X_O W_O  +  s_x s_w (codes(X_R) codes(W_R)),    O = {j: some |X_ij| >= threshold}

with one scale per row of X_R, s_x = max_j |X_ij| / 127, and one per column of W_R.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["THRESHOLD", "outlier_columns", "row_codes", "split_product"]

Floats = NDArray[np.floating]
THRESHOLD = 6.0
"""The paper's."""


def outlier_columns(largest: Floats, threshold: float = THRESHOLD) -> NDArray[np.int64]:
    """Return the columns j with largest_j >= threshold, largest_j = max_i |X_ij|. (in,) -> (n,)"""
    return np.flatnonzero(np.asarray(largest) >= threshold)


def row_codes(X: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return int8 codes and the scale of every row, (rows, in) -> (rows, in), (rows, 1).

    codes = round(X (127 / max|X_i|)), halves to even; a row of zeros has scale 0.
    """
    top = np.abs(X).max(1, keepdims=True)
    factor = np.float32(127) / np.maximum(top, np.finfo(np.float32).tiny)
    return np.rint(X * factor).astype(np.int8), top / np.float32(127)


def split_product(X: Floats, W: Floats, columns: NDArray[np.int64]) -> Floats:
    """Return X W as the paper computes it: the definition that the graph is checked against.

    X        (rows, in)  float32
    W        (in, out)   float32
    columns  kept in float
    """
    rest = np.setdiff1d(np.arange(X.shape[1]), columns)
    codes, scale = row_codes(X[:, rest])
    weight, step = row_codes(np.ascontiguousarray(W[rest].T))
    whole = codes.astype(np.int32) @ weight.T.astype(np.int32)
    return whole * scale * step.T + X[:, columns] @ W[columns]
