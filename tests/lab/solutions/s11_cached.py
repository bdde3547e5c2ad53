"""Helpers with a cache, type hints, prints for debugging, and enums on the way."""

import enum
import functools
import math
import statistics


class Tie(enum.Enum):
    EVEN = enum.auto()
    AWAY = enum.auto()


@functools.lru_cache(maxsize=None)
def nearest(x: float, tie: Tie) -> int:
    whole = math.trunc(x)
    rest = abs(x - whole)
    outward = whole + (1 if x > 0 else -1)
    if rest == 0.5:
        return outward if tie is Tie.AWAY or whole % 2 else whole
    return outward if rest > 0.5 else whole


def round_half_even(x: float) -> int:
    return nearest(x, Tie.EVEN)


def round_half_away(x: float) -> int:
    print("rounding", x)
    return nearest(x, Tie.AWAY)


def mean_error(values, restored):
    return statistics.fmean([abs(x - y) for x, y in zip(values, restored)] or [0.0])


def affine_parameters(values):
    low, high = functools.reduce(lambda r, x: (min(r[0], x), max(r[1], x)), values, (0.0, 0.0))
    if (scale := (high - low) / 255) > 0:
        return scale, nearest(-low / scale, Tie.EVEN)
    return 1.0, 0


def folded_dot(a, b):
    scale = symmetric_scale(b) * symmetric_scale(a)
    codes = [quantize_symmetric(v, symmetric_scale(v)) for v in (a, b)]
    return scale * sum(x * y for x, y in zip(*codes))


def attention(query, keys, values):
    d = len(query)
    scores = [
        math.sumprod(query, key)
        if hasattr(math, "sumprod")
        else sum(q * k for q, k in zip(query, key))
        for key in keys
    ]
    weights = softmax([s / math.sqrt(d) for s in scores])
    output = [0.0] * len(values[0])
    for weight, row in zip(weights, values):
        for j, v in enumerate(row):
            output[j] += weight * v
    return output


def straight_through(x, scale, upstream):
    return upstream if -127 <= nearest(x / scale, Tie.EVEN) <= 127 else 0
