"""Generators and fsum; nothing is indexed."""

import math
from collections import Counter


def flat(matrix):
    for row in matrix:
        yield from row


def quantize_symmetric(values, scale):
    def codes():
        for x in values:
            code = round(x / scale)
            yield code if abs(code) <= 127 else math.copysign(1, code).__int__() * 127

    return list(codes())


def mean_error(values, restored):
    if errors := [abs(x - y) for x, y in zip(values, restored)]:
        return math.fsum(errors) / len(errors)
    return 0


def codes_used(codes):
    return len(Counter(codes))


def quantize_per_tensor(matrix):
    scale = symmetric_scale(list(flat(matrix)))
    return [[*quantize_symmetric(row, scale)] for row in matrix], scale


def quantize_by_channel(keys):
    columns = [list(column) for column in zip(*keys)]
    scales = [symmetric_scale(column) for column in columns]
    folded = [quantize_symmetric(column, scale) for column, scale in zip(columns, scales)]
    return [list(row) for row in zip(*folded)], scales


def product(activations, weights):
    return [
        math.fsum(x * w for x, w in zip(row, column))
        for row in activations
        for column in zip(*weights)
    ]


def hessian(inputs):
    columns = list(zip(*inputs))
    plain = [[math.fsum(x * y for x, y in zip(a, b)) for b in columns] for a in columns]
    extra = math.fsum(row[i] for i, row in enumerate(plain)) / len(columns) / 100
    return [[h + extra * (i == j) for j, h in enumerate(row)] for i, row in enumerate(plain)]


def clip_errors(values, limit):
    pairs = list(zip(values, fold_and_unfold(values, limit / 127)))
    beyond = (abs(x - y) for x, y in pairs if abs(x) > limit)
    within = (abs(x - y) for x, y in pairs if abs(x) <= limit)
    return math.fsum(beyond), math.fsum(within)


def train_neuron(weights, inputs, target, scale, rate):
    y = math.fsum(fake_quantize(w, scale) * x for w, x in zip(weights, inputs))
    return [
        w if abs(round(w / scale)) > 127 else w - rate * 2 * (y - target) * x
        for w, x in zip(weights, inputs)
    ]
