"""The whole course, solved as its text suggests: plain loops, one function after the other."""

import math


def round_half_even(x):
    below = math.floor(x)
    rest = x - below
    if rest < 0.5:
        return below
    if rest > 0.5:
        return below + 1
    return below if below % 2 == 0 else below + 1


def round_half_away(x):
    below = math.floor(abs(x))
    if abs(x) - below >= 0.5:
        below += 1
    return below if x >= 0 else -below


def parting_points(values):
    return [x for x in values if round_half_even(x) != round_half_away(x)]


def mean_shift(values):
    if not values:
        return 0.0
    moved = 0.0
    for x in values:
        below = math.floor(x)
        moved += (below + 1 if x - below >= 0.5 else below) - x
    return moved / len(values)


def symmetric_scale(values):
    largest = 0.0
    for x in values:
        largest = max(largest, abs(x))
    scale = largest / 127
    return scale if scale > 0 else 1.0


def quantize_symmetric(values, scale):
    return [max(-127, min(127, round_half_even(x / scale))) for x in values]


def dequantize_symmetric(codes, scale):
    return [code * scale for code in codes]


def affine_parameters(values):
    low = min(values + [0.0])
    high = max(values + [0.0])
    scale = (high - low) / 255
    if scale == 0:
        return 1.0, 0
    return scale, max(0, min(255, round_half_even(-low / scale)))


def quantize_affine(values, scale, zero_point):
    return [max(0, min(255, round_half_even(x / scale) + zero_point)) for x in values]


def dequantize_affine(codes, scale, zero_point):
    return [(code - zero_point) * scale for code in codes]


def largest_error(values, restored):
    return max([abs(x - y) for x, y in zip(values, restored)], default=0.0)


def mean_error(values, restored):
    if not values:
        return 0.0
    return sum(abs(x - y) for x, y in zip(values, restored)) / len(values)


def relative_error(values, restored):
    noise = sum((x - y) ** 2 for x, y in zip(values, restored))
    size = sum(x**2 for x in values)
    if noise == 0:
        return 0.0
    return math.sqrt(noise / size) if size else math.inf


def error_in_steps(values):
    scale = symmetric_scale(values)
    return largest_error(values, fold_and_unfold(values, scale)) / scale


def fold_and_unfold(values, scale):
    return dequantize_symmetric(quantize_symmetric(values, scale), scale)


def codes_used(codes):
    return len(set(codes))


def codes_kept(values, outlier):
    scale = symmetric_scale(values + [outlier])
    return codes_used(quantize_symmetric(values, scale))


def quantize_per_tensor(matrix):
    scale = symmetric_scale([x for row in matrix for x in row])
    return [quantize_symmetric(row, scale) for row in matrix], scale


def quantize_per_row(matrix):
    scales = [symmetric_scale(row) for row in matrix]
    return [quantize_symmetric(row, scale) for row, scale in zip(matrix, scales)], scales


def smallest_row_errors(matrix):
    smallest = None
    for row in matrix:
        width = max([abs(x) for x in row], default=0.0)
        if width > 0 and (smallest is None or width < max(abs(x) for x in smallest)):
            smallest = row
    if smallest is None:
        return 0.0, 0.0
    one = symmetric_scale([x for row in matrix for x in row])
    own = symmetric_scale(smallest)
    return (
        relative_error(smallest, fold_and_unfold(smallest, one)),
        relative_error(smallest, fold_and_unfold(smallest, own)),
    )


def integer_dot(a, b):
    total = 0
    for x, y in zip(a, b):
        total += x * y
    return total


def folded_dot(a, b):
    scale_a, scale_b = symmetric_scale(a), symmetric_scale(b)
    total = integer_dot(quantize_symmetric(a, scale_a), quantize_symmetric(b, scale_b))
    return total * (scale_a * scale_b)


def first_overflow(a, b):
    total = 0
    for index, (x, y) in enumerate(zip(a, b)):
        total += x * y
        if total > 2147483647 or total < -2147483648:
            return index
    return -1


def softmax(scores):
    if not scores:
        return []
    largest = max(scores)
    powers = [math.exp(s - largest) for s in scores]
    total = sum(powers)
    return [p / total for p in powers]


def softmax_errors(scores):
    restored = fold_and_unfold(scores, symmetric_scale(scores))
    return relative_error(scores, restored), relative_error(softmax(scores), softmax(restored))


def attention(query, keys, values):
    root = math.sqrt(len(query))
    scores = [sum(q * k for q, k in zip(query, key)) / root for key in keys]
    weights = softmax(scores)
    return [sum(w * row[j] for w, row in zip(weights, values)) for j in range(len(values[0]))]


def key_errors(query, keys, values):
    right = attention(query, keys, values)
    one = symmetric_scale([x for row in keys for x in row])
    with_one = [fold_and_unfold(row, one) for row in keys]
    with_own = [fold_and_unfold(row, symmetric_scale(row)) for row in keys]
    return (
        relative_error(right, attention(query, with_one, values)),
        relative_error(right, attention(query, with_own, values)),
    )


def percentile_limit(values, percent):
    if not values:
        return 0.0
    rank = (percent * len(values) + 99) // 100
    return sorted(abs(x) for x in values)[rank - 1]


def clip_errors(values, limit):
    clipped = rounded = 0.0
    for x, y in zip(values, fold_and_unfold(values, limit / 127)):
        if abs(x) > limit:
            clipped += abs(x - y)
        else:
            rounded += abs(x - y)
    return clipped, rounded


def best_limit(values, limits):
    best = least = None
    for limit in limits:
        restored = fold_and_unfold(values, limit / 127)
        total = sum((x - y) ** 2 for x, y in zip(values, restored))
        if least is None or total < least:
            best, least = limit, total
    return best


