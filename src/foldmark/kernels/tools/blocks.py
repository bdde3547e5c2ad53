"""Blocks of a procedure as rows of float32, and their codes."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import DataMismatch
from foldmark.kernels.compiled import read_only
from foldmark.kernels.fold import QuantizedGroup
from foldmark.kernels.threads import each

__all__ = ["Singles", "as_rows", "quantize_rows_by"]

Singles = NDArray[np.float32]
_ROWS = 1 << 10
_FEW = 1 << 4


def as_rows(values: NDArray[Any]) -> Singles:
    """Return values (blocks, n) as float32 to read, dense. Raises DataMismatch for another rank."""
    if values.ndim != 2 or values.shape[1] == 0:
        raise DataMismatch("blocks are the rows of a matrix", got=f"shape {values.shape}")
    return read_only(np.ascontiguousarray(values, dtype=np.float32))


def quantize_rows_by(
    loop: Callable[[Singles, NDArray[np.uint8], Singles, Singles], None],
    values: NDArray[Any],
    zero_dtype: type[np.generic],
) -> QuantizedGroup:
    """Run a loop over rows on all cores: it is given rows, and writes codes, scales, zero points.

    ->  codes (blocks, n) uint8, scale (blocks,) float32, zero point (blocks,) of `zero_dtype`
    """
    rows = as_rows(values)
    codes = np.empty(rows.shape, np.uint8)
    scale, zero = np.empty(rows.shape[0], np.float32), np.empty(rows.shape[0], np.float32)
    step = _ROWS if rows.shape[0] > _ROWS else _FEW

    def run(first: int) -> None:
        part = slice(first, first + step)
        loop(rows[part], codes[part], scale[part], zero[part])

    each(run, range(0, rows.shape[0], step))
    return QuantizedGroup(codes, scale, zero.astype(zero_dtype))
