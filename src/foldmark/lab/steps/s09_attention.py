"""Step 9: an outlier planted in the keys of an attention, under one scale and under one a row."""

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from foldmark.exact.attention import attention as exact_attention
from foldmark.exact.catalog import FLOAT64
from foldmark.exact.rulers import relative_error
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
from foldmark.lab.steps.s04_ruler import CLOSE
from foldmark.lab.steps.s06_rows import (
    Matrix,
    quantize_per_row,
    quantize_per_tensor,
    transposed,
)
from foldmark.lab.steps.s08_softmax import plain_softmax, softmax

_REAL = Number("float", -1e4, 1e4)


def attention(query: list[float], keys: Matrix, values: Matrix) -> list[float]:
    """Return softmax(keys . query / sqrt(d)) times values."""
    return exact_attention([query], keys, values, FLOAT64)[0]


def key_errors(query: list[float], keys: Matrix, values: Matrix) -> tuple[float, float]:
    """Return the relative error of the output with keys folded per tensor, and per row."""
    right = attention(query, keys, values)
    return (
        relative_error(right, attention(query, unfold_tensor(keys), values)),
        relative_error(right, attention(query, unfold_rows(keys), values)),
    )


def unfold_tensor(matrix: Matrix) -> Matrix:
    """Fold a matrix with one scale and unfold it."""
    codes, scale = quantize_per_tensor(matrix)
    return [rules.unfold(row, scale) for row in codes]


def unfold_rows(matrix: Matrix) -> Matrix:
    """Fold a matrix with one scale a row and unfold it."""
    codes, scales = quantize_per_row(matrix)
    return [rules.unfold(row, scale) for row, scale in zip(codes, scales, strict=True)]


def unfold_columns(matrix: Matrix) -> Matrix:
    """Fold a matrix with one scale a column and unfold it."""
    return transposed(unfold_rows(transposed(matrix)))


def scenes(random: Random) -> Iterator[Arguments]:
    """Draw (query, keys, values), most with one large number planted in the keys."""
    yield ([1.0], [[1.0]], [[2.0]])
    yield ([0.0, 0.0], [[0.0, 0.0], [1.0, 0.0]], [[1.0], [3.0]])
    yield ([30.0, 40.0], [[30.0, 40.0], [31.0, 40.0]], [[1.0, 0.0], [0.0, 1.0]])
    for _ in range(14):
        tokens, width, out = random.randint(2, 5), random.randint(2, 4), random.randint(1, 3)
        keys = [gaussian(random, width) for _ in range(tokens)]
        planted = random.choice((-1, 1)) * random.uniform(10, 60)
        keys[random.randrange(tokens)][random.randrange(width)] = round(planted, 3)
        values = [[x + 1.5 for x in gaussian(random, out)] for _ in range(tokens)]
        yield (gaussian(random, width), keys, values)


def whole(query: list[float], keys: Matrix, values: Matrix) -> bool:
    """Say whether the shapes still hold at least one token and one channel each."""
    return bool(query and keys and values and values[0])


def _mixed(query: list[float], keys: Matrix, values: Matrix, root: float = -1.0) -> list[float]:
    divisor = math.sqrt(len(query)) if root < 0 else root
    scores = [sum(q * k for q, k in zip(query, key, strict=True)) / divisor for key in keys]
    return _weighted(softmax(scores), values)


def _weighted(weights: list[float], values: Matrix) -> list[float]:
    columns = transposed(values)
    return [sum(p * v for p, v in zip(weights, column, strict=True)) for column in columns]


def _unscaled(query: list[float], keys: Matrix, values: Matrix) -> list[float]:
    return _mixed(query, keys, values, 1.0)


def _scaled_by_width(query: list[float], keys: Matrix, values: Matrix) -> list[float]:
    return _mixed(query, keys, values, float(len(query)))


def _scaled_by_tokens(query: list[float], keys: Matrix, values: Matrix) -> list[float]:
    return _mixed(query, keys, values, math.sqrt(len(keys)))


def _without_maximum(query: list[float], keys: Matrix, values: Matrix) -> list[float]:
    root = math.sqrt(len(query))
    scores = [sum(q * k for q, k in zip(query, key, strict=True)) / root for key in keys]
    return _weighted(plain_softmax(scores), values)


def _without_softmax(query: list[float], keys: Matrix, values: Matrix) -> list[float]:
    root = math.sqrt(len(query))
    scores = [sum(q * k for q, k in zip(query, key, strict=True)) / root for key in keys]
    return _weighted(scores, values)


def _errors_by(
    first: Callable[[Matrix], Matrix], second: Callable[[Matrix], Matrix]
) -> Callable[..., Any]:
    def errors(query: list[float], keys: Matrix, values: Matrix) -> tuple[float, float]:
        right = attention(query, keys, values)
        return (
            relative_error(right, attention(query, first(keys), values)),
            relative_error(right, attention(query, second(keys), values)),
        )

    return errors


def _values_folded_too(query: list[float], keys: Matrix, values: Matrix) -> tuple[float, float]:
    right = attention(query, keys, values)
    return (
        relative_error(right, attention(query, unfold_tensor(keys), unfold_tensor(values))),
        relative_error(right, attention(query, unfold_rows(keys), unfold_rows(values))),
    )


def _key_error(_: list[float], keys: Matrix, __: Matrix) -> tuple[float, float]:
    flat = [x for row in keys for x in row]
    one = [x for row in unfold_tensor(keys) for x in row]
    own = [x for row in unfold_rows(keys) for x in row]
    return relative_error(flat, one), relative_error(flat, own)


def _attention_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    query, keys, _values = arguments
    root = math.sqrt(len(query))
    scores = [sum(q * k for q, k in zip(query, key, strict=True)) / root for key in keys]
    fields = {"width": len(query), "scores": scores, "probabilities": softmax(scores)}
    return (Sentence("attention", fields),)


def _errors_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    query, keys, values = arguments
    fields = {
        "right": attention(query, keys, values),
        "one_keys": unfold_tensor(keys),
        "one": attention(query, unfold_tensor(keys), values),
        "own_keys": unfold_rows(keys),
        "own": attention(query, unfold_rows(keys), values),
    }
    return (Sentence("key_errors", fields),)


QUERY_KEYS_VALUES = (
    Parameter("query", _REAL, ("width",)),
    Parameter("keys", _REAL, ("tokens", "width")),
    Parameter("values", _REAL, ("tokens", "out")),
)

STEP = Step(
    9,
    "attention",
    (
        Function(
            attention,
            QUERY_KEYS_VALUES,
            "list[float]",
            scenes,
            tolerance=CLOSE,
            mistakes=(
                Mistake("root_forgotten", _unscaled),
                Mistake("width_for_root", _scaled_by_width),
                Mistake("root_of_tokens", _scaled_by_tokens),
                Mistake("softmax_without_maximum", _without_maximum),
                Mistake("softmax_forgotten", _without_softmax),
            ),
            work=_attention_work,
            valid=whole,
        ),
        Function(
            key_errors,
            QUERY_KEYS_VALUES,
            "tuple[float, float]",
            scenes,
            tolerance=CLOSE,
            mistakes=(
                Mistake("column_for_row", _errors_by(unfold_tensor, unfold_columns)),
                Mistake("swapped", _errors_by(unfold_rows, unfold_tensor)),
                Mistake("values_folded_too", _values_folded_too),
                Mistake("error_of_keys", _key_error),
            ),
            work=_errors_work,
            valid=whole,
        ),
    ),
)
