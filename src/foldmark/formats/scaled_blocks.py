"""Codes with one scale, and perhaps one zero point, for each of a grid of blocks."""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from foldmark.formats.stored import Array, Values

__all__ = ["Numbers", "scaled_blocks"]


class Numbers(Protocol):
    """A constant of a file: read in part, in C order, or whole."""

    def read(self, first: int, last: int) -> Array:
        """Read elements first..last in C order."""
        ...

    def load(self) -> Array:
        """Read everything."""
        ...


def scaled_blocks(
    codes: Numbers,
    scale: Numbers,
    zero_points: Numbers | None,
    shape: tuple[int, ...],
    block: tuple[int, ...],
) -> Callable[[int, int], Values]:
    """Return what reads rows first..last of the first axis, whole blocks of them.

    shape   of the codes
    block   how far one scale reaches along each axis; a scale alone serves all

    Integer zero points come as int32, others as they are stored.
    """
    counts = tuple(-(-n // b) for n, b in zip(shape, block, strict=True))
    across = math.prod(shape[1:])
    step = block[0] if shape and counts[0] > 1 else 1

    def rows_of(constant: Numbers, first: int, last: int) -> Array:
        items = constant.load()
        table = items.reshape((1,) * len(shape) if items.size == 1 else counts)
        whole = not shape or table.shape[0] == 1
        return table if whole else table[first // step : -(-last // step)]

    def read(first: int, last: int) -> Values:
        rows = (last - first, *shape[1:]) if shape else ()
        shift = None if zero_points is None else rows_of(zero_points, first, last)
        if shift is not None and shift.dtype.kind != "f":
            shift = shift.astype(np.int32)
        return Values(
            codes.read(first * across, last * across).reshape(rows),
            block,
            rows_of(scale, first, last).astype(np.float32),
            shift,
        )

    return read
