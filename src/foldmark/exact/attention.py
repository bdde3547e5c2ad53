"""Softmax and scaled dot-product attention, in floats and with quantized scores.

The exponential is Python's own (float64), rounded to the precision; every other operation is
rounded once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isinf, tanh

from foldmark.errors import DataMismatch
from foldmark.exact.affine import fake_quantize
from foldmark.exact.arithmetic import add, divide, multiply, square_root, subtract
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.number import FloatFormat
from foldmark.exact.rule import AffineRule
from foldmark.exact.rulers import largest_error

__all__ = [
    "SoftmaxError",
    "attention",
    "attention_scores",
    "largest_probability_change",
    "softmax",
    "softmax_error",
    "softmax_of_codes",
]

Matrix = Sequence[Sequence[float]]


def softmax(scores: Sequence[float], precision: FloatFormat = FLOAT32) -> list[float]:
    """Return p_i = exp(s_i - max s) / sum_j exp(s_j - max s).

    A score of minus infinity (a mask) gets probability 0. Raises DataMismatch when every score is
    masked: 0 / 0 has no meaning.
    """
    top = max(scores)
    if isinf(top):
        raise DataMismatch("softmax has no answer", got=f"a largest score of {top}")
    powers = [precision.round(exp(subtract(score, top, precision))) for score in scores]
    total = 0.0
    for power in powers:
        total = add(total, power, precision)
    return [divide(power, total, precision) for power in powers]


def attention_scores(
    queries: Matrix, keys: Matrix, precision: FloatFormat = FLOAT32
) -> list[list[float]]:
    """Return q . k / sqrt(d) for every query and key.

    queries  (n, d)
    keys     (m, d)
    ->       (n, m)

    Raises DataMismatch when the two widths differ.
    """
    width = len(queries[0])
    if any(len(vector) != width for vector in (*queries, *keys)):
        raise DataMismatch("queries and keys of different widths")
    root = square_root(float(width), precision)
    return [[divide(_dot(q, k, precision), root, precision) for k in keys] for q in queries]


def attention(
    queries: Matrix, keys: Matrix, values: Matrix, precision: FloatFormat = FLOAT32
) -> list[list[float]]:
    """Return softmax(q k^T / sqrt(d)) v.

    queries  (n, d)
    keys     (m, d)
    values   (m, e)
    ->       (n, e)
    """
    columns = list(zip(*values, strict=True))
    rows = (softmax(scores, precision) for scores in attention_scores(queries, keys, precision))
    return [[_dot(row, column, precision) for column in columns] for row in rows]


def softmax_of_codes(
    scores: Sequence[float],
    scale: float,
    zero_point: float,
    rule: AffineRule,
    precision: FloatFormat = FLOAT32,
) -> list[float]:
    """Return the softmax of scores that were quantized and dequantized on the way."""
    return softmax(fake_quantize(scores, scale, zero_point, rule, precision), precision)


@dataclass(frozen=True, slots=True)
class SoftmaxError:
    """What an error of scores becomes behind a softmax.

    scores_in          largest error of a score
    probabilities_out  largest error of a probability
    bound              the largest that any scores with such an error could have had
    """

    scores_in: float
    probabilities_out: float
    bound: float


def softmax_error(
    scores: Sequence[float], changed: Sequence[float], precision: FloatFormat = FLOAT32
) -> SoftmaxError:
    """Return the error of probabilities that changed scores cause, beside its bound."""
    scores_in = largest_error(scores, changed)
    probabilities_out = largest_error(softmax(scores, precision), softmax(changed, precision))
    return SoftmaxError(scores_in, probabilities_out, largest_probability_change(scores_in))


def largest_probability_change(score_error: float) -> float:
    """Return the most that one probability can move when no score moves by more than `d`.

    The worst case is one score against the rest, one pushed up and the others down: the log odds
    move by 2 d, most steeply around even odds: sigmoid(d) - sigmoid(-d) = tanh(d / 2).
    """
    return tanh(score_error / 2)


def _dot(a: Sequence[float], b: Sequence[float], precision: FloatFormat) -> float:
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total = add(total, multiply(x, y, precision), precision)
    return total
