"""An ONNX model into a file, with its weights beside it where one file can't hold them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from foldmark.formats.onnx_tensor import (
    byte_count,
    is_external,
    model_tensors,
    tensor_array,
)

__all__ = ["bring_inside", "fits_inside", "write_model"]

_INLINE = 1_800_000_000  # bytes; a protobuf ends at 2 GiB
_BESIDE_FROM = 1024  # smaller ones are shapes and scales, which runtimes read while loading
_ALIGNMENT = 4096  # a page: such tensors can be mapped


def fits_inside(model: onnx.ModelProto) -> bool:
    """Return True when one file can hold the model with all its weights."""
    return sum(byte_count(tensor) for tensor in model_tensors(model)) < _INLINE


def bring_inside(model: onnx.ModelProto) -> None:
    """Load the weights that lie in other files into the model."""
    for tensor in model_tensors(model):
        if is_external(tensor):
            array = tensor_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def write_model(model: onnx.ModelProto, target: Path) -> list[Path]:
    """Write a model and return its files: the model, and `<name>.data` where it is too large.

    Weights that go beside are written one by one and the model points at them from then on:
    memory never holds a second copy.

    Raises OSError when the folder can't be written.
    """
    if fits_inside(model):
        bring_inside(model)
        target.write_bytes(model.SerializeToString())
        return [target]
    beside = target.with_name(f"{target.name}.data")
    with beside.open("wb") as file:
        for tensor in _large(model):
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            offset = file.tell()
            file.write(_raw(tensor))
            _point(tensor, beside.name, offset, file.tell() - offset)
    target.write_bytes(model.SerializeToString())
    return [target, beside]


def _large(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for tensor in model_tensors(model):
        is_text = tensor.data_type == onnx.TensorProto.STRING
        if not is_text and byte_count(tensor) >= _BESIDE_FROM:
            yield tensor


def _raw(tensor: onnx.TensorProto) -> bytes | memoryview:
    """Return a tensor's elements as a file holds them."""
    if tensor.HasField("raw_data"):
        return tensor.raw_data
    if is_external(tensor):
        return np.ascontiguousarray(tensor_array(tensor)).reshape(-1).view(np.uint8).data
    return onnx.numpy_helper.from_array(tensor_array(tensor)).raw_data


def _point(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    kept = onnx.TensorProto(
        name=tensor.name,
        dims=tensor.dims,
        data_type=tensor.data_type,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        kept.external_data.add(key=key, value=value)
    tensor.CopyFrom(kept)
