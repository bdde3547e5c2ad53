"""A model whose weights stay in numpy arrays, so that graphs can be edited without copying them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.formats.onnx_tensor import is_external, tensor_array
from foldmark.graphs.inlining import names_read

__all__ = [
    "LightModel",
    "lighten",
    "outside",
    "sharing",
    "with_outputs",
    "without_graph",
    "without_unread",
]

# Below this an initializer stays inside the graph: shapes and axes are read from there.
_SMALL_BYTES = 1024

# The element types that ONNX Runtime takes from a numpy array without a copy.
_ARRAY_TYPES = {
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.INT8,
    onnx.TensorProto.UINT8,
    onnx.TensorProto.INT16,
    onnx.TensorProto.UINT16,
    onnx.TensorProto.INT32,
    onnx.TensorProto.INT64,
}


@dataclass(frozen=True)
class LightModel:
    """A graph and, apart from it, the bytes of its large initializers.

    Attributes:
        model: the graph; a large initializer has its name, type and shape only.
        weights: those initializers' values by name. Several models may share one array.
    """

    model: onnx.ModelProto
    weights: Mapping[str, NDArray[np.generic]]


def lighten(model: onnx.ModelProto | LightModel) -> LightModel:
    """Return the model with its large initializers moved out; the argument is not changed."""
    if isinstance(model, LightModel):
        return model
    light = onnx.ModelProto()
    light.CopyFrom(without_graph(model))
    weights: dict[str, NDArray[np.generic]] = {}
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(light.graph, field).extend(getattr(model.graph, field))
    light.graph.name = model.graph.name
    for tensor in model.graph.initializer:
        if tensor.data_type in _ARRAY_TYPES and _size(tensor) >= _SMALL_BYTES:
            weights[tensor.name] = tensor_array(tensor)
            light.graph.initializer.append(outside(tensor.name, weights[tensor.name]))
        elif is_external(tensor):
            array = tensor_array(tensor)
            light.graph.initializer.append(onnx.numpy_helper.from_array(array, tensor.name))
        else:
            light.graph.initializer.append(tensor)
    return LightModel(light, weights)


def sharing(model: LightModel, other: LightModel) -> LightModel:
    """Return the model with the other's array in place of each equal one of the same name."""
    weights = dict(model.weights)
    for name, array in other.weights.items():
        mine = weights.get(name)
        if mine is not None and mine.dtype == array.dtype and np.array_equal(mine, array):
            weights[name] = array
    return LightModel(model.model, weights)


def outside(name: str, array: NDArray[np.generic]) -> onnx.TensorProto:
    """Return an initializer that says its bytes are elsewhere."""
    tensor = onnx.TensorProto(
        name=name,
        dims=array.shape,
        data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype),
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in (("location", "memory"), ("offset", "0"), ("length", str(array.nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def without_unread(model: LightModel) -> LightModel:
    """Return the model without the weights that nothing in it reads."""
    read = {name for node in model.model.graph.node for name in names_read(node)}
    read.update(value.name for value in model.model.graph.output)
    unread = model.weights.keys() - read
    if not unread:
        return model
    trimmed = onnx.ModelProto()
    trimmed.CopyFrom(model.model)
    kept = [tensor for tensor in model.model.graph.initializer if tensor.name not in unread]
    del trimmed.graph.initializer[:]
    trimmed.graph.initializer.extend(kept)
    return LightModel(trimmed, {n: a for n, a in model.weights.items() if n in read})


def with_outputs(model: onnx.ModelProto | LightModel, names: Sequence[str]) -> LightModel:
    """Return the model with more of its values as outputs; those that are outputs already stay."""
    light = lighten(model)
    have = {output.name for output in light.model.graph.output}
    extra = [name for name in dict.fromkeys(names) if name not in have]
    if not extra:
        return light
    tapped = onnx.ModelProto()
    tapped.CopyFrom(light.model)
    known = {value.name: value for value in (*tapped.graph.value_info, *tapped.graph.input)}
    for name in extra:
        tapped.graph.output.append(known.get(name) or onnx.ValueInfoProto(name=name))
    return LightModel(tapped, light.weights)


def without_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model's header: versions, opsets, functions, metadata."""
    header = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name == "graph":
            continue
        if isinstance(value, str | int):
            setattr(header, field.name, value)
        else:
            getattr(header, field.name).extend(value)
    return header


def _size(tensor: onnx.TensorProto) -> int:
    """Return the tensor's size in bytes, from its shape and type."""
    count = int(np.prod(tensor.dims, dtype=np.int64))
    return count * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
