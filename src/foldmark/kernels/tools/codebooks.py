"""Code books on rows: NF4 and FP4, scaled by each row's largest magnitude.

Exact twin: foldmark.exact.tools.codebooks.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import NonFiniteValue
from foldmark.exact.number import Codebook
from foldmark.exact.tools.codebooks import FP4_BORDERS_ON_CUDA, FP4_CODES_ON_CUDA
from foldmark.kernels.fold import QuantizedGroup
from foldmark.kernels.threads import each
from foldmark.kernels.tools.blocks import Singles, as_rows

__all__ = ["dequantize_with_codebook", "quantize_fp4_on_cuda", "quantize_with_codebook"]

_ROWS = 1 << 10


def quantize_with_codebook(values: NDArray[Any], codebook: Codebook) -> QuantizedGroup:
    """Return the codes of the nearest entries to x * fl(1 / max |x|), and the largest magnitudes.

    values  (blocks, n);  ->  codes (blocks, n), scale (blocks,), zero point 0

    A block of zeros gets the code of 0 and the scale 0. Raises NonFiniteValue for NaN.
    Exact twin: foldmark.exact.tools.codebooks.quantize_with_codebook.
    """
    return _quantize_scaled(values, partial(encode, codebook=codebook))


def quantize_fp4_on_cuda(values: NDArray[Any]) -> QuantizedGroup:
    """Return the codes of FP4 by magnitude and sign, and the largest magnitudes.

    values  (blocks, n);  ->  codes (blocks, n), scale (blocks,), zero point 0

    A border belongs to the smaller magnitude, whatever the sign. Raises NonFiniteValue for NaN.
    Exact twin: foldmark.exact.tools.codebooks.quantize_fp4_on_cuda.
    """
    return _quantize_scaled(values, _by_magnitude)


def _by_magnitude(values: Singles) -> NDArray[np.uint8]:
    rank = np.searchsorted(np.array(FP4_BORDERS_ON_CUDA, np.float32), np.abs(values), "left")
    sign = (values < 0).astype(np.uint8) << np.uint8(3)
    return np.array(FP4_CODES_ON_CUDA, np.uint8)[rank] + sign


def _quantize_scaled(
    values: NDArray[Any], encoded: Callable[[Singles], NDArray[np.uint8]]
) -> QuantizedGroup:
    """Return the codes of x * fl(1 / max |x|), which lies in -1..1, and the largest magnitudes."""
    rows = as_rows(values)
    if np.isnan(rows.max()):
        place = [int(i) for i in np.unravel_index(np.argmax(np.isnan(rows)), rows.shape)]
        raise NonFiniteValue("no code stands for NaN", where=f"index {place}")
    codes, scale = np.empty(rows.shape, np.uint8), np.empty(rows.shape[0], np.float32)

    def run(first: int) -> None:
        part = rows[first : first + _ROWS]
        largest = np.abs(part).max(1)
        one, none = np.float32(1), np.float32(0)
        with np.errstate(all="ignore"):
            reciprocal = np.where(largest > 0, one / largest, none)
            scaled = np.clip(part * reciprocal[:, None], -one, one)
        codes[first : first + _ROWS] = encoded(scaled)
        scale[first : first + _ROWS] = largest

    each(run, range(0, rows.shape[0], _ROWS))
    return QuantizedGroup(codes, scale, np.zeros(rows.shape[0], np.uint8))


def dequantize_with_codebook(group: QuantizedGroup, codebook: Codebook) -> Singles:
    """Return fl(entry * largest magnitude) for every code, in float32.

    Exact twin: foldmark.exact.tools.codebooks.dequantize_with_codebook.
    """
    entries = np.array(codebook.numbers, np.float32)
    return entries[group.codes] * group.scale.astype(np.float32)[:, None]


def encode(values: Singles, codebook: Codebook) -> NDArray[np.uint8]:
    """Return the code of the number nearest to each value; a border belongs to the smaller one."""
    rank = np.searchsorted(np.array(codebook.borders), values, "left")
    return np.array(codebook.ascending, np.uint8)[rank]
