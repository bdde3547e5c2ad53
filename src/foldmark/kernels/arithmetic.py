"""Array arithmetic in any float precision: each operation exact, then rounded once.

Numbers are held as float64 whatever their precision. An operation on two float32 or half
numbers, done in float64 and then rounded, gives what IEEE 754 asks of the narrow operation,
because 53 bits are at least 2 * 24 + 2; so these few lines serve every precision. They are meant
for scales and zero points, of which there are few; values go through the loops of `affine`.
"""

import numpy as np
from numpy.typing import ArrayLike

from foldmark.exact.catalog import FLOAT64
from foldmark.exact.number import FloatFormat
from foldmark.kernels.precision import Numbers, made_odd, multiply_add, rounded

__all__ = [
    "add",
    "divide",
    "fused_multiply_add",
    "multiply",
    "square_root",
    "subtract",
]


def add(x: ArrayLike, y: ArrayLike, precision: FloatFormat) -> Numbers:
    """Return fl(x + y)."""
    with np.errstate(all="ignore"):
        return rounded(np.add(x, y, dtype=np.float64), precision)


def subtract(x: ArrayLike, y: ArrayLike, precision: FloatFormat) -> Numbers:
    """Return fl(x - y)."""
    with np.errstate(all="ignore"):
        return rounded(np.subtract(x, y, dtype=np.float64), precision)


def multiply(x: ArrayLike, y: ArrayLike, precision: FloatFormat) -> Numbers:
    """Return fl(x * y)."""
    with np.errstate(all="ignore"):
        return rounded(np.multiply(x, y, dtype=np.float64), precision)


def divide(x: ArrayLike, y: ArrayLike, precision: FloatFormat) -> Numbers:
    """Return fl(x / y); a number over zero is infinite, zero over zero is NaN."""
    with np.errstate(all="ignore"):
        return rounded(np.divide(x, y, dtype=np.float64), precision)


def square_root(x: ArrayLike, precision: FloatFormat) -> Numbers:
    """Return fl(sqrt(x)); NaN below zero."""
    with np.errstate(all="ignore"):
        return rounded(np.sqrt(x, dtype=np.float64), precision)


def fused_multiply_add(x: ArrayLike, y: ArrayLike, z: ArrayLike, precision: FloatFormat) -> Numbers:
    """Return fl(x * y + z), rounded once and not twice."""
    x, y, z = (a.astype(np.float64) for a in np.broadcast_arrays(x, y, z))
    if precision == FLOAT64:
        return multiply_add(x, y, z)
    with np.errstate(all="ignore"):
        exact = x * y  # 2 * 24 bits fit in 53
        total = exact + z
        # What a sum loses is itself a float: Knuth, The Art of Computer Programming, volume 2,
        # section 4.2.2, theorem B.
        back = total - exact
        lost = (exact - (total - back)) + (z - back)
    return rounded(made_odd(total, lost), precision)
