"""How alike two tensors are, whatever the layout of the second."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALIKE", "correlation", "distance", "fitted", "layouts"]

Array = NDArray[Any]

# Correlation from which a tensor counts as the original of another.
ALIKE = 0.8
_SAMPLED = 1 << 12


def _sampled(a: Array, b: Array) -> tuple[Array, Array]:
    if a.size <= _SAMPLED:
        return a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
    flat = np.linspace(0, a.size - 1, _SAMPLED).astype(np.int64)
    places = np.unravel_index(flat, a.shape)
    return a[places].astype(np.float64), b[places].astype(np.float64)


def correlation(a: Array, b: Array) -> float:
    """Return the cosine of the angle between two arrays of one shape, over a sample of each.

    Where one is all zero the other must be too.
    """
    x, y = _sampled(a, b)
    norms = math.sqrt(float((x * x).sum()) * float((y * y).sum()))
    if norms == 0.0:
        return 1.0 if np.array_equal(x, y) else 0.0
    return float((x * y).sum()) / norms


def distance(a: Array, b: Array) -> float:
    """Return the norm of a - b over that of b, over a sample of each."""
    x, y = _sampled(a, b)
    size = float((y * y).sum())
    if size == 0.0:
        return 0.0 if not x.any() else math.inf
    return math.sqrt(float(((x - y) ** 2).sum()) / size)


def layouts(candidate: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    """Yield a candidate in each layout of a shape: as it is, transposed, axes of one dropped."""
    if candidate.shape == shape:
        yield candidate
    if candidate.ndim == 2 and candidate.T.shape == shape:
        yield candidate.T
    if candidate.shape != shape and candidate.size == math.prod(shape):
        if _trimmed(candidate.shape) == _trimmed(shape):
            yield candidate.reshape(shape)
        elif candidate.ndim > 1 and _trimmed(candidate.T.shape) == _trimmed(shape):
            yield candidate.T.reshape(shape)


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def fitted(candidate: Array, values: Array) -> Array | None:
    """Return a candidate in the layout of a weight, the likeliest of several, None if none."""
    fitting = list(layouts(candidate, values.shape))
    if len(fitting) > 1:
        return max(fitting, key=lambda layout: correlation(layout, values))
    return fitting[0] if fitting else None
