"""The decimal module's named rounding modes."""

import math
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal, localcontext


def rounded(x, mode):
    with localcontext() as context:
        context.prec = 1200
        return int(Decimal(x).to_integral_value(rounding=mode))


def round_half_even(x):
    return rounded(x, ROUND_HALF_EVEN)


def round_half_away(x):
    return rounded(x, ROUND_HALF_UP)


def quantize_symmetric(values, scale):
    return [min(127, max(-127, rounded(x / scale, ROUND_HALF_EVEN))) for x in values]


def relative_error(values, restored):
    noise = math.fsum((x - y) * (x - y) for x, y in zip(values, restored))
    size = math.fsum(x * x for x in values)
    if noise == 0:
        return 0.0
    return math.sqrt(noise) / math.sqrt(size) if size > 0 else math.inf


def requantize(accumulator, multiplier, shift, zero_point):
    with localcontext() as context:
        context.prec = 200
        exact = Decimal(accumulator) * Decimal(multiplier) / Decimal(2) ** shift
        code = math.floor(exact + Decimal("0.5")) + zero_point
    return min(127, max(-128, code))


def smoothing_factors(activations, weights):
    widths = [max(map(abs, column)) for column in zip(*activations)]
    heights = [max(map(abs, row)) for row in weights]
    return [a**0.5 / w**0.5 if a * w else 1.0 for a, w in zip(widths, heights)]
