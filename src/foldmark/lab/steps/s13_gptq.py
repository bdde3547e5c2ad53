"""Step 13: GPTQ on a 4 x 4 matrix: round one weight, let the others make up for it."""

from collections.abc import Iterator
from fractions import Fraction
from random import Random

from foldmark.exact import gptq as exact
from foldmark.lab import rules
from foldmark.lab.draws import gaussian
from foldmark.lab.exercise import (
    Arguments,
    Function,
    Mistake,
    Number,
    Parameter,
    Place,
    Sentence,
    Step,
)
from foldmark.lab.steps.s06_rows import Matrix

_CLOSE = 1e-7
_REAL = Number("float", -1e4, 1e4)
_SCALE = Number("float", 1e-3, 1e3)
_DAMPING = Fraction(1, 100)
_NARROW = rules.NIBBLES.codes
# A quotient that is nearer than this to a half may round either way in float arithmetic.
_FROM_TIE = Fraction(1, 10**6)
_SMALLEST_PIVOT = Fraction(1, 1000)


def hessian(inputs: Matrix) -> Matrix:
    """Return H[i][j] = sum over samples of x[i] * x[j], + 1 % of the mean diagonal on it."""
    return [[float(x) for x in row] for row in exact.hessian(inputs, _DAMPING)]


def inverse(matrix: Matrix) -> Matrix:
    """Return the inverse of a symmetric positive definite matrix."""
    return [[float(x) for x in row] for row in exact.inverse(matrix)]


def gptq_row(weights: list[float], inverse_hessian: Matrix, scale: float) -> list[int]:
    """Return codes -7..7 of one row, each rounding error spread over the later weights."""
    return list(exact.gptq_row(weights, inverse_hessian, scale, _NARROW).codes)


def output_error(weights: list[float], restored: list[float], matrix: Matrix) -> float:
    """Return sum of e[i] * H[i][j] * e[j] with e = weights - restored."""
    return float(exact.quadratic_error(weights, restored, matrix))


def _samples(random: Random, size: int = 4) -> Matrix:
    """Draw samples whose channels go together, so that one weight can stand in for another."""
    shared = gaussian(random, size + 3)
    return [[round(s + 0.6 * random.gauss(0, 1), 3) for _ in range(size)] for s in shared]


def _inputs(random: Random) -> Iterator[Arguments]:
    yield ([[1.0]],)
    yield ([[1.0, 2.0], [0.5, -1.0]],)
    for size in (2, 3, 4, 4, 4, 4, 4, 4):
        yield (_samples(random, size),)


def _matrices(random: Random) -> Iterator[Arguments]:
    yield ([[4.0]],)
    yield ([[2.0, 1.0], [1.0, 2.0]],)
    for size in (2, 3, 4, 4, 4, 4, 4, 4):
        yield (hessian(_samples(random, size)),)


def _rows(random: Random) -> Iterator[Arguments]:
    yield ([0.3], [[1.0]], 0.1)
    yield ([2.5, 1.0], [[1.0, -0.5], [-0.5, 1.0]], 1.0)
    for size in (2, 3, 3, *[4] * 20):
        weights = gaussian(random, size)
        yield (weights, inverse(hessian(_samples(random, size))), random.choice((0.25, 0.3, 0.4)))


def _restorations(random: Random) -> Iterator[Arguments]:
    yield ([1.0], [0.5], [[4.0]])
    for size in (2, 3, *[4] * 8):
        weights = gaussian(random, size)
        restored = [round(w * 4) / 4 for w in weights]
        yield (weights, restored, hessian(_samples(random, size)))


def _positive(matrix: Matrix) -> bool:
    """Say whether the matrix is square, symmetric, and clearly positive definite."""
    size = len(matrix)
    if not size or any(len(row) != size for row in matrix):
        return False
    if any(matrix[i][j] != matrix[j][i] for i in range(size) for j in range(i)):
        return False
    left = [[Fraction(x) for x in row] for row in matrix]
    for j in range(size):
        if left[j][j] < _SMALLEST_PIVOT * Fraction(matrix[j][j] or 1):
            return False
        for a in range(j + 1, size):
            for b in range(j + 1, size):
                left[a][b] -= left[a][j] * left[j][b] / left[j][j]
    return all(matrix[j][j] > 0 for j in range(size))


def _row_fits(weights: list[float], inverse_hessian: Matrix, _: float) -> bool:
    return len(weights) == len(inverse_hessian) and _positive(inverse_hessian)


def _away_from_ties(weights: list[float], inverse_hessian: Matrix, scale: float) -> bool:
    row = exact.gptq_row(weights, inverse_hessian, scale, _NARROW)
    halves = [abs(quotient % 1 - Fraction(1, 2)) for quotient in row.quotients[1:]]
    return all(distance > _FROM_TIE for distance in halves)


def _nearest(weights: list[float], _: Matrix, scale: float) -> list[int]:
    return [_NARROW.clip(round(w / scale)) for w in weights]


