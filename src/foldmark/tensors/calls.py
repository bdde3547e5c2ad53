"""The calls that most users need: quantize, dequantize, and what is lost in between."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foldmark.errors import DataMismatch
from foldmark.kernels.blocks import PIECE
from foldmark.kernels.codes import codes_dtype
from foldmark.kernels.dot import integer_matmul
from foldmark.kernels.floats import format_of
from foldmark.kernels.fold import quantize_array
from foldmark.tensors.arrays import as_array
from foldmark.tensors.quantized import QuantizedTensor
from foldmark.tensors.scheme import Scheme

__all__ = [
    "Difference",
    "dequantize",
    "fake_quantize",
    "first_difference",
    "int_matmul",
    "quantize",
]


def quantize(array: Any, scheme: Scheme) -> QuantizedTensor:
    """Quantize an array by a scheme.

    array  any shape; float32, float16, bfloat16 or float64; numpy, PyTorch, or anything with
           `__array__` or `__dlpack__`

    Raises NonFiniteValue naming the first index that the rule has no code for, InvalidScheme
    when the array lacks an axis that the blocks name, DataMismatch for numbers that are not real.
    """
    numbers = as_array(array)
    data = format_of(numbers.dtype)
    grid = scheme.block.grid(numbers.shape)
    if numbers.size == 0:
        # Blocks of nothing are blocks of zeros: whatever grid there is holds what zero gives.
        nothing = quantize_array(np.zeros(grid, numbers.dtype), (1,) * numbers.ndim, scheme.rule)
        codes = np.empty(numbers.shape, codes_dtype(scheme.codes))
        return QuantizedTensor(codes, nothing.scale, nothing.zero_point, scheme, data)
    group = quantize_array(numbers, scheme.block.of(numbers.shape), scheme.rule)
    return QuantizedTensor(group.codes, group.scale, group.zero_point, scheme, data)


def dequantize(tensor: QuantizedTensor) -> NDArray[np.floating[Any]]:
    """Return the numbers that a quantized tensor's codes stand for."""
    return tensor.dequantize()


def fake_quantize(array: Any, scheme: Scheme) -> NDArray[np.floating[Any]]:
    """Return what an array becomes when it is quantized and dequantized again, in its own dtype.

    The same numbers as `quantize(array, scheme).dequantize()`.
    """
    return quantize(array, scheme).dequantize()


def int_matmul(a: Any, b: Any, zero_a: ArrayLike = 0, zero_b: ArrayLike = 0) -> NDArray[np.int64]:
    """Return the exact matrix product of codes, sum (a - zero_a)(b - zero_b), in int64.

    a       (..., rows, K)    integers
    b       (K, columns)      integers
    zero_a  () or (rows, 1);  zero_b  () or (columns,)
    ->      (..., rows, columns)  in steps of scale_a * scale_b

    A sum that int32 can't hold comes out right here; compare with its low 32 bits to see where
    a runtime's accumulator wraps. Raises DataMismatch when the inner lengths differ.
    """
    return integer_matmul(as_array(a), as_array(b), zero_a, zero_b)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two arrays first differ, in C order, and on how many elements they do.

    index   of the first element that differs
    first   what stands there in the first array; second: in the second
    count   elements that differ; total: elements compared
    """

    index: tuple[int, ...]
    first: float | int
    second: float | int
    count: int
    total: int

    def __str__(self) -> str:
        """Say the difference in one line."""
        return (
            f"{self.count} of {self.total} differ, first at {list(self.index)}: "
            f"{self.first} and {self.second}"
        )


def first_difference(a: Any, b: Any) -> Difference | None:
    """Return where two arrays first differ, or None when they agree everywhere.

    a, b  arrays of one shape, or two quantized tensors, whose codes are compared

    Numbers agree when they are equal or both NaN; zeros agree whatever their signs. Raises
    DataMismatch when the shapes differ.
    """
    first, second = (x.codes if isinstance(x, QuantizedTensor) else as_array(x) for x in (a, b))
    if first.shape != second.shape:
        raise DataMismatch(
            "arrays of different shapes can't be compared element by element",
            got=f"shapes {first.shape} and {second.shape}",
        )
    count, place = 0, None
    for start in range(0, first.size, PIECE):
        cut = slice(start, start + PIECE)
        differs = _differs(_flat(first, cut), _flat(second, cut))
        count += int(differs.sum())
        if place is None and differs.any():
            place = start + int(np.argmax(differs))
    if place is None:
        return None
    index = tuple(int(i) for i in np.unravel_index(place, first.shape))
    return Difference(index, first[index].item(), second[index].item(), count, first.size)


def _flat(array: NDArray[Any], cut: slice) -> NDArray[Any]:
    """Return a stretch of an array in C order, without a copy of the whole."""
    if array.flags.c_contiguous:
        return array.reshape(-1)[cut]
    places = np.arange(cut.start, min(cut.stop, array.size))
    return array[np.unravel_index(places, array.shape)]


def _differs(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    differs = np.asarray(a != b)
    if a.dtype.kind in "iub" or b.dtype.kind in "iub":
        return differs
    return differs & ~(np.isnan(a) & np.isnan(b))
