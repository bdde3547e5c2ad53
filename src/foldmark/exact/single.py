"""float32 arithmetic for procedures that are stated step by step: one rounding an operation."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from foldmark.exact import arithmetic
from foldmark.exact.catalog import FLOAT32

__all__ = ["add", "divide", "multiply", "numpy_sum", "single", "square_root", "subtract", "total"]

add: Final = partial(arithmetic.add, precision=FLOAT32)
subtract: Final = partial(arithmetic.subtract, precision=FLOAT32)
multiply: Final = partial(arithmetic.multiply, precision=FLOAT32)
divide: Final = partial(arithmetic.divide, precision=FLOAT32)
square_root: Final = partial(arithmetic.square_root, precision=FLOAT32)
single: Final = FLOAT32.round


def total(numbers: Iterable[float]) -> float:
    """Return the sum added up in order, as a plain C loop does (and torch for up to 8 numbers)."""
    result = 0.0
    for number in numbers:
        result = add(result, number)
    return result


def numpy_sum(numbers: Sequence[float]) -> float:
    """Return the sum in numpy's order for contiguous float32.

    Fewer than 8 in order; up to 128 in eight partial sums, joined in pairs; longer lists are
    halved at a multiple of 8.
    """
    count = len(numbers)
    if count < 8:
        return total(numbers)
    if count > 128:
        half = count // 2 - count // 2 % 8
        return add(numpy_sum(numbers[:half]), numpy_sum(numbers[half:]))
    whole = count - count % 8
    r = [total(numbers[lane:whole:8]) for lane in range(8)]
    left = add(add(r[0], r[1]), add(r[2], r[3]))
    right = add(add(r[4], r[5]), add(r[6], r[7]))
    return total([add(left, right), *numbers[whole:]])
