"""Rulers for the error that quantization leaves: each exact, then rounded once to float64."""

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import inf, log10

from foldmark.errors import DataMismatch
from foldmark.exact.arithmetic import square_root
from foldmark.exact.catalog import FLOAT64

__all__ = [
    "codes_used",
    "largest_error",
    "mean_absolute_error",
    "mean_squared_error",
    "relative_error",
    "relative_error_by_row",
    "signal_to_noise",
]


def largest_error(original: Sequence[float], restored: Sequence[float]) -> float:
    """Return max |x - y|, in the unit of x; 0 for empty lists."""
    return float(max((abs(e) for e in _errors(original, restored)), default=Fraction(0)))


def mean_absolute_error(original: Sequence[float], restored: Sequence[float]) -> float:
    """Return the mean of |x - y|, in the unit of x; 0 for empty lists."""
    errors = _errors(original, restored)
    return float(sum(map(abs, errors), Fraction(0)) / max(len(errors), 1))


def mean_squared_error(original: Sequence[float], restored: Sequence[float]) -> float:
    """Return the mean of (x - y)^2, in the squared unit of x; 0 for empty lists."""
    errors = _errors(original, restored)
    return float(_power(errors) / max(len(errors), 1))


def signal_to_noise(original: Sequence[float], restored: Sequence[float]) -> float:
    """Return 10 log10(sum x^2 / sum (x - y)^2) in decibel; infinite without error.

    Six decibel are one bit: halving every error adds 6.02.
    """
    noise, signal = _power(_errors(original, restored)), _power(map(Fraction, original))
    if noise == 0:
        return inf
    return 10 * log10(signal / noise) if signal else -inf


def relative_error(original: Sequence[float], restored: Sequence[float]) -> float:
    """Return sqrt(sum (x - y)^2 / sum x^2), without unit; infinite when only x is zero."""
    noise, signal = _power(_errors(original, restored)), _power(map(Fraction, original))
    if signal == 0:
        return inf if noise else 0.0
    return square_root(float(noise / signal), FLOAT64)


def relative_error_by_row(
    original: Sequence[Sequence[float]], restored: Sequence[Sequence[float]]
) -> list[float]:
    """Return the relative error of each row: a quiet row's loss is not hidden by a loud one."""
    _demand_equal_lengths(len(original), len(restored))
    return [relative_error(x, y) for x, y in zip(original, restored, strict=True)]


def codes_used(codes: Iterable[int]) -> dict[int, int]:
    """Return how often each code occurs, in ascending order of codes."""
    return dict(sorted(Counter(codes).items()))


def _errors(original: Sequence[float], restored: Sequence[float]) -> list[Fraction]:
    _demand_equal_lengths(len(original), len(restored))
    return [Fraction(x) - Fraction(y) for x, y in zip(original, restored, strict=True)]


def _power(numbers: Iterable[Fraction]) -> Fraction:
    return sum((number * number for number in numbers), Fraction(0))


def _demand_equal_lengths(first: int, second: int) -> None:
    if first != second:
        raise DataMismatch("two lists of different lengths", got=f"{first} and {second}")
