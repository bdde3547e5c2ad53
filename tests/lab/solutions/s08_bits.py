"""Integers all the way: floats taken apart into numerator and power of two."""

import struct


def parts(x):
    numerator, denominator = x.as_integer_ratio()
    return numerator, denominator


def round_half_even(x):
    n, d = parts(x)
    q, r = divmod(n, d)
    if 2 * r > d or (2 * r == d and q & 1):
        q += 1
    return q


def round_half_away(x):
    n, d = parts(abs(x))
    q = (2 * n + d) // (2 * d)
    return -q if struct.pack(">d", x)[0] & 0x80 else q


def mean_shift(values):
    total = 0.0
    for x in values:
        n, d = parts(x)
        total += (2 * n + d) // (2 * d) - x
    return total / len(values) if values else 0.0


def first_overflow(a, b):
    total = 0
    for index, (x, y) in enumerate(zip(a, b)):
        total += x * y
        if (total if total >= 0 else ~total).bit_length() > 31:
            return index
    return -1


def pack_nibbles(codes):
    packed = bytearray((len(codes) + 1) // 2)
    for index, code in enumerate(codes):
        packed[index // 2] |= (code & 0xF) << (4 * (index % 2))
    return list(packed)


def requantize(accumulator, multiplier, shift, zero_point):
    product = accumulator * multiplier
    code = (product >> shift) + ((product >> (shift - 1)) & 1)
    code += zero_point
    return 127 if code > 127 else -128 if code < -128 else code


def fixed_multiplier(factor):
    n, d = parts(factor)
    shift = 31
    while 2 * n < d:
        n, shift = 2 * n, shift + 1
    multiplier = (2 * (n << 31) + d) // (2 * d)
    return (multiplier >> 1, shift - 1) if multiplier >> 31 else (multiplier, shift)


def cache_bytes(tokens, channels, code_bits, scale_bits):
    bits = tokens * (2 * channels * code_bits + scale_bits) + channels * scale_bits
    whole, rest = divmod(bits, 8)
    return whole + bool(rest)
