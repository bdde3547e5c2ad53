"""Machine arithmetic without a machine: each operation exact, then rounded once to a format.

Numbers are Python floats that belong to the format; the result is the one that IEEE 754 asks
for (nearest, ties to even), signed zeros, infinities and NaN included.
"""

from fractions import Fraction
from math import copysign, inf, isinf, isnan, isqrt, nan

from foldmark.exact.number import FloatFormat

__all__ = ["add", "divide", "fused_multiply_add", "multiply", "square_root", "subtract"]


def add(x: float, y: float, precision: FloatFormat) -> float:
    """Return fl(x + y)."""
    if isnan(x) or isnan(y) or isinf(x) or isinf(y) or x == 0 == y:
        return x + y  # no rounding happens here, so Python's own addition is the definition
    return precision.round(Fraction(x) + Fraction(y))


def subtract(x: float, y: float, precision: FloatFormat) -> float:
    """Return fl(x - y)."""
    return add(x, -y, precision)


def multiply(x: float, y: float, precision: FloatFormat) -> float:
    """Return fl(x * y)."""
    if isnan(x) or isnan(y) or isinf(x) or isinf(y) or x == 0 or y == 0:
        return x * y
    return _signed(precision.round(Fraction(x) * Fraction(y)), x, y)


def divide(x: float, y: float, precision: FloatFormat) -> float:
    """Return fl(x / y); a number over zero is infinite, zero over zero is NaN."""
    if isnan(x) or isnan(y) or (isinf(x) and isinf(y)) or (x == 0 and y == 0):
        return nan
    sign = copysign(1.0, x) * copysign(1.0, y)
    if y == 0 or isinf(x):
        return sign * inf
    if x == 0 or isinf(y):
        return sign * 0.0
    return _signed(precision.round(Fraction(x) / Fraction(y)), x, y)


def fused_multiply_add(x: float, y: float, z: float, precision: FloatFormat) -> float:
    """Return fl(x * y + z), rounded once and not twice."""
    if any(isnan(v) or isinf(v) for v in (x, y, z)) or x == 0 or y == 0:
        return add(multiply(x, y, precision), z, precision)
    return precision.round(Fraction(x) * Fraction(y) + Fraction(z))


def square_root(x: float, precision: FloatFormat) -> float:
    """Return fl(sqrt(x)); NaN below zero.

    With x = n / 4^k the root is isqrt(n) / 2^k, cut off; a sticky bit below it says that
    something was cut, which is all that rounding needs to know.
    """
    if isnan(x) or x < 0:
        return nan
    if x == 0 or isinf(x):
        return x
    exact = Fraction(x)
    places = precision.mantissa_bits + 4 + exact.denominator.bit_length()
    scaled = exact * (1 << 2 * places)
    root = isqrt(int(scaled))
    sticky = Fraction(0 if root * root == scaled else 1, 2)
    return precision.round((root + sticky) / (1 << places))


def _signed(result: float, x: float, y: float) -> float:
    """Give a product or quotient that underflowed to zero the sign of its operands."""
    return copysign(result, copysign(1.0, x) * copysign(1.0, y))
