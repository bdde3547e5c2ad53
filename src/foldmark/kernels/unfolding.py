"""The way back for codes that lie as whole blocks one after another, to float32 in long loops."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.kernels.blocks import RUN, Layout
from foldmark.kernels.compiled import compiled, read_only
from foldmark.kernels.lanes import Order, unfold_blocks
from foldmark.kernels.loops import Codes
from foldmark.kernels.threads import each, share_of

__all__ = ["unfolded"]

Singles = NDArray[np.float32]


def unfolded(
    codes: Codes,
    scale: NDArray[Any],
    zero_point: NDArray[Any],
    layout: Layout,
    order: Order = (),
    sign: int = 0,
) -> Singles | None:
    """Return the numbers ((code ^ sign) - zero point) * scale in an array of a layout.

    codes       dense, in the layout's order; or bytes of two codes: see `lanes`
    scale       the grid's shape  float32, or as exact in it
    zero_point  the grid's shape  whole, at most 2^22

    None where neighbours in memory belong to blocks that go on elsewhere.
    """
    if not layout.follows or (order and layout.segment % 2):
        return None
    codes = read_only(codes)
    out = layout.empty(np.float32)
    values = layout.dense_rows_of(out).reshape(-1)
    scales, zeros = (
        layout.to_table(numbers).astype(np.float32).reshape(-1) for numbers in (scale, zero_point)
    )
    share = share_of(values.size, RUN)
    if layout.segment >= share:

        def part(place: tuple[int, slice]) -> None:
            block, numbers = place
            own, size = slice(block, block + 1), numbers.stop - numbers.start
            read = slice(numbers.start // 2, numbers.stop // 2) if order else numbers
            given = scales[own], zeros[own]
            _unfold(codes[read], size, np.int32(sign), *given, order, values[numbers])

        each(part, layout.cuts(share))
    else:
        blocks = share // layout.segment

        def run(first: int) -> None:
            own = slice(first, first + blocks)
            begin, end = first * layout.segment, (first + blocks) * layout.segment
            read = slice(begin // 2, end // 2) if order else slice(begin, end)
            given = scales[own], zeros[own]
            _unfold(codes[read], layout.segment, np.int32(sign), *given, order, values[begin:end])

        each(run, range(0, scales.size, blocks))
    return out


@compiled
def _unfold(
    codes: Codes,
    segment: int,
    sign: np.int32,
    scales: Singles,
    zeros: Singles,
    order: Order,
    values: Singles,
) -> None:
    unfold_blocks(codes, segment, 0, sign, scales, zeros, order, values)
