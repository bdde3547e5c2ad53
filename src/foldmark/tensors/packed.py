"""Codes that were never one an element: quantized into packed bytes, and back from them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.catalog import FLOAT32
from foldmark.exact.number import FloatFormat
from foldmark.exact.packing import LOW_NIBBLE_FIRST, BitLayout
from foldmark.kernels.floats import dtype_of, format_of
from foldmark.kernels.packed import PackedGroup
from foldmark.kernels.packed import dequantize_packed as unpack_numbers
from foldmark.kernels.packed import quantize_packed as pack_codes
from foldmark.tensors.arrays import as_array
from foldmark.tensors.calls import quantize
from foldmark.tensors.scheme import Scheme

__all__ = ["PackedTensor", "quantize_packed"]


@dataclass(frozen=True, slots=True, eq=False)
class PackedTensor:
    """Packed codes in C order, the scale and zero point of each block, and what reads them.

    packed      (bytes,)          uint8, in `layout`, `offset` added to every code
    scale       the grid's shape  float; what one step of a code is worth
    zero_point  the grid's shape  integers in the unit of codes; floats where the rule says so
    shape       of the tensor
    data        the dtype of the numbers that were quantized
    """

    packed: NDArray[np.uint8]
    scale: NDArray[np.floating[Any]]
    zero_point: NDArray[Any]
    shape: tuple[int, ...]
    scheme: Scheme
    layout: BitLayout = LOW_NIBBLE_FIRST
    offset: int = 0
    data: FloatFormat = FLOAT32

    def dequantize(self) -> NDArray[np.floating[Any]]:
        """Return the numbers that the codes stand for, in the dtype that was quantized."""
        if 0 in self.shape:
            return np.empty(self.shape, dtype_of(self.data))
        group = PackedGroup(self.packed, self.scale, self.zero_point)
        block, rule = self.scheme.block.of(self.shape), self.scheme.rule
        return unpack_numbers(group, self.shape, block, rule, self.layout, self.offset, self.data)

    def __repr__(self) -> str:
        """Name the tensor without printing its numbers."""
        kind = f"{self.scheme.codes.name}, shape={self.shape}, data={dtype_of(self.data)}"
        return f"PackedTensor({kind}, {self.packed.nbytes} bytes of codes)"


def quantize_packed(
    array: Any, scheme: Scheme, layout: BitLayout = LOW_NIBBLE_FIRST, offset: int = 0
) -> PackedTensor:
    """Quantize an array by a scheme into packed bytes.

    array   any shape; float32, float16, bfloat16 or float64; numpy, PyTorch, or anything with
            `__array__` or `__dlpack__`
    layout  where the bits of codes go, one of `foldmark.exact.packing`
    offset  added to every code: 0 for two's complement, 2^(bits - 1) for signed codes without sign

    The codes of `quantize(array, scheme)`, packed. Where the rule is plain and a byte holds two
    codes, no code is ever written by itself: half the memory and half the writes.

    Raises NonFiniteValue naming the first index that the rule has no code for, InvalidScheme
    when the array lacks an axis that the blocks name, DataMismatch for numbers that are not real
    and for codes that do not fit the layout's bits.
    """
    numbers = as_array(array)
    data = format_of(numbers.dtype)
    if numbers.size == 0:
        grid = quantize(numbers, scheme)
        parts = np.empty(0, np.uint8), grid.scale, grid.zero_point
        return PackedTensor(*parts, numbers.shape, scheme, layout, offset, data)
    group = pack_codes(numbers, scheme.block.of(numbers.shape), scheme.rule, layout, offset)
    found = group.packed, group.scale, group.zero_point
    return PackedTensor(*found, numbers.shape, scheme, layout, offset, data)
