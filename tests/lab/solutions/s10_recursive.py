"""Recursion and pattern matching."""

import math


def integer_dot(a, b):
    match a, b:
        case [], []:
            return 0
        case [x, *rest], [y, *others]:
            return x * y + integer_dot(rest, others)


def largest_error(values, restored):
    match values, restored:
        case [], _:
            return 0.0
        case [x, *rest], [y, *others]:
            return max(abs(x - y), largest_error(rest, others))


def first_overflow(a, b, total=0, index=0):
    if not a:
        return -1
    total += a[0] * b[0]
    if not -2147483648 <= total <= 2147483647:
        return index
    return first_overflow(a[1:], b[1:], total, index + 1)


def quantize_blocks(values, block_size):
    if not values:
        return [], []
    block = values[:block_size]
    scale = max(abs(x) for x in block) / 7 or 1.0
    codes, scales = quantize_blocks(values[block_size:], block_size)
    return [max(-7, min(7, round(x / scale))) for x in block] + codes, [scale] + scales


def pack_nibbles(codes):
    match codes:
        case []:
            return []
        case [low]:
            return [low % 16]
        case [low, high, *rest]:
            return [low % 16 + high % 16 * 16] + pack_nibbles(rest)


def gptq_row(weights, inverse_hessian, scale):
    if not weights:
        return []
    (head, *row), *rest = inverse_hessian
    code = max(-7, min(7, round(weights[0] / scale)))
    error = (weights[0] - code * scale) / head
    moved = [w - error * p for w, p in zip(weights[1:], row)]
    smaller = [[x - one[0] * p / head for x, p in zip(one[1:], row)] for one in rest]
    return [code] + gptq_row(moved, smaller, scale)


def inverse(matrix):
    if len(matrix) == 1:
        return [[1 / matrix[0][0]]]
    (a, *b), *rest = matrix
    lower = [[x - row[0] * y / a for x, y in zip(row[1:], b)] for row in rest]
    corner = inverse(lower)
    step = [sum(x * y for x, y in zip(row, b)) / a for row in corner]
    top = 1 / a + sum(x * y for x, y in zip(b, step)) / a
    return [[top, *(-s for s in step)], *([-s, *row] for s, row in zip(step, corner))]


def softmax(scores):
    def shifted(largest):
        powers = [math.exp(s - largest) for s in scores]
        return [p / math.fsum(powers) for p in powers]

    return shifted(max(scores)) if scores else []
