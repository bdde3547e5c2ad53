"""Python's own round, and one line wherever one line will do."""

import math
from itertools import accumulate


def round_half_even(x):
    return round(x)


def round_half_away(x):
    return int(math.copysign(-(-(2 * abs(x)) // 2) if (2 * abs(x)) % 2 == 1 else round(abs(x)), x))


def mean_shift(values):
    n = len(values) or 1
    return sum(-round(-x) if x % 1 != 0.5 else math.ceil(x) for x in values) / n - sum(values) / n


def symmetric_scale(values):
    return max((abs(x) for x in values), default=0) / 127 or 1.0


def quantize_symmetric(values, scale):
    return [sorted((-127, round(x / scale), 127))[1] for x in values]


def affine_parameters(values):
    low, *_, high = sorted([*values, 0.0, 0.0])
    scale = (high - low) / 255
    return (scale, sorted((0, round(-low / scale), 255))[1]) if scale else (1.0, 0)


def quantize_affine(values, scale, zero_point):
    return [min(max(round(x / scale) + zero_point, 0), 255) for x in values]


def codes_used(codes):
    return len(dict.fromkeys(codes))


def first_overflow(a, b):
    sums = accumulate(x * y for x, y in zip(a, b))
    return next((i for i, t in enumerate(sums) if not -(2**31) <= t < 2**31), -1)


def softmax(scores):
    return [
        1 / sum(math.exp(other - s) if other - s < 700 else math.inf for other in scores)
        for s in scores
    ]


def pack_nibbles(codes):
    padded = [*codes, *[0] * (len(codes) % 2)]
    return [a & 15 | (b & 15) << 4 for a, b in zip(padded[::2], padded[1::2])]


def best_limit(values, limits):
    return min(
        limits,
        key=lambda m: sum((x - y) ** 2 for x, y in zip(values, fold_and_unfold(values, m / 127))),
    )
