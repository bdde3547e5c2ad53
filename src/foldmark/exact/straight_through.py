"""The straight-through gradient: rounding counts as the identity, clipping as a wall.

Source: Bengio et al. 2013, arXiv 1308.3432; with the clipping of Jacob et al. 2017,
arXiv 1712.05877.
"""

from fractions import Fraction

from foldmark.exact.arithmetic import divide
from foldmark.exact.catalog import FLOAT64
from foldmark.exact.number import IntegerFormat
from foldmark.exact.rounding import Rounding, round_to_int

__all__ = ["straight_through"]


def straight_through(value: float, scale: float, upstream: float, codes: IntegerFormat) -> float:
    """Return the gradient that reaches `value`: `upstream` where its code is not clipped, else 0.

    upstream  gradient of the loss with respect to the fake-quantized value
    """
    code = round_to_int(Fraction(divide(value, scale, FLOAT64)), Rounding.HALF_EVEN)
    return upstream if codes.clip(code) == code else 0.0
