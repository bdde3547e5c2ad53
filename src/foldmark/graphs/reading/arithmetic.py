"""Constant codes to float and back, as ONNX defines it."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.graphs.sites import Encoding

__all__ = ["dequantized", "format_name", "is_integer", "quantized", "spread"]

Array = NDArray[Any]


def format_name(dtype: np.dtype) -> str:
    """Return a number format's name in an Encoding: "int8", "uint4", "float8e4m3fn"."""
    number = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    name = onnx.TensorProto.DataType.Name(number).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def spread(values: Array, shape: tuple[int, ...], axis: int | None, block_size: int) -> Array:
    """Return scales or zero points so that they broadcast against a tensor.

        values      (), (1,), (shape[axis],) or, per block, the tensor's rank
        ->          broadcasts to shape

    The last block of an axis may be shorter than `block_size`.
    """
    if values.size == 1:
        return values.reshape(())
    if block_size:
        assert axis is not None
        repeated = np.repeat(values, block_size, axis=axis)
        return repeated.take(np.arange(shape[axis]), axis=axis)
    if values.ndim == 1:
        assert axis is not None
        return values.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return values


def dequantized(
    codes: Array, scale: Array, zero_point: Array | None, axis: int | None, block_size: int = 0
) -> Array:
    """Return the real values that codes stand for, in the dtype of the scale.

    x = (codes - zero_point) * scale        the product in float32
    """
    whole = is_integer(codes.dtype)
    numbers = codes.astype(np.int32 if whole else np.float32)
    if whole and zero_point is not None and zero_point.any():
        zero = zero_point.astype(np.int32 if is_integer(zero_point.dtype) else np.float32)
        numbers = numbers - spread(zero, codes.shape, axis, block_size)
    wide = spread(scale.astype(np.float32), codes.shape, axis, block_size)
    with np.errstate(over="ignore"):
        return (numbers.astype(np.float32) * wide).astype(scale.dtype, copy=False)


def quantized(x: Array, encoding: Encoding, dtype: np.dtype[Any]) -> Array:
    """Return the codes of real values, as ONNX Runtime computes them.

        codes = clamp(round_half_even(x / scale) + zero_point)      the quotient in float32

    NaN becomes the lowest code of an integer type and stays NaN in a float type.
    """
    assert encoding.scale is not None
    axis, block_size = encoding.axis, encoding.block_size or 0
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        ratio = x.astype(np.float32) / spread(
            encoding.scale.astype(np.float32), x.shape, axis, block_size
        )
        if not is_integer(dtype):
            largest = float(ml_dtypes.finfo(dtype).max)
            return np.clip(ratio, -largest, largest).astype(dtype)
        rounded = np.rint(ratio).astype(np.float64)
    if encoding.zero_point is not None:
        zero = encoding.zero_point.astype(np.float64)
        rounded = rounded + spread(zero, x.shape, axis, block_size)
    lowest, highest = (float(end) for end in _ends(dtype))
    within = np.clip(np.where(np.isnan(rounded), lowest, rounded), lowest, highest)
    return within.astype(np.int64).astype(dtype)


def _ends(dtype: np.dtype[Any]) -> tuple[int, int]:
    info = ml_dtypes.iinfo(dtype)
    return int(info.min), int(info.max)


def is_integer(dtype: np.dtype) -> bool:
    """True for numpy's integers and for those of fewer than eight bits."""
    return np.issubdtype(dtype, np.integer) or dtype.name in _SHORT_INTEGERS


_SHORT_INTEGERS = frozenset({"int4", "uint4", "int2", "uint2"})