def clipped_share(calibration, values):
    limit = max([abs(x) for x in calibration], default=0.0)
    if not values:
        return 0.0
    return len([x for x in values if abs(x) > limit]) / len(values)


def quantize_blocks(values, block_size):
    codes, scales = [], []
    for start in range(0, len(values), block_size):
        block = values[start : start + block_size]
        scale = max(abs(x) for x in block) / 7
        if scale == 0:
            scale = 1.0
        scales.append(scale)
        for x in block:
            codes.append(max(-7, min(7, round_half_even(x / scale))))
    return codes, scales


def pack_nibbles(codes):
    packed = []
    for index in range(0, len(codes), 2):
        low = codes[index] % 16
        high = codes[index + 1] % 16 if index + 1 < len(codes) else 0
        packed.append(high * 16 + low)
    return packed


def bits_per_value(count, block_size, code_bits, scale_bits):
    blocks = (count + block_size - 1) // block_size
    return (count * code_bits + blocks * scale_bits) / count


def fixed_multiplier(factor):
    mantissa, exponent = math.frexp(factor)
    multiplier = math.floor(mantissa * 2**31 + 0.5)
    shift = 31 - exponent
    if multiplier == 2**31:
        multiplier //= 2
        shift -= 1
    return multiplier, shift


def requantize(accumulator, multiplier, shift, zero_point):
    rounded = (accumulator * multiplier + 2 ** (shift - 1)) >> shift
    return max(-128, min(127, rounded + zero_point))


def hessian(inputs):
    size = len(inputs[0])
    h = [[sum(x[i] * x[j] for x in inputs) for j in range(size)] for i in range(size)]
    extra = 0.01 * sum(h[i][i] for i in range(size)) / size
    for i in range(size):
        h[i][i] += extra
    return h


def inverse(matrix):
    size = len(matrix)
    work = [list(row) + [float(i == j) for j in range(size)] for i, row in enumerate(matrix)]
    for column in range(size):
        head = work[column][column]
        work[column] = [x / head for x in work[column]]
        for i in range(size):
            if i != column:
                factor = work[i][column]
                work[i] = [x - factor * y for x, y in zip(work[i], work[column])]
    return [row[size:] for row in work]


def gptq_row(weights, inverse_hessian, scale):
    left = list(weights)
    rest = [list(row) for row in inverse_hessian]
    codes = []
    for j in range(len(left)):
        code = max(-7, min(7, round_half_even(left[j] / scale)))
        codes.append(code)
        error = (left[j] - code * scale) / rest[j][j]
        for k in range(j + 1, len(left)):
            left[k] -= error * rest[j][k]
        for a in range(j + 1, len(left)):
            for b in range(j + 1, len(left)):
                rest[a][b] -= rest[a][j] * rest[j][b] / rest[j][j]
    return codes


def output_error(weights, restored, matrix):
    e = [w - r for w, r in zip(weights, restored)]
    size = len(e)
    return sum(e[i] * matrix[i][j] * e[j] for i in range(size) for j in range(size))


def smoothing_factors(activations, weights):
    factors = []
    for j in range(len(weights)):
        wide = max(abs(row[j]) for row in activations)
        narrow = max(abs(w) for w in weights[j])
        factors.append(math.sqrt(wide / narrow) if wide and narrow else 1.0)
    return factors


def smooth(activations, weights, factors):
    thin = [[x / s for x, s in zip(row, factors)] for row in activations]
    wide = [[w * s for w in row] for row, s in zip(weights, factors)]
    return thin, wide


def product(activations, weights):
    found = []
    for row in activations:
        for k in range(len(weights[0])):
            found.append(sum(x * weights[j][k] for j, x in enumerate(row)))
    return found


def fold_matrix(matrix):
    codes, scale = quantize_per_tensor(matrix)
    return [dequantize_symmetric(row, scale) for row in codes]


def smoothed_errors(activations, weights):
    right = product(activations, weights)
    before = product(fold_matrix(activations), fold_matrix(weights))
    thin, wide = smooth(activations, weights, smoothing_factors(activations, weights))
    after = product(fold_matrix(thin), fold_matrix(wide))
    return relative_error(right, before), relative_error(right, after)


def transpose(matrix):
    return [[row[j] for row in matrix] for j in range(len(matrix[0]))]


def quantize_by_channel(keys):
    codes, scales = quantize_per_row(transpose(keys))
    return transpose(codes), scales


def cache_errors(query, keys, values):
    def by_token(matrix):
        return [fold_and_unfold(row, symmetric_scale(row)) for row in matrix]

    def by_channel(matrix):
        return transpose(by_token(transpose(matrix)))

    right = attention(query, keys, values)
    return (
        relative_error(right, attention(query, by_channel(keys), by_token(values))),
        relative_error(right, attention(query, by_token(keys), by_channel(values))),
    )


def cache_bytes(tokens, channels, code_bits, scale_bits):
    bits = 2 * tokens * channels * code_bits + (tokens + channels) * scale_bits
    return (bits + 7) // 8


def fake_quantize(x, scale):
    return quantize_symmetric([x], scale)[0] * scale


def straight_through(x, scale, upstream):
    return upstream if -127 <= round_half_even(x / scale) <= 127 else 0.0


def train_neuron(weights, inputs, target, scale, rate):
    y = sum(fake_quantize(w, scale) * x for w, x in zip(weights, inputs))
    slope = 2 * (y - target)
    trained = []
    for w, x in zip(weights, inputs):
        trained.append(w - rate * straight_through(w, scale, slope * x))
    return trained
