"""Softmax and scaled dot-product attention on arrays, every step rounded as the oracle rounds it.

Sums run in order along their axis, all rows at once; the exponential is Python's own.
"""

from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import DataMismatch
from foldmark.exact.attention import SoftmaxError, largest_probability_change
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.number import FloatFormat
from foldmark.exact.rule import AffineRule
from foldmark.kernels.affine import fake_quantize
from foldmark.kernels.arithmetic import add, divide, multiply, square_root, subtract
from foldmark.kernels.precision import Numbers, rounded

__all__ = ["attention", "attention_scores", "softmax", "softmax_error", "softmax_of_codes"]


def softmax(scores: NDArray[Any], precision: FloatFormat = FLOAT32) -> Numbers:
    """Return p_i = exp(s_i - max s) / sum_j exp(s_j - max s) along the last axis.

    scores  (..., m);  ->  (..., m)  numbers of the precision, held as float64

    A score of minus infinity (a mask) gets probability 0. Raises DataMismatch when every score of
    a row is masked. Exact twin: foldmark.exact.attention.softmax.
    """
    top = scores.max(-1, keepdims=True).astype(np.float64)
    masked = np.flatnonzero(np.isinf(top))
    if masked.size:
        row = int(masked[0])
        place = [int(i) for i in np.unravel_index(row, top.shape)][:-1]
        got = f"a largest score of {float(top.reshape(-1)[row])}"
        raise DataMismatch("softmax has no answer", where=f"row {place}", got=got)
    moved = subtract(scores, top, precision)
    exponentials = np.fromiter(map(exp, moved.flat), np.float64, moved.size).reshape(moved.shape)
    powers: Numbers = rounded(exponentials, precision)
    total = np.zeros(powers.shape[:-1])
    for i in range(powers.shape[-1]):
        total = add(total, powers[..., i], precision)
    return divide(powers, total[..., None], precision)


def attention_scores(
    queries: NDArray[Any], keys: NDArray[Any], precision: FloatFormat = FLOAT32
) -> Numbers:
    """Return q . k / sqrt(d) for every query and key.

    queries  (..., n, d)
    keys     (..., m, d)
    ->       (..., n, m)  numbers of the precision, held as float64

    Raises DataMismatch when the two widths differ.
    Exact twin: foldmark.exact.attention.attention_scores.
    """
    width = queries.shape[-1]
    if keys.shape[-1] != width:
        raise DataMismatch(
            "queries and keys of different widths", got=f"{width} and {keys.shape[-1]}"
        )
    root = square_root(float(width), precision)
    return divide(_product(queries, keys, precision), root, precision)


def attention(
    queries: NDArray[Any],
    keys: NDArray[Any],
    values: NDArray[Any],
    precision: FloatFormat = FLOAT32,
) -> Numbers:
    """Return softmax(q k^T / sqrt(d)) v.

    queries  (..., n, d)
    keys     (..., m, d)
    values   (..., m, e)
    ->       (..., n, e)  numbers of the precision, held as float64

    Exact twin: foldmark.exact.attention.attention.
    """
    rows = softmax(attention_scores(queries, keys, precision), precision)
    return _product(rows, np.swapaxes(values, -1, -2), precision)


def softmax_of_codes(
    scores: NDArray[Any],
    scale: float,
    zero_point: float,
    rule: AffineRule,
    precision: FloatFormat = FLOAT32,
) -> Numbers:
    """Return the softmax of scores that were quantized and dequantized on the way.

    Exact twin: foldmark.exact.attention.softmax_of_codes.
    """
    return softmax(fake_quantize(scores, scale, zero_point, rule), precision)


def softmax_error(
    scores: NDArray[Any], changed: NDArray[Any], precision: FloatFormat = FLOAT32
) -> SoftmaxError:
    """Return the largest error of probabilities that changed scores cause, beside its bound.

    Exact twin: foldmark.exact.attention.softmax_error.
    """
    scores_in = _farthest(scores, changed)
    probabilities_out = _farthest(softmax(scores, precision), softmax(changed, precision))
    return SoftmaxError(scores_in, probabilities_out, largest_probability_change(scores_in))


def _farthest(one: NDArray[Any], other: NDArray[Any]) -> float:
    return float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max(initial=0.0))


def _product(left: NDArray[Any], right: NDArray[Any], precision: FloatFormat) -> Numbers:
    """Return sum_i left[..., n, i] * right[..., m, i], added up in order."""
    shape = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    total = np.zeros((*shape, left.shape[-2], right.shape[-2]))
    for i in range(left.shape[-1]):
        terms = multiply(left[..., :, None, i], right[..., None, :, i], precision)
        total = add(total, terms, precision)
    return total
