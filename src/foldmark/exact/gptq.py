"""GPTQ on one row of weights, in exact fractions: round one weight, let the others make up for it.

Letters as in the paper (Frantar et al. 2022, arXiv 2210.17323): w a row of weights, X the inputs,
H = X^T X the Hessian of the squared output error, and its inverse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from foldmark.errors import InvalidScheme
from foldmark.exact.arithmetic import divide
from foldmark.exact.catalog import FLOAT64
from foldmark.exact.number import IntegerFormat
from foldmark.exact.rounding import Rounding, round_to_int

__all__ = ["GptqRow", "gptq_row", "hessian", "inverse", "quadratic_error"]

Matrix = list[list[Fraction]]


@dataclass(frozen=True, slots=True)
class GptqRow:
    """The codes of one row, and each weight over the scale just before it was rounded."""

    codes: tuple[int, ...]
    quotients: tuple[Fraction, ...]


def hessian(inputs: Sequence[Sequence[float]], damping: Fraction) -> Matrix:
    """Return H = X^T X + damping * mean(diagonal) * I.

    inputs  (samples, in)
    ->      (in, in)
    """
    columns = [[Fraction(x) for x in column] for column in zip(*inputs, strict=True)]
    plain = [[_dot(one, other) for other in columns] for one in columns]
    size = len(columns)
    extra = damping * sum((plain[i][i] for i in range(size)), Fraction(0)) / max(size, 1)
    return [[plain[i][j] + (extra if i == j else 0) for j in range(size)] for i in range(size)]


def inverse(matrix: Sequence[Sequence[float | Fraction]]) -> Matrix:
    """Return the inverse of a square matrix. Raises InvalidScheme when it is singular."""
    size = len(matrix)
    work = [
        [*(Fraction(x) for x in row), *(Fraction(i == j) for j in range(size))]
        for i, row in enumerate(matrix)
    ]
    for column in range(size):
        pivot = next((i for i in range(column, size) if work[i][column]), None)
        if pivot is None:
            raise InvalidScheme("a singular matrix has no inverse", got=f"rank below {size}")
        work[column], work[pivot] = work[pivot], work[column]
        head = work[column][column]
        work[column] = [x / head for x in work[column]]
        for i in range(size):
            factor = work[i][column]
            if i != column and factor:
                work[i] = [x - factor * y for x, y in zip(work[i], work[column], strict=True)]
    return [row[size:] for row in work]


def gptq_row(
    weights: Sequence[float],
    inverse_hessian: Sequence[Sequence[float]],
    scale: float,
    codes: IntegerFormat,
) -> GptqRow:
    """Return the codes of one row, its weights taken in order.

    For each weight j, with P the inverse Hessian of those not yet rounded:
        code = clip(round(w_j / scale)), error = (w_j - code * scale) / P_jj
        w_k -= error * P_jk  for the later k, then row and column j leave P:
        P_ab -= P_aj * P_jb / P_jj
    The first quotient is a float64 division; nothing before it was rounded.
    """
    left = [Fraction(w) for w in weights]
    remaining = [[Fraction(x) for x in row] for row in inverse_hessian]
    found: list[int] = []
    quotients: list[Fraction] = []
    for j, weight in enumerate(left):
        first = Fraction(divide(float(weights[0]), scale, FLOAT64)) if j == 0 else None
        quotient = weight / Fraction(scale) if first is None else first
        code = codes.clip(round_to_int(quotient, Rounding.HALF_EVEN))
        error = (weight - code * Fraction(scale)) / remaining[j][j]
        for k in range(j + 1, len(left)):
            left[k] -= error * remaining[j][k]
        _leave(remaining, j)
        found.append(code)
        quotients.append(quotient)
    return GptqRow(tuple(found), tuple(quotients))


def quadratic_error(
    weights: Sequence[float], restored: Sequence[float], matrix: Sequence[Sequence[float]]
) -> Fraction:
    """Return e H e^T for e = weights - restored: the squared error of the output."""
    error = [Fraction(w) - Fraction(r) for w, r in zip(weights, restored, strict=True)]
    return _dot(error, [_dot(error, [Fraction(x) for x in row]) for row in matrix])


def _leave(matrix: Matrix, j: int) -> None:
    """Take row and column j out of an inverse: what remains is the inverse of what remains."""
    size = len(matrix)
    for a in range(j + 1, size):
        for b in range(j + 1, size):
            matrix[a][b] -= matrix[a][j] * matrix[j][b] / matrix[j][j]


def _dot(one: Sequence[Fraction], other: Sequence[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(one, other, strict=True)), Fraction(0))
