"""One group, rows or blocks to codes by a whole rule: the fast twin of `exact.group`."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from foldmark.errors import DataMismatch
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.number import FloatFormat
from foldmark.exact.rule import Rule
from foldmark.kernels.affine import dequantize
from foldmark.kernels.floats import Floats
from foldmark.kernels.fold import QuantizedGroup, quantize_array

__all__ = [
    "QuantizedGroup",
    "dequantize_group",
    "quantize_blocks",
    "quantize_group",
    "quantize_rows",
]


def quantize_group(values: NDArray[Any], rule: Rule) -> QuantizedGroup:
    """Return codes, scale and zero point of an array that is one group.

    Exact twin: foldmark.exact.group.quantize_group.
    """
    return quantize_array(values, None, rule)


def dequantize_group(
    group: QuantizedGroup,
    rule: Rule,
    data: FloatFormat = FLOAT32,
    block: Sequence[int] | None = None,
) -> Floats:
    """Return the numbers of dtype `data` that a group's codes stand for.

    Exact twin: foldmark.exact.group.dequantize_group.
    """
    return dequantize(group.codes, group.scale, group.zero_point, rule.affine, data, block)


def quantize_rows(rows: NDArray[Any], rule: Rule) -> QuantizedGroup:
    """Quantize every row of a matrix on its own (one scale per output channel, say).

    rows  (rows, columns);  ->  scale and zero point of shape (rows, 1)

    Exact twin: foldmark.exact.group.quantize_rows.
    """
    return quantize_array(rows, (1, max(rows.shape[1], 1)), rule)


def quantize_blocks(values: NDArray[Any], block_size: int, rule: Rule) -> QuantizedGroup:
    """Quantize every run of `block_size` values on its own; the last one may be shorter.

    values  (n,);  ->  scale and zero point of shape (ceil(n / block_size),)

    Exact twin: foldmark.exact.group.quantize_blocks.
    """
    if values.ndim != 1:
        raise DataMismatch("blocks are cut from one row of values", got=f"shape {values.shape}")
    return quantize_array(values, (block_size,), rule)
