"""Step 15: a KV cache: keys by channel, values by token."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from foldmark.exact import storage
from foldmark.exact.rulers import relative_error
from foldmark.lab import rules
from foldmark.lab.draws import gaussian, matrices
from foldmark.lab.exercise import (
    REAL,
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
from foldmark.lab.steps.s06_rows import Codes, Matrix, by_column, quantize_per_row, transposed
from foldmark.lab.steps.s09_attention import (
    QUERY_KEYS_VALUES,
    attention,
    unfold_columns,
    unfold_rows,
    unfold_tensor,
    whole,
)
from foldmark.lab.steps.work import code_work, scale_work

_COUNT = Number("int", 1, 1 << 20)
_BITS = Number("int", 1, 32)


def quantize_by_channel(keys: Matrix) -> tuple[Codes, list[float]]:
    """Return the codes under one symmetric scale a column, and the columns' scales."""
    return by_column(keys)


def cache_errors(query: list[float], keys: Matrix, values: Matrix) -> tuple[float, float]:
    """Return the output's relative error: (keys by channel and values by token, the reverse)."""
    return _errors(query, keys, values, unfold_columns, unfold_rows), _errors(
        query, keys, values, unfold_rows, unfold_columns
    )


def cache_bytes(tokens: int, channels: int, code_bits: int, scale_bits: int) -> int:
    """Return the bytes of one head's keys (a scale a channel) and values (a scale a token)."""
    return storage.cache_bytes(tokens, channels, code_bits, scale_bits)


def _errors(
    query: list[float],
    keys: Matrix,
    values: Matrix,
    of_keys: Callable[[Matrix], Matrix],
    of_values: Callable[[Matrix], Matrix],
) -> float:
    right = attention(query, keys, values)
    return relative_error(right, attention(query, of_keys(keys), of_values(values)))


def _keys(random: Random) -> Iterator[Arguments]:
    for matrix in matrices(random):
        if matrix:
            yield (matrix,)
    for _ in range(4):
        yield (_loud_channel(random, random.randint(2, 5), random.randint(2, 4)),)


def _loud_channel(random: Random, tokens: int, channels: int) -> Matrix:
    """Draw keys with one channel that is large at every token."""
    loud = random.randrange(channels)
    return [
        [round(random.gauss(0, 1) + (40 if j == loud else 0), 4) for j in range(channels)]
        for _ in range(tokens)
    ]


def _scenes(random: Random) -> Iterator[Arguments]:
    yield ([1.0], [[1.0]], [[2.0]])
    for _ in range(16):
        tokens, channels, out = random.randint(2, 5), random.randint(2, 4), random.randint(1, 3)
        keys = _loud_channel(random, tokens, channels)
        values = [[x + 1.5 for x in gaussian(random, out)] for _ in range(tokens)]
        loud_token = random.randrange(tokens)
        values[loud_token] = [x * 8 for x in values[loud_token]]
        yield (gaussian(random, channels, 0.7), keys, values)


def _sizes(random: Random) -> Iterator[Arguments]:
    yield (1, 1, 1, 1)
    yield (1000, 128, 4, 16)
    yield (3, 5, 3, 16)
    for _ in range(12):
        yield (
            random.randint(1, 3000),
            random.choice((7, 64, 128)),
            random.randint(2, 8),
            random.choice((8, 16, 32)),
        )


def _both(
    of_keys: Callable[[Matrix], Matrix], of_values: Callable[[Matrix], Matrix]
) -> Callable[..., Any]:
    def errors(query: list[float], keys: Matrix, values: Matrix) -> tuple[float, float]:
        return cache_errors(query, keys, values)[0], _errors(
            query, keys, values, of_keys, of_values
        )

    return errors


def _scales_by_token(keys: Matrix) -> tuple[Codes, list[float]]:
    codes, scales = quantize_per_row(transposed(keys))
    return codes, scales


def _bits(tokens: int, channels: int, code_bits: int, scales: int) -> int:
    return 2 * tokens * channels * code_bits + scales


def _channel_work(arguments: Arguments, place: Place) -> tuple[Sentence, ...]:
    keys = arguments[0]
    if len(place) < 2:
        return ()
    index = place[1] if place[0] == 1 else (place[2] if len(place) > 2 else 0)
    column = [row[index] for row in keys]
    lines = (Sentence("channel", {"index": index, "column": column}), *scale_work(column, 127))
    if len(place) < 3:
        return lines
    _, scale = rules.fold(column)
    return (*lines, *code_work(keys[place[1]][index], scale, None, rules.NARROW))


def _errors_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    query, keys, values = arguments
    fields = {
        "right": attention(query, keys, values),
        "good": attention(query, unfold_columns(keys), unfold_rows(values)),
        "bad": attention(query, unfold_rows(keys), unfold_columns(values)),
    }
    return (Sentence("cache_errors", fields),)


def _bytes_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    tokens, channels, code_bits, scale_bits = arguments
    codes, scales = 2 * tokens * channels * code_bits, (channels + tokens) * scale_bits
    fields = {"codes": codes, "scales": scales, "bits": codes + scales}
    return (Sentence("cache_bytes", {**fields, "result": cache_bytes(*arguments)}),)


STEP = Step(
    15,
    "cache",
    (
        Function(
            quantize_by_channel,
            (Parameter("keys", REAL, ("tokens", "channels")),),
            "tuple[list[list[int]], list[float]]",
            _keys,
            mistakes=(
                Mistake("row_for_column", quantize_per_row),
                Mistake("codes_transposed", _scales_by_token),
            ),
            work=_channel_work,
            valid=lambda keys: bool(keys) and bool(keys[0]),
        ),
        Function(
            cache_errors,
            QUERY_KEYS_VALUES,
            "tuple[float, float]",
            _scenes,
            tolerance=CLOSE,
            mistakes=(
                Mistake(
                    "swapped",
                    lambda query, keys, values: cache_errors(query, keys, values)[::-1],
                ),
                Mistake("both_by_token", _both(unfold_rows, unfold_rows)),
                Mistake("both_by_channel", _both(unfold_columns, unfold_columns)),
                Mistake("tensor_for_row", _both(unfold_tensor, unfold_tensor)),
            ),
            work=_errors_work,
            valid=whole,
        ),
        Function(
            cache_bytes,
            (
                Parameter("tokens", _COUNT),
                Parameter("channels", _COUNT),
                Parameter("code_bits", _BITS),
                Parameter("scale_bits", _BITS),
            ),
            "int",
            _sizes,
            mistakes=(
                Mistake("scales_forgotten", lambda t, c, b, s: -(-_bits(t, c, b, 0) // 8)),
                Mistake("bytes_rounded_down", lambda t, c, b, s: _bits(t, c, b, (t + c) * s) // 8),
                Mistake("values_forgotten", lambda t, c, b, s: -(-(t * c * b + c * s) // 8)),
                Mistake("bits_for_bytes", lambda t, c, b, s: _bits(t, c, b, (t + c) * s)),
                Mistake(
                    "scale_per_token_twice", lambda t, c, b, s: -(-_bits(t, c, b, 2 * t * s) // 8)
                ),
            ),
            work=_bytes_work,
        ),
    ),
)
