"""Exact fractions where floats would round; floats only where the task prescribes them."""

from fractions import Fraction
from math import exp, sqrt


def nearest(value, tie):
    value = Fraction(value)
    whole, rest = divmod(value.numerator, value.denominator)
    twice = 2 * rest - value.denominator
    if twice == 0:
        return tie(whole)
    return whole + (twice > 0)


def round_half_even(x):
    return nearest(x, lambda below: below + below % 2)


def round_half_away(x):
    return nearest(x, lambda below: below + 1 if x > 0 else below)


def mean_shift(values):
    if len(values) == 0:
        return 0.0
    moved = sum(nearest(x, lambda below: below + 1) - Fraction(x) for x in values)
    return float(moved / len(values))


def mean_error(values, restored):
    total = sum((abs(Fraction(x) - Fraction(y)) for x, y in zip(values, restored)), Fraction(0))
    return float(total / max(1, len(values)))


def relative_error(values, restored):
    noise = sum((Fraction(x) - Fraction(y)) ** 2 for x, y in zip(values, restored))
    if not noise:
        return 0.0
    size = sum(Fraction(x) ** 2 for x in values)
    return sqrt(noise / size) if size else float("inf")


def softmax(scores):
    if not scores:
        return []
    powers = [Fraction(exp(s - max(scores))) for s in scores]
    return [float(p / sum(powers)) for p in powers]


def requantize(accumulator, multiplier, shift, zero_point):
    code = nearest(Fraction(accumulator * multiplier, 2**shift), lambda below: below + 1)
    return min(127, max(-128, code + zero_point))


def fixed_multiplier(factor):
    exact, shift = Fraction(factor), 31
    while exact < Fraction(1, 2):
        exact, shift = exact * 2, shift + 1
    multiplier = nearest(exact * 2**31, lambda below: below + 1)
    return (multiplier, shift) if multiplier < 2**31 else (2**30, shift - 1)


def inverse(matrix):
    size = len(matrix)
    work = [
        [Fraction(x) for x in row] + [Fraction(i == j) for j in range(size)]
        for i, row in enumerate(matrix)
    ]
    for c in range(size):
        work[c] = [x / work[c][c] for x in work[c]]
        for i in range(size):
            if i != c:
                work[i] = [x - work[i][c] * y for x, y in zip(work[i], work[c])]
    return [[float(x) for x in row[size:]] for row in work]


def bits_per_value(count, block_size, code_bits, scale_bits):
    return float(code_bits + Fraction(-(-count // block_size) * scale_bits, count))
