"""Codes found by looking for the nearest of all of them, not by rounding a quotient."""

import bisect
import math


def nearest_code(quotient, low, high):
    if quotient <= low:
        return low
    if quotient >= high:
        return high
    above = bisect.bisect_left(range(low, high + 1), quotient) + low
    below = above - 1
    if above - quotient == quotient - below:
        return above if above % 2 == 0 else below
    return above if above - quotient < quotient - below else below


def round_half_even(x):
    reach = int(abs(x)) + 2
    return (
        nearest_code(x, -reach, reach) if reach < 2**40 else int(x) if abs(x) > 2**53 else round(x)
    )


def quantize_symmetric(values, scale):
    return [nearest_code(x / scale, -127, 127) for x in values]


def quantize_affine(values, scale, zero_point):
    return [nearest_code(x / scale, -zero_point, 255 - zero_point) + zero_point for x in values]


def quantize_blocks(values, block_size):
    codes, scales, rest = [], [], list(values)
    while rest:
        block, rest = rest[:block_size], rest[block_size:]
        scales.append(max(abs(x) for x in block) / 7 or 1.0)
        codes.extend(nearest_code(x / scales[-1], -7, 7) for x in block)
    return codes, scales


def first_overflow(a, b):
    for index in range(len(a)):
        total = sum(x * y for x, y in zip(a[: index + 1], b[: index + 1]))
        if total != (total + 2**31) % 2**32 - 2**31:
            return index
    return -1


def fixed_multiplier(factor):
    shift = 0
    while factor * 2**shift < 2**30:
        shift += 1
    scaled = factor * 2**shift
    multiplier = int(scaled) + (scaled - int(scaled) >= 0.5)
    if multiplier == 2**31:
        return 2**30, shift - 1
    return multiplier, shift


def percentile_limit(values, percent):
    magnitudes = sorted({abs(x) for x in values})
    for candidate in magnitudes:
        if sum(abs(x) <= candidate for x in values) * 100 >= percent * len(values):
            return candidate
    return 0.0


def softmax(scores):
    logs = max(scores, default=0.0)
    total = logs + math.log(math.fsum(math.exp(s - logs) for s in scores)) if scores else 0.0
    return [math.exp(s - total) for s in scores]
