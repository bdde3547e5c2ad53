"""What narrow floats do to arrays: numbers too large for them, epsilons and terms too small."""

from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.catalog import FLOAT16, FLOAT32
from foldmark.exact.number import FloatFormat
from foldmark.kernels.arithmetic import add, multiply
from foldmark.kernels.blocks import PIECE
from foldmark.kernels.floats import dtype_of
from foldmark.kernels.precision import Numbers, rounded

__all__ = [
    "block_sum",
    "epsilon_vanishes",
    "exact_sum",
    "lost_terms",
    "overflowing",
    "sequential_sum",
]


def overflowing(values: NDArray[Any], precision: FloatFormat = FLOAT16) -> NDArray[np.int64]:
    """Return the places, in C order, of finite values that become infinite (or NaN) in the format.

    Exact twin: foldmark.exact.hazards.overflowing.
    """
    flat, found = values.reshape(-1), [np.empty(0, np.int64)]
    for first in range(0, flat.size, PIECE):
        part = flat[first : first + PIECE]
        gone = np.isfinite(part) & ~np.isfinite(rounded(part, precision))
        found.append(np.flatnonzero(gone) + first)
    return np.concatenate(found)


def epsilon_vanishes(
    value: NDArray[Any], epsilon: float, precision: FloatFormat = FLOAT16
) -> NDArray[np.bool_]:
    """Say of every value whether value + epsilon is no different from it in the format.

    Exact twin: foldmark.exact.hazards.epsilon_vanishes.
    """
    kept = rounded(value, precision)
    found: NDArray[np.bool_] = add(kept, rounded(epsilon, precision), precision) == kept
    return found


def sequential_sum(values: NDArray[Any], precision: FloatFormat = FLOAT16) -> Numbers:
    """Return the sums along the last axis in order, each partial sum rounded to the format.

    Exact twin: foldmark.exact.hazards.sequential_sum.
    """
    return _partial_sums(values, precision)[..., -1]


def exact_sum(values: NDArray[Any]) -> float:
    """Return the exact sum of all values, rounded once to float64.

    Exact twin: foldmark.exact.hazards.exact_sum.
    """
    return fsum(values.reshape(-1).astype(np.float64))


def lost_terms(values: NDArray[Any], precision: FloatFormat = FLOAT16) -> NDArray[np.int64]:
    """Return the places of terms, not zero themselves, that leave a sum in order unchanged.

    values  (n,)

    Exact twin: foldmark.exact.hazards.lost_terms.
    """
    sums = _partial_sums(values, precision)
    return np.flatnonzero((values != 0) & (sums[1:] == sums[:-1]))


def block_sum(codes: NDArray[Any], scale: float, precision: FloatFormat = FLOAT16) -> Numbers:
    """Return scale * sum(codes) along the last axis, as a block stores it beside its scale.

    Exact twin: foldmark.exact.hazards.block_sum.
    """
    return rounded(multiply(scale, codes.sum(-1, dtype=np.int64), FLOAT32), precision)


def _partial_sums(values: NDArray[Any], precision: FloatFormat) -> Numbers:
    """Return 0 and the partial sums along the last axis: (..., n + 1)."""
    dtype = dtype_of(precision)
    terms = np.zeros((*values.shape[:-1], values.shape[-1] + 1), dtype)
    with np.errstate(all="ignore"):
        terms[..., 1:] = rounded(values, precision)
        return np.add.accumulate(terms, axis=-1, dtype=dtype).astype(np.float64)
