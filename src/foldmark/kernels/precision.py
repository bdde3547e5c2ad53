"""Rounding float64 arrays to a narrower precision, exactly once."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foldmark.exact.catalog import FLOAT16, FLOAT32, FLOAT64
from foldmark.exact.number import FloatFormat
from foldmark.kernels.compiled import compiled, fused
from foldmark.kernels.floats import dtype_of

__all__ = ["Numbers", "made_odd", "multiply_add", "product", "rounded"]

Numbers = NDArray[np.float64]


def rounded(values: ArrayLike, precision: FloatFormat) -> Numbers:
    """Return numbers rounded to a precision, to nearest with ties to even; held as float64."""
    values = np.asarray(values, np.float64)
    if precision == FLOAT64:
        return values
    with np.errstate(all="ignore"):
        if precision in (FLOAT32, FLOAT16):
            return values.astype(dtype_of(precision)).astype(np.float64)
        # Narrower formats are reached by way of float32.
        return to_odd_float32(values).astype(dtype_of(precision)).astype(np.float64)


def to_odd_float32(values: Numbers) -> NDArray[np.float32]:
    """Round to float32 so that a second rounding to fewer bits is as good as one.

    Whatever is not exact gets an odd last bit, which no midpoint of a narrower format has.
    """
    nearest = values.astype(np.float32)
    even = (nearest.view(np.uint32) & 1) == 0
    inexact = even & np.isfinite(nearest) & (nearest != values)
    toward = np.where(values > nearest, np.float32(np.inf), np.float32(-np.inf))
    return np.where(inexact, np.nextafter(nearest, toward), nearest)


def product(x: ArrayLike, y: ArrayLike, precision: FloatFormat) -> Numbers:
    """Return fl(x * y) for factors with more bits than `precision`, still rounded only once."""
    x, y = (a.astype(np.float64) for a in np.broadcast_arrays(x, y))
    with np.errstate(all="ignore"):
        nearest = x * y
    if precision == FLOAT64:
        return nearest
    lost = multiply_add(x, y, -nearest)
    return rounded(made_odd(nearest, lost), precision)


def made_odd(nearest: Numbers, lost: Numbers) -> Numbers:
    """Make the last bit odd where something was lost, so that rounding again does no harm."""
    even = (nearest.view(np.int64) & 1) == 0
    inexact = even & np.isfinite(nearest) & np.isfinite(lost) & (lost != 0)
    return np.where(inexact, np.nextafter(nearest, np.where(lost > 0, np.inf, -np.inf)), nearest)


def multiply_add(x: Numbers, y: Numbers, z: Numbers) -> Numbers:
    """Return x * y + z in float64, rounded once; three arrays of one shape."""
    out = np.empty(x.shape, np.float64)
    first, second, third = (np.ascontiguousarray(a).reshape(-1) for a in (x, y, z))
    _fused(first, second, third, out.reshape(-1))
    return out


@compiled
def _fused(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    z: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    for i in range(x.size):
        out[i] = fused(x[i], y[i], z[i])