def _gptq_with(
    weights: list[float],
    inverse_hessian: Matrix,
    scale: float,
    *,
    sign: float = 1.0,
    divide: bool = True,
    eliminate: bool = True,
) -> list[int]:
    """Run the algorithm in floats with one of its parts left out or turned round."""
    left = list(weights)
    rest = [list(row) for row in inverse_hessian]
    codes = []
    for j in range(len(left)):
        codes.append(_NARROW.clip(round(left[j] / scale)))
        error = sign * (left[j] - codes[j] * scale) / (rest[j][j] if divide else 1.0)
        for k in range(j + 1, len(left)):
            left[k] -= error * rest[j][k]
        if eliminate:
            for a in range(j + 1, len(left)):
                for b in range(j + 1, len(left)):
                    rest[a][b] -= rest[a][j] * rest[j][b] / rest[j][j]
    return codes


def _undamped(inputs: Matrix) -> Matrix:
    return [[float(x) for x in row] for row in exact.hessian(inputs, Fraction(0))]


def _mean_hessian(inputs: Matrix) -> Matrix:
    return [[x / len(inputs) for x in row] for row in hessian(inputs)]


def _of_samples(inputs: Matrix) -> Matrix:
    return hessian([list(column) for column in zip(*inputs, strict=True)])


def _one_over(matrix: Matrix) -> Matrix:
    return [[1.0 / x if x else 0.0 for x in row] for row in matrix]


def _diagonal_only(weights: list[float], restored: list[float], matrix: Matrix) -> float:
    errors = [w - r for w, r in zip(weights, restored, strict=True)]
    return sum(e * e * matrix[i][i] for i, e in enumerate(errors))


def _plain_squares(weights: list[float], restored: list[float], _: Matrix) -> float:
    return sum((w - r) ** 2 for w, r in zip(weights, restored, strict=True))


def _hessian_work(arguments: Arguments, place: Place) -> tuple[Sentence, ...]:
    inputs = arguments[0]
    if len(place) != 2:
        return ()
    i, j = place
    products = [row[i] * row[j] for row in inputs]
    diagonal = [sum(row[k] ** 2 for row in inputs) for k in range(len(inputs[0]))]
    lines = [Sentence("hessian", {"i": i, "j": j, "products": products, "total": sum(products)})]
    if i == j:
        extra = sum(diagonal) / len(diagonal) / 100
        lines.append(Sentence("damping", {"diagonal": diagonal, "extra": extra}))
    return tuple(lines)


def _row_work(arguments: Arguments, place: Place) -> tuple[Sentence, ...]:
    weights, inverse_hessian, scale = arguments
    row = exact.gptq_row(weights, inverse_hessian, scale, _NARROW)
    last = place[0] if place else len(weights) - 1
    return tuple(
        Sentence(
            "gptq",
            {"index": j, "quotient": float(row.quotients[j]), "code": row.codes[j]},
        )
        for j in range(last + 1)
    )


def _inverse_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    return (Sentence("inverse", {"result": inverse(arguments[0])}),)


def _output_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    weights, restored, _matrix = arguments
    errors = [w - r for w, r in zip(weights, restored, strict=True)]
    return (Sentence("output_error", {"errors": errors, "result": output_error(*arguments)}),)


_WEIGHTS = Parameter("weights", _REAL, ("n",))

STEP = Step(
    13,
    "gptq",
    (
        Function(
            hessian,
            (Parameter("inputs", _REAL, ("samples", "n")),),
            "list[list[float]]",
            _inputs,
            tolerance=_CLOSE,
            mistakes=(
                Mistake("damping_forgotten", _undamped),
                Mistake("mean_for_sum", _mean_hessian),
                Mistake("rows_for_columns", _of_samples),
            ),
            work=_hessian_work,
            valid=lambda inputs: bool(inputs) and bool(inputs[0]),
        ),
        Function(
            inverse,
            (Parameter("matrix", _REAL, ("n", "n")),),
            "list[list[float]]",
            _matrices,
            tolerance=_CLOSE,
            mistakes=(Mistake("one_over_each", _one_over),),
            work=_inverse_work,
            valid=_positive,
        ),
        Function(
            gptq_row,
            (
                _WEIGHTS,
                Parameter("inverse_hessian", _REAL, ("n", "n")),
                Parameter("scale", _SCALE),
            ),
            "list[int]",
            _rows,
            mistakes=(
                Mistake("nearest_only", _nearest),
                Mistake("update_sign", lambda w, p, s: _gptq_with(w, p, s, sign=-1.0)),
                Mistake("pivot_forgotten", lambda w, p, s: _gptq_with(w, p, s, divide=False)),
                Mistake("not_eliminated", lambda w, p, s: _gptq_with(w, p, s, eliminate=False)),
            ),
            work=_row_work,
            fair=_away_from_ties,
            valid=_row_fits,
        ),
        Function(
            output_error,
            (
                _WEIGHTS,
                Parameter("restored", _REAL, ("n",)),
                Parameter("matrix", _REAL, ("n", "n")),
            ),
            "float",
            _restorations,
            tolerance=_CLOSE,
            mistakes=(
                Mistake("diagonal_only", _diagonal_only),
                Mistake("hessian_forgotten", _plain_squares),
            ),
            work=_output_work,
        ),
    ),
)
