"""Rounding arrays to whole numbers, by the same rules as the oracle."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.rounding import Rounding
from foldmark.kernels.floats import Floats
from foldmark.kernels.loops import round_in_place

__all__ = ["round_to_int"]


def round_to_int(value: NDArray[Any], rounding: Rounding) -> Floats:
    """Return the whole number that stands for each value under `rounding`, in the same dtype.

    value  any shape  float32 or float64, where a large number is whole already
    ->     same shape and dtype; NaN and infinities stay what they are

    Exact twin: foldmark.exact.rounding.round_to_int.
    """
    out = np.array(value, order="C")
    round_in_place(out.reshape(-1), rounding)
    return out
