"""bitsandbytes' 4-bit code books: NF4 and FP4, scaled by the block's largest magnitude."""

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from math import isnan
from typing import Final

from foldmark.errors import NonFiniteValue
from foldmark.exact.catalog import BITSANDBYTES_FP4, FLOAT32, NF4, UINT4
from foldmark.exact.group import QuantizedGroup
from foldmark.exact.number import Codebook, FloatFormat
from foldmark.exact.single import divide, multiply
from foldmark.exact.tools.entry import Entry, Procedure

__all__ = ["ENTRIES", "dequantize_with_codebook", "quantize_fp4_on_cuda", "quantize_with_codebook"]


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


# Borders between the magnitudes of FP4 in ascending order, as its CUDA kernel writes them, and the
# codes between them.
FP4_BORDERS_ON_CUDA: Final = (
    0.00260417,
    0.0859375,
    0.20833333,
    0.29166667,
    0.4166667,
    0.583333,
    0.8333333,
)
FP4_CODES_ON_CUDA: Final = (0, 1, 6, 7, 4, 5, 2, 3)


def quantize_fp4_on_cuda(values: Sequence[float], data: FloatFormat) -> QuantizedGroup:
    """Return the codes of FP4 by magnitude and sign, and the largest magnitude.

    A border belongs to the smaller magnitude, whatever the sign; a small negative number gets the
    code 8 of a second zero. A block of zeros gets the scale 0. Raises NonFiniteValue for NaN.
    """
    del data  # computed in float32 whatever the dtype of the data
    for index, value in enumerate(values):
        if isnan(value):
            raise NonFiniteValue("not a number", where=f"index {index}", got=str(value))
    largest = max((abs(v) for v in values), default=0.0)
    reciprocal = divide(1.0, largest) if largest else 0.0
    borders = [FLOAT32.round(border) for border in FP4_BORDERS_ON_CUDA]
    codes = []
    for value in values:
        scaled = min(max(multiply(value, reciprocal), -1.0), 1.0)
        magnitude = FP4_CODES_ON_CUDA[bisect_left(borders, abs(scaled))]
        codes.append(magnitude + 8 if scaled < 0 else magnitude)
    return QuantizedGroup(tuple(codes), largest, 0)


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
BITSANDBYTES_FP4_BLOCK_CUDA: Final = Procedure(
    name="BITSANDBYTES_FP4_BLOCK_CUDA",
    codes=UINT4,
    quantize=quantize_fp4_on_cuda,
    description="as BITSANDBYTES_FP4_BLOCK, by magnitude and sign, borders to the smaller one",
    source="bitsandbytes csrc/kernels.cu: dQuantizeFP4; float32 blocks",
    versions="bitsandbytes 95f9af30, CUDA, read and not run",
)

ENTRIES: Final[tuple[Entry, ...]] = (
    BITSANDBYTES_NF4_BLOCK,
    BITSANDBYTES_FP4_BLOCK,
    BITSANDBYTES_FP4_BLOCK_CUDA,
)
