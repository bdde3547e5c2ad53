"""Codes round(x / step) + zero point without a division where two products decide them.

A processor divides an order of magnitude slower than it multiplies, and memory does not wait. The
two factors a < 1 / step < b differ from 1 / step by more than any rounding does, so for x > 0

    fl(x * a) < fl(x / step) < fl(x * b)        and the other way round for x < 0.

Adding 1.5 * 2^23 + zero point, where float32 has steps of 1, rounds a product to a whole number
and adds the zero point. That is monotonic, so where both sums are the same bits, the quotient's
would be too: its code stands in the last bits of the sum. A quotient that lies on a half-step has
the products on either side of it, and they never agree: no tie is decided this way, so the sum's
own tie rule does not matter. Where the sums part, which one number in a hundred thousand does,
the stretch is divided after all. The sum may be fused with the product or not: both keep the order.

    a = fl(fl(1 / step) * (1 - 2^-21))  <=  (1 / step) * (1 - 2^-22)
    fl(x * a) <= (x / step) * (1 - 2^-22) * (1 + 2^-24)  <  (x / step) * (1 - 2^-24) <= fl(x / step)

Beyond 2^22 the bits of the sum are no longer the code, but they still grow with it, so codes held
in range are right for every finite x. Subnormal quotients round to 0 like their products.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foldmark.kernels.compiled import compiled, inlined
from foldmark.kernels.lanes import LANES, round_lanes

__all__ = ["codes_by_quotient", "codes_of_one_block", "divided"]

Singles = NDArray[np.float32]
Codes = NDArray[np.integer[Any]]

_BELOW: Final = np.float32(1 - 2.0**-21)
_ABOVE: Final = np.float32(1 + 2.0**-21)
_WHOLE: Final = np.float32(1.5 * 2.0**23)
_WHOLE_BITS: Final = np.int32(0x4B400000)
_SMALLEST: Final = np.float32(2.0**-125)
_LARGEST: Final = np.float32(2.0**125)
_LARGEST_ZERO: Final = np.float32(2.0**20)
_STRETCH: Final = 1024
"""Numbers that are divided together when two products of one of them part."""


@inlined
def codes_by_quotient(
    values: Singles,
    begin: int,
    end: int,
    step: np.float32,
    zero: np.float32,
    low: np.float32,
    high: np.float32,
    codes: Codes,
) -> None:
    """Write round(values / step) + zero, ties to even, held in low..high, of begin..end.

    values, codes  (n,)  contiguous; the numbers finite, the codes of at most 16 bits
    step           finite, not 0
    zero           a whole number
    """
    usable = step >= _SMALLEST and step <= _LARGEST and abs(zero) <= _LARGEST_ZERO
    factor = np.float32(1) / step
    below, above, whole = factor * _BELOW, factor * _ABOVE, _WHOLE + zero
    lowest = np.int32(_WHOLE_BITS + np.int32(low))
    highest = np.int32(_WHOLE_BITS + np.int32(high))
    while begin < end:
        count = min(end - begin, _STRETCH) // LANES * LANES
        apart = np.int32(1)
        if usable and count > 0:
            apart = round_lanes(values, begin, count, below, above, whole, lowest, highest, codes)
        else:
            count = end - begin
        if apart != 0:
            divided(values[begin : begin + count], step, zero, low, high, codes[begin:])
        begin += count


@compiled
def codes_of_one_block(
    values: Singles,
    step: np.float32,
    zero: np.float32,
    low: np.float32,
    high: np.float32,
    codes: Codes,
) -> None:
    """Write the codes of numbers that share one step: `codes_by_quotient` of all of them."""
    codes_by_quotient(values, 0, values.size, step, zero, low, high, codes)


@inlined
def divided(
    values: Singles,
    step: np.float32,
    zero: np.float32,
    low: np.float32,
    high: np.float32,
    codes: Codes,
) -> None:
    """Write the same codes by dividing."""
    for i in range(values.size):
        code = np.rint(values[i] / step) + zero
        code = code if code > low else low
        codes[i] = np.int32(code if code < high else high)
