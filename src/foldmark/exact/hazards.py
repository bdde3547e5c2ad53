"""What narrow floats do to sums, epsilons and large numbers."""

from collections.abc import Sequence
from fractions import Fraction
from math import isfinite

from foldmark.exact.arithmetic import add, multiply
from foldmark.exact.catalog import FLOAT16, FLOAT32
from foldmark.exact.number import FloatFormat

__all__ = [
    "block_sum",
    "epsilon_vanishes",
    "exact_sum",
    "lost_terms",
    "overflowing",
    "sequential_sum",
]


def overflowing(values: Sequence[float], precision: FloatFormat = FLOAT16) -> list[int]:
    """Return the indices of finite values that become infinite (or NaN) in the format."""
    return [
        index
        for index, value in enumerate(values)
        if isfinite(value) and not isfinite(precision.round(value))
    ]


def epsilon_vanishes(value: float, epsilon: float, precision: FloatFormat = FLOAT16) -> bool:
    """Say whether value + epsilon is no different from value in the format.

    A LayerNorm's 1e-12 is zero in float16: it guards nothing, and a zero variance divides by zero.
    """
    kept = precision.round(value)
    return add(kept, precision.round(epsilon), precision) == kept


def sequential_sum(values: Sequence[float], precision: FloatFormat = FLOAT16) -> float:
    """Return the sum added up in order, each partial sum rounded to the format."""
    total = 0.0
    for value in values:
        total = add(total, precision.round(value), precision)
    return total


def exact_sum(values: Sequence[float]) -> float:
    """Return the exact sum, rounded once to float64."""
    return float(sum(map(Fraction, values), Fraction(0)))


def lost_terms(values: Sequence[float], precision: FloatFormat = FLOAT16) -> list[int]:
    """Return the indices of terms, not zero themselves, that leave a sum in order unchanged.

    In float16 a sum that has reached 2048 no longer notices a 1.
    """
    total, lost = 0.0, []
    for index, value in enumerate(values):
        longer = add(total, precision.round(value), precision)
        if value != 0 and longer == total:
            lost.append(index)
        total = longer
    return lost


def block_sum(codes: Sequence[int], scale: float, precision: FloatFormat = FLOAT16) -> float:
    """Return scale * sum(codes) as a block stores it beside its scale; infinite if too large.

    ggml's q8_1 stores it in float16: 32 codes of 127 overflow from a mean magnitude of 2047 on,
    and infinity times a zero minimum is NaN.
    """
    return precision.round(multiply(scale, float(sum(codes)), FLOAT32))
