"""bitsandbytes' 4-bit code books: NF4 and FP4, scaled by the block's largest magnitude."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from foldmark.exact.catalog import BITSANDBYTES_FP4, NF4, UINT4
from foldmark.exact.group import QuantizedGroup
from foldmark.exact.number import Codebook, FloatFormat
from foldmark.exact.single import divide, multiply
from foldmark.exact.tools.entry import Entry, Procedure

__all__ = ["ENTRIES", "dequantize_with_codebook", "quantize_with_codebook"]


def quantize_with_codebook(
    values: Sequence[float], data: FloatFormat, codebook: Codebook
) -> QuantizedGroup:
    """Return the codes of the nearest entries to x * fl(1 / max |x|), and the largest magnitude.

    A block of zeros gets the code of 0 and the scale 0. Raises NonFiniteValue for NaN.
    """
    del data  # computed in float32 whatever the dtype of the data
    largest = max((abs(v) for v in values), default=0.0)
    reciprocal = divide(1.0, largest) if largest else 0.0
    scaled = (min(max(multiply(v, reciprocal), -1.0), 1.0) for v in values)
    return QuantizedGroup(tuple(codebook.encode(v) for v in scaled), largest, 0)


def dequantize_with_codebook(group: QuantizedGroup, codebook: Codebook) -> list[float]:
    """Return fl(entry * largest magnitude) for every code, in float32."""
    return [multiply(codebook.decode(code), group.scale) for code in group.codes]


BITSANDBYTES_NF4_BLOCK: Final = Procedure(
    name="BITSANDBYTES_NF4_BLOCK",
    codes=UINT4,
    quantize=partial(quantize_with_codebook, codebook=NF4),
    description="the nearest of 16 normal quantiles, scaled by the largest magnitude",
    source="bitsandbytes/backends/default/ops.py: quantize_4bit, nf4",
    versions="bitsandbytes 0.50.2, CPU",
)
BITSANDBYTES_FP4_BLOCK: Final = Procedure(
    name="BITSANDBYTES_FP4_BLOCK",
    codes=UINT4,
    quantize=partial(quantize_with_codebook, codebook=BITSANDBYTES_FP4),
    description="the nearest of 16 numbers of a 4-bit float, scaled by the largest magnitude",
    source="bitsandbytes/backends/default/ops.py: quantize_4bit, fp4",
    versions="bitsandbytes 0.50.2, CPU",
)

ENTRIES: Final[tuple[Entry, ...]] = (BITSANDBYTES_NF4_BLOCK, BITSANDBYTES_FP4_BLOCK)
