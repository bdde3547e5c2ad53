"""map, reduce and operators; hardly a loop."""

import math
from functools import partial, reduce
from itertools import chain, starmap
from operator import itemgetter, mul, sub


def clamp(low, high, code):
    return max(low, min(high, code))


def compose(*functions):
    return reduce(lambda f, g: lambda x: g(f(x)), functions)


def quantize_symmetric(values, scale):
    return list(map(compose(lambda x: x / scale, round, partial(clamp, -127, 127)), values))


def dequantize_symmetric(codes, scale):
    return list(map(partial(mul, scale), codes))


def largest_error(values, restored):
    return reduce(max, map(abs, starmap(sub, zip(values, restored))), 0.0)


def relative_error(values, restored):
    noise = math.hypot(*starmap(sub, zip(values, restored)))
    return noise / math.hypot(*values) if noise and any(values) else (math.inf if noise else 0.0)


def integer_dot(a, b):
    return reduce(lambda total, pair: total + mul(*pair), zip(a, b), 0)


def quantize_per_tensor(matrix):
    scale = symmetric_scale(list(chain.from_iterable(matrix)))
    return tuple(map(partial(quantize_symmetric, scale=scale), matrix)), scale


def softmax(scores):
    powers = list(map(compose(lambda s: s - max(scores), math.exp), scores))
    return list(map(lambda p: p / math.fsum(powers), powers))


def attention(query, keys, values):
    dots = [sum(map(mul, query, key)) / len(query) ** 0.5 for key in keys]
    return [math.fsum(map(mul, softmax(dots), column)) for column in zip(*values)]


def percentile_limit(values, percent):
    rank = -(-percent * len(values) // 100)
    return (sorted(map(abs, values)) or [0.0])[max(rank - 1, 0)]


def output_error(weights, restored, matrix):
    e = list(map(sub, weights, restored))
    return sum(map(mul, e, map(lambda row: sum(map(mul, row, e)), matrix)))


def clipped_share(calibration, values):
    limit = max(map(abs, calibration), default=0)
    return sum(map(lambda x: abs(x) > limit, values)) / (len(values) or 1)


def smallest_row_errors(matrix):
    widths = [(max(map(abs, row)), i) for i, row in enumerate(matrix) if any(row)]
    if not widths:
        return 0.0, 0.0
    row = itemgetter(min(widths)[1])(matrix)
    _, scale = quantize_per_tensor(matrix)
    return tuple(
        relative_error(row, fold_and_unfold(row, s)) for s in (scale, symmetric_scale(row))
    )
