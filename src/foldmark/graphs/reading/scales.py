"""Scales that can't be right, or that are odd: told by name, index and value before they are used.

Every code of a scale of 0 stands for 0; below the smallest normal number a scale has few digits
left, and a runtime that flushes such numbers reads 0; below 0 larger values get smaller codes,
as 4-bit blocks do on purpose, to give the code that has no opposite to the largest value. All
three have a meaning, and the account goes on. NaN and infinity have none.
"""

import math
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from foldmark.errors import InvalidScheme, NonFiniteValue
from foldmark.graphs.reading.workspace import Workspace
from foldmark.graphs.sites import OddScale

__all__ = ["check_fits", "check_scale"]

Array = NDArray[Any]


def check_scale(space: Workspace, name: str, scale: Array, *, in_blocks: bool = False) -> None:
    """Refuse a scale that is not finite; remember one that is not a normal positive number.

    In blocks a negative one is usual.

    Raises NonFiniteValue naming the scale, the first index and the value.
    """
    values = scale.astype(np.float64)
    finite = np.isfinite(values)
    if not finite.all():
        index = _first(~finite)
        raise NonFiniteValue(
            "a scale of the quantized model is not a finite number",
            where=f"scale {name!r}",
            got=f"{values[index]}{_at(index)}",
            expected="a number above 0",
            todo="quantize the model again, or repair the scale",
        )
    smallest = float(ml_dtypes.finfo(scale.dtype).smallest_normal)
    odd = (np.abs(values) if in_blocks else values) < smallest
    if name in space.given and odd.any():
        index = _first(odd)
        space.odd_scales[name] = OddScale(
            name, index, float(values[index]), int(odd.sum()), smallest
        )


def check_fits(
    name: str,
    scale: Array,
    zero_point: Array | None,
    shape: tuple[int, ...],
    *,
    axis: int | None,
    block_size: int,
) -> None:
    """Refuse a scale or zero point that does not fit the tensor of this shape.

    Raises InvalidScheme naming the scale, its shape and the shape that would fit.
    """
    wanted: tuple[int, ...] = ()
    if axis is not None:
        if not -len(shape) <= axis < len(shape):
            raise InvalidScheme(
                f"it runs along axis {axis} of a tensor of {len(shape)} axes",
                where=f"scale {name!r}",
                got=f"a tensor of shape {list(shape)}",
            )
        wanted = (shape[axis],)
        if block_size:
            blocks = math.ceil(shape[axis] / block_size)
            wanted = tuple(blocks if i == axis % len(shape) else n for i, n in enumerate(shape))
    for what, part in (("it does", scale), ("its zero point does", zero_point)):
        if part is not None and not _fits(part.shape, wanted, shape, single=axis is None):
            raise InvalidScheme(
                f"{what} not fit a tensor of shape {list(shape)}",
                where=f"scale {name!r}",
                got=f"shape {list(part.shape)}",
                expected=f"{list(wanted)}" if wanted else "one number",
            )


def _fits(
    given: tuple[int, ...], wanted: tuple[int, ...], shape: tuple[int, ...], *, single: bool
) -> bool:
    if math.prod(given) == 1 or given == wanted:
        return True
    # QLinearMatMul: one a row or column, with as many axes as the tensor.
    beside = len(given) == len(shape) and all(
        one in (1, whole) for one, whole in zip(given, shape, strict=True)
    )
    return beside and not single and 0 not in given


def _first(flags: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(flags)[0])


def _at(index: tuple[int, ...]) -> str:
    return f" at {list(index)}" if index else ""
