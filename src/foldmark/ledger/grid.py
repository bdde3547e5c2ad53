"""The grid of a site's encoding: its step and its two ends, spread over the tensor."""

from dataclasses import dataclass
from typing import Self

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from foldmark.graphs.sites import Encoding
from foldmark.ledger.pieces import taken

__all__ = ["Grid", "spread", "without_zero"]

_FLOAT_FORMATS = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8e5m2": ml_dtypes.float8_e5m2,
    "float8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float4e2m1": ml_dtypes.float4_e2m1fn,
}


@dataclass(frozen=True)
class Grid:
    """Where the representable values of a tensor lie.

    Attributes:
        step: distance of two codes, broadcastable to the tensor; None for float formats, whose
            steps differ from value to value.
        low: smallest representable value, broadcastable to the tensor.
        high: largest.
        zero: the code of 0, broadcastable; None for float formats.
        is_chosen_by_data: True when scale and zero point come from the very tensor.
    """

    step: NDArray[np.float64] | None
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    zero: NDArray[np.float64] | None
    is_chosen_by_data: bool = False

    @classmethod
    def of(cls, encoding: Encoding, tensor: NDArray[np.generic]) -> Self:
        """Return the grid on which a tensor is put."""
        if encoding.is_dynamic:
            return cls._dynamic(encoding, tensor)
        scale: NDArray[np.float64] = np.ones(())
        if encoding.scale is not None:
            scale = spread(encoding.scale.astype(np.float64), encoding, tensor.shape)
        if encoding.number_format in _FLOAT_FORMATS:
            info = ml_dtypes.finfo(_FLOAT_FORMATS[encoding.number_format])
            high = np.asarray(float(info.max) * scale)
            return cls(None, -high, high, None)
        zero = np.zeros(())
        if encoding.zero_point is not None:
            zero = spread(encoding.zero_point.astype(np.float64), encoding, tensor.shape)
        lowest, highest = code_limits(encoding.number_format)
        scale = np.asarray(scale)
        return cls(scale, (lowest - zero) * scale, (highest - zero) * scale, zero)

    def of_piece(self, piece: slice, axis: int, length: int) -> "Grid":
        """Return the grid of a piece of the tensor, whose whole length along the axis is given."""
        step, low, high, zero = (
            None if part is None else taken(part, piece, axis, length)
            for part in (self.step, self.low, self.high, self.zero)
        )
        assert low is not None
        assert high is not None
        return Grid(step, low, high, zero, self.is_chosen_by_data)

    @classmethod
    def _dynamic(cls, encoding: Encoding, tensor: NDArray[np.generic]) -> Self:
        # DynamicQuantizeLinear: the range is stretched to hold 0, the zero point rounded.
        lowest, highest = code_limits(encoding.number_format)
        low = min(0.0, float(tensor.min(initial=0.0)))
        high = max(0.0, float(tensor.max(initial=0.0)))
        step = (high - low) / (highest - lowest) or 1.0
        zero = float(np.clip(np.rint(lowest - low / step), lowest, highest))
        return cls(
            np.asarray(step),
            np.asarray((lowest - zero) * step),
            np.asarray((highest - zero) * step),
            np.asarray(zero),
            is_chosen_by_data=True,
        )


def code_limits(number_format: str) -> tuple[int, int]:
    """Return the smallest and the largest code of an integer format ("int8", "uint4")."""
    bits = int(number_format.lstrip("uint"))
    if number_format.startswith("u"):
        return 0, (1 << bits) - 1
    return -(1 << bits - 1), (1 << bits - 1) - 1


def spread(
    parameter: NDArray[np.float64], encoding: Encoding, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Return scale or zero point in a form that broadcasts to the tensor.

    Per tensor () and per axis (n,) keep their size; per block each value is repeated over its
    block.
    """
    if parameter.size == 1:
        return parameter.reshape(())
    if encoding.axis is None:
        return np.broadcast_to(parameter, shape)
    axis = encoding.axis % len(shape)
    if encoding.block_size is None:
        one = [1] * len(shape)
        one[axis] = parameter.size
        return parameter.reshape(one)
    repeated = np.repeat(parameter, encoding.block_size, axis=axis)
    return np.take(repeated, np.arange(shape[axis]), axis=axis)


def without_zero(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values with 1 in place of 0, to divide by."""
    return np.where(values == 0, 1.0, values)
