"""One group of values (a tensor, a row, a block) to scale, zero point and codes, and back."""

from collections.abc import Sequence
from dataclasses import dataclass

from foldmark.exact.affine import codes_of, dequantize
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.grid import choose_grid
from foldmark.exact.number import FloatFormat
from foldmark.exact.rule import Rule

__all__ = [
    "QuantizedGroup",
    "dequantize_group",
    "quantize_blocks",
    "quantize_group",
    "quantize_rows",
]


@dataclass(frozen=True, slots=True)
class QuantizedGroup:
    """The codes of one group with the scale and zero point that are stored beside them."""

    codes: tuple[int, ...]
    scale: float
    zero_point: float


def quantize_group(
    values: Sequence[float], rule: Rule, data: FloatFormat = FLOAT32
) -> QuantizedGroup:
    """Return codes, scale and zero point of one group of numbers of dtype `data`.

    Raises NonFiniteValue naming the first index that has no code.
    """
    grid = choose_grid(values, rule, data)
    codes = codes_of(values, grid, rule.affine, data)
    return QuantizedGroup(tuple(codes), grid.scale, grid.zero_point)


def dequantize_group(group: QuantizedGroup, rule: Rule, data: FloatFormat = FLOAT32) -> list[float]:
    """Return the numbers of dtype `data` that a group's codes stand for."""
    return dequantize(group.codes, group.scale, group.zero_point, rule.affine, data)


def quantize_rows(
    rows: Sequence[Sequence[float]], rule: Rule, data: FloatFormat = FLOAT32
) -> list[QuantizedGroup]:
    """Quantize every row of a matrix on its own (one scale per output channel, say)."""
    return [quantize_group(row, rule, data) for row in rows]


def quantize_blocks(
    values: Sequence[float], block_size: int, rule: Rule, data: FloatFormat = FLOAT32
) -> list[QuantizedGroup]:
    """Quantize every run of `block_size` values on its own; the last one may be shorter."""
    starts = range(0, len(values), block_size)
    return [quantize_group(values[s : s + block_size], rule, data) for s in starts]
