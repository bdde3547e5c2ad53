"""Codes round(x / step) + zero point without a division where two products decide them.

A processor divides an order of magnitude slower than it multiplies, and memory does not wait. The
two factors a < 1 / step < b differ from 1 / step by more than any rounding does, so for x > 0

    fl(x * a) < fl(x / step) < fl(x * b)        and the other way round for x < 0.

Adding 1.5 * 2^23 + zero point, where float32 has steps of 1, rounds a product to a whole number
and adds the zero point. That is monotonic, so where both sums are the same bits, the quotient's
would be too: its code stands in the last bits of the sum. A quotient that lies on a half-step has
the products on either side of it, and they never agree: no tie is decided this way, so the sum's
own tie rule does not matter. Where the sums part, which one number in a hundred thousand does, the
numbers of that step of the loop are divided after all. The sum may be fused with the product or
not: both keep the order.

    a = fl(fl(1 / step) * (1 - 2^-21))  <=  (1 / step) * (1 - 2^-22)
    fl(x * a) <= (x / step) * (1 - 2^-22) * (1 + 2^-24)  <  (x / step) * (1 - 2^-24) <= fl(x / step)

Beyond 2^22 the bits of the sum are no longer the code, but they still grow with it, so codes held
in range are right for every finite x. Subnormal quotients round to 0 like their products. Codes
need not be held where those of a block's ends are in range. `lanes` has the loops.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foldmark.kernels.compiled import compiled, read_only
from foldmark.kernels.lanes import DIVIDE, HOLD, Order, fold_blocks_by_quotients

__all__ = ["LARGEST", "SMALLEST", "codes_of_one_block"]

Singles = NDArray[np.float32]
Codes = NDArray[np.integer[Any]]

SMALLEST: Final = np.float32(2.0**-125)
LARGEST: Final = np.float32(2.0**125)
"""Steps between which 1 / step and both factors are normal numbers."""
_LARGEST_ZERO: Final = np.float32(2.0**20)


def codes_of_one_block(
    values: Singles,
    step: np.float32,
    zero: np.float32,
    low: np.float32,
    high: np.float32,
    codes: Codes,
    order: Order = (),
    past: bool = False,
) -> None:
    """Write round(values / step) + zero, ties to even, held in low..high.

    values  (n,)  dense; finite
    step    finite, not 0
    zero    a whole number
    codes   (n,)  dense, of at most 16 bits; or (n / 2,) bytes of two codes: see `lanes`
    past    whether to write codes past the cache
    """
    usable = SMALLEST <= step <= LARGEST and abs(zero) <= _LARGEST_ZERO
    steps, zeros = np.array([step], np.float32), np.array([zero], np.float32)
    with np.errstate(over="ignore"):
        factors = np.float32(1) / steps
    asks = np.array([HOLD if usable else DIVIDE], np.int32)
    numbers = read_only(values)
    _codes_of_one_block(numbers, steps, zeros, factors, asks, low, high, past, order, codes)


@compiled
def _codes_of_one_block(
    values: Singles,
    steps: Singles,
    zeros: Singles,
    factors: Singles,
    asks: NDArray[np.int32],
    low: np.float32,
    high: np.float32,
    past: bool,
    order: Order,
    codes: Codes,
) -> None:
    fold_blocks_by_quotients(
        values, values.size, 0, steps, zeros, factors, asks, low, high, past, order, codes
    )
