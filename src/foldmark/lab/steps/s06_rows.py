"""Step 6: one scale for a matrix, or one for each of its rows."""

from collections.abc import Iterator
from random import Random

from foldmark.exact.rulers import relative_error
from foldmark.lab import rules
from foldmark.lab.draws import matrices
from foldmark.lab.exercise import (
    REAL,
    Arguments,
    Function,
    Mistake,
    Parameter,
    Place,
    Sentence,
    Step,
)
from foldmark.lab.steps.s04_ruler import CLOSE
from foldmark.lab.steps.work import code_work, scale_work

Matrix = list[list[float]]
Codes = list[list[int]]


def quantize_per_tensor(matrix: Matrix) -> tuple[Codes, float]:
    """Return the codes of all rows under one symmetric scale, and that scale."""
    scale = rules.choose([x for row in matrix for x in row], rules.SYMMETRIC)[0]
    return [rules.codes_of(row, scale, 0, rules.SYMMETRIC) for row in matrix], scale


def quantize_per_row(matrix: Matrix) -> tuple[Codes, list[float]]:
    """Return each row's codes under its own symmetric scale, and the scales."""
    folds = [rules.fold(row) for row in matrix]
    return [codes for codes, _ in folds], [scale for _, scale in folds]


def smallest_row_errors(matrix: Matrix) -> tuple[float, float]:
    """Return the smallest row's relative error under one scale, and under its own."""
    index = _smallest_row(matrix)
    if index is None:
        return 0.0, 0.0
    codes, scale = quantize_per_tensor(matrix)
    row = matrix[index]
    one_scale = relative_error(row, rules.unfold(codes[index], scale))
    return one_scale, relative_error(row, rules.folded(row))


def _smallest_row(matrix: Matrix) -> int | None:
    """Return the first of the rows with the smallest max|x|; rows of zeros don't count."""
    widths = [max(map(abs, row), default=0.0) for row in matrix]
    return min((i for i, w in enumerate(widths) if w > 0), key=widths.__getitem__, default=None)


def _matrices(random: Random) -> Iterator[Arguments]:
    for matrix in matrices(random):
        yield (matrix,)


def transposed(matrix: Matrix) -> Matrix:
    """Return the columns as rows."""
    return [list(column) for column in zip(*matrix, strict=True)]


def by_column(matrix: Matrix) -> tuple[Codes, list[float]]:
    """Return the codes under one symmetric scale a column, and the scales."""
    codes, scales = quantize_per_row(transposed(matrix))
    return [list(row) for row in zip(*codes, strict=True)] if codes else [
        [] for _ in matrix
    ], scales


def _scales_of_rows_from_tensor(matrix: Matrix) -> tuple[Codes, list[float]]:
    codes, scale = quantize_per_tensor(matrix)
    return codes, [scale] * len(matrix)


def _largest_row_errors(matrix: Matrix) -> tuple[float, float]:
    widths = [max(map(abs, row), default=0.0) for row in matrix]
    if not any(widths):
        return 0.0, 0.0
    row = matrix[widths.index(max(widths))]
    codes, scale = quantize_per_tensor(matrix)
    restored = rules.unfold(codes[widths.index(max(widths))], scale)
    return relative_error(row, restored), relative_error(row, rules.folded(row))


def _whole_errors(matrix: Matrix) -> tuple[float, float]:
    codes, scale = quantize_per_tensor(matrix)
    flat = [x for row in matrix for x in row]
    one = [y for row in codes for y in rules.unfold(row, scale)]
    own = [y for row in matrix for y in rules.folded(row)]
    return relative_error(flat, one), relative_error(flat, own)


def _tensor_work(arguments: Arguments, place: Place) -> tuple[Sentence, ...]:
    matrix = arguments[0]
    lines = scale_work([x for row in matrix for x in row], 127)
    if place[:1] == (0,) and len(place) == 3:
        _, scale = quantize_per_tensor(matrix)
        return (*lines, *code_work(matrix[place[1]][place[2]], scale, None, rules.NARROW))
    return lines


def _row_work(arguments: Arguments, place: Place) -> tuple[Sentence, ...]:
    matrix = arguments[0]
    if len(place) < 2:
        return ()
    row = matrix[place[1]]
    lines = (Sentence("row", {"index": place[1], "row": row}), *scale_work(row, 127))
    if place[0] == 0 and len(place) == 3:
        _, scale = rules.fold(row)
        return (*lines, *code_work(row[place[2]], scale, None, rules.NARROW))
    return lines


def _smallest_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    matrix = arguments[0]
    index = _smallest_row(matrix)
    if index is None:
        return (Sentence("no_row"),)
    codes, scale = quantize_per_tensor(matrix)
    one, own = smallest_row_errors(matrix)
    fields = {
        "index": index,
        "row": matrix[index],
        "one": rules.unfold(codes[index], scale),
        "own": rules.folded(matrix[index]),
        "one_error": one,
        "own_error": own,
    }
    return (Sentence("smallest_row", fields),)


_MATRIX = (Parameter("matrix", REAL, ("rows", "columns")),)

STEP = Step(
    6,
    "rows",
    (
        Function(
            quantize_per_tensor,
            _MATRIX,
            "tuple[list[list[int]], float]",
            _matrices,
            mistakes=(
                Mistake("row_for_tensor", quantize_per_row),
                Mistake(
                    "first_row_scale",
                    lambda matrix: (
                        [rules.codes_of(row, rules.fold(matrix[0])[1]) for row in matrix],
                        rules.fold(matrix[0])[1],
                    ),
                ),
            ),
            work=_tensor_work,
        ),
        Function(
            quantize_per_row,
            _MATRIX,
            "tuple[list[list[int]], list[float]]",
            _matrices,
            mistakes=(
                Mistake("column_for_row", by_column),
                Mistake("tensor_for_row", quantize_per_tensor),
                Mistake("tensor_for_row", _scales_of_rows_from_tensor),
            ),
            work=_row_work,
        ),
        Function(
            smallest_row_errors,
            _MATRIX,
            "tuple[float, float]",
            _matrices,
            tolerance=CLOSE,
            mistakes=(
                Mistake("largest_row", _largest_row_errors),
                Mistake("whole_matrix", _whole_errors),
                Mistake("swapped", lambda matrix: smallest_row_errors(matrix)[::-1]),
            ),
            work=_smallest_work,
        ),
    ),
)
