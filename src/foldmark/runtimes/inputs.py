"""What a model must be fed: the name, type and shape of every input."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from foldmark.errors import DataMismatch, NonFiniteValue

__all__ = ["ModelInput", "check_array", "describe_inputs", "model_inputs"]


@dataclass(frozen=True)
class ModelInput:
    """One input of a model.

    Attributes:
        name: the input's name.
        dtype: numpy type of its elements.
        shape: one entry per axis: a size, the name of a size that is free, or None when the
            model says nothing; None for the whole when even the rank is unknown.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        """Return `name type[axes]`, as the messages print it."""
        if self.shape is None:
            return f"{self.name} {self.dtype}"
        axes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.name} {self.dtype}[{axes}]"

    @property
    def batch(self) -> int | None:
        """The size of the first axis where the model fixes it, else None."""
        return self.shape[0] if self.shape and isinstance(self.shape[0], int) else None


def model_inputs(model: onnx.ModelProto) -> tuple[ModelInput, ...]:
    """Return the inputs that a caller must feed: those that no initializer fills."""
    filled = {tensor.name for tensor in model.graph.initializer}
    return tuple(_read(value) for value in model.graph.input if value.name not in filled)


def describe_inputs(inputs: Sequence[ModelInput]) -> str:
    """Return the inputs in one line: "input_ids int64[batch, sequence], ..."."""
    return ", ".join(str(each) for each in inputs) or "none"


def check_array(array: NDArray[np.generic], expected: ModelInput, where: str) -> None:
    """Refuse an array that the model's input can't take.

    An array may have one axis more than the input: the samples of a model that takes one.

    Raises:
        DataMismatch: type, rank or a fixed size differs.
        NonFiniteValue: NaN or infinity, with the first index.
    """
    if array.dtype != expected.dtype:
        raise DataMismatch(
            f"input {expected.name!r} has the wrong type",
            where=where,
            got=str(array.dtype),
            expected=str(expected),
            todo=f"convert it with .astype({str(expected.dtype)!r})",
        )
    if expected.shape is not None:
        _check_shape(array, expected, expected.shape, where)
    if array.dtype.kind in "fc" and not np.isfinite(array).all():
        first = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise NonFiniteValue(
            f"input {expected.name!r} is not finite", where=where, got=f"{array[first]} at {first}"
        )


def _check_shape(
    array: NDArray[np.generic],
    expected: ModelInput,
    shape: tuple[int | str | None, ...],
    where: str,
) -> None:
    stacked = array.ndim == len(shape) + 1
    if array.ndim != len(shape) and not stacked:
        raise DataMismatch(
            f"input {expected.name!r} has the wrong rank",
            where=where,
            got=f"{array.ndim} axes {list(array.shape)}",
            expected=str(expected),
            todo="the first axis of every array counts the samples",
        )
    # The first axis counts the samples; how many run at once is settled when batches are cut.
    own = shape if stacked else shape[1:]
    for axis, (size, wanted) in enumerate(zip(array.shape[1:], own, strict=True), start=1):
        if isinstance(wanted, int) and size != wanted:
            raise DataMismatch(
                f"axis {axis} of input {expected.name!r} has the wrong size",
                where=where,
                got=str(list(array.shape)),
                expected=str(expected),
            )


def _read(value: onnx.ValueInfoProto) -> ModelInput:
    tensor = value.type.tensor_type
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type or onnx.TensorProto.FLOAT))
    if not tensor.HasField("shape"):
        return ModelInput(value.name, dtype, None)
    return ModelInput(value.name, dtype, tuple(_size(dim) for dim in tensor.shape.dim))


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value") and dim.dim_value > 0:
        return int(dim.dim_value)
    return dim.dim_param or None
