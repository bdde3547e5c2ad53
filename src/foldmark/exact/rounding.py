"""Rounding a real number to an integer: seven rules, and the inputs on which two of them part.

Everything is exact: a real number is a `Fraction`, so a tie is a tie and not a matter of how
close two machine numbers are.
"""

from enum import Enum
from fractions import Fraction
from math import floor
from typing import assert_never

__all__ = ["Rounding", "round_stochastic", "round_to_int", "smallest_difference"]

_HALF = Fraction(1, 2)


class Rounding(Enum):
    """Which integer stands for a real number that lies between two of them."""

    HALF_EVEN = "nearest, ties to the even one"
    HALF_AWAY = "nearest, ties away from zero"
    HALF_UP = "nearest, ties toward plus infinity"
    HALF_DOWN = "nearest, ties toward minus infinity"
    TOWARD_ZERO = "the fraction is dropped"
    FLOOR = "toward minus infinity"
    CEILING = "toward plus infinity"


def round_to_int(value: Fraction, rounding: Rounding) -> int:
    """Return the integer that stands for `value` under `rounding`.

    With f = value - floor(value): below 1/2 the nearest integer is the floor, above it the next
    one; at 1/2 the rule decides.
    """
    below = floor(value)
    fraction = value - below
    match rounding:
        case Rounding.FLOOR:
            return below
        case Rounding.CEILING:
            return below if fraction == 0 else below + 1
        case Rounding.TOWARD_ZERO:
            return below if value >= 0 or fraction == 0 else below + 1
        case Rounding.HALF_UP:
            return below + 1 if fraction >= _HALF else below
        case Rounding.HALF_DOWN:
            return below + 1 if fraction > _HALF else below
        case Rounding.HALF_AWAY:
            tie_goes_up = value > 0
        case Rounding.HALF_EVEN:
            tie_goes_up = below % 2 == 1
        case _:  # pragma: no cover
            assert_never(rounding)
    return below + 1 if fraction > _HALF or (fraction == _HALF and tie_goes_up) else below


def round_stochastic(value: Fraction, random_bits: int, width: int) -> int:
    """Round up with probability equal to the fraction, decided by the given random bits.

    value        the real number
    random_bits  an integer in [0, 2**width), drawn evenly by the caller
    ->           floor(value + random_bits / 2**width)

    The expectation is `value` to within 2**-width. Raises ValueError when the bits do not fit.
    """
    if not 0 <= random_bits < 1 << width:
        raise ValueError(f"random_bits must lie in [0, 2**{width}); got {random_bits}")
    return floor(value + Fraction(random_bits, 1 << width))


def smallest_difference(first: Rounding, second: Rounding) -> Fraction | None:
    """Return the value nearest to zero, in quarter steps, that the two rules round differently.

    A rule depends on the integer part only through its parity and sign, and on the fraction only
    through its being 0, below, at or above 1/2; so the quarters from -2 to 2 show every
    difference there is. Of two values equally near, the positive one is returned; None when the
    rules agree everywhere.
    """
    quarters = sorted((Fraction(n, 4) for n in range(-8, 9)), key=lambda v: (abs(v), v < 0))
    for value in quarters:
        if round_to_int(value, first) != round_to_int(value, second):
            return value
    return None
