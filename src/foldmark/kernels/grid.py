"""From arrays to scales and zero points, before any code is computed."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from foldmark.exact.rule import Rule
from foldmark.kernels.affine import Grid
from foldmark.kernels.fold import ranges_to_grid

__all__ = ["choose_grid"]


def choose_grid(values: NDArray[Any], rule: Rule, block: Sequence[int] | None = None) -> Grid:
    """Return scale and zero point of every block, stored and as used for its codes.

    values  any shape  float32, float16, bfloat16 or float64
    block   extent of a block along every axis; None: the whole array
    ->      arrays of the grid's shape

    Raises NonFiniteValue naming the first NaN or infinity that the rule does not allow.
    Exact twin: foldmark.exact.grid.choose_grid.
    """
    return ranges_to_grid(values, rule, block)
