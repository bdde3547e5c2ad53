"""A model with its large weights set aside, for tools that serialise what they are given."""

from collections.abc import Callable

import onnx

from foldmark.formats.onnx_tensor import element_count, is_external, tensor_array
from foldmark.graphs.light import without_graph

__all__ = ["with_weights_apart"]

# Shapes, axes and limits stay: converters read them.
_SMALL_ELEMENTS = 1024


def with_weights_apart(
    model: onnx.ModelProto, change: Callable[[onnx.ModelProto], onnx.ModelProto]
) -> onnx.ModelProto:
    """Return `change(model)`, whose large weights `change` saw as inputs without a value.

    Whatever their size, the weights are neither copied nor serialised on the way.
    """
    light = onnx.ModelProto()
    light.CopyFrom(without_graph(model))
    weights = [
        tensor for tensor in model.graph.initializer if element_count(tensor) > _SMALL_ELEMENTS
    ]
    names = {tensor.name for tensor in weights}
    declared = {value.name for value in model.graph.input}
    for field, entries in model.graph.ListFields():
        if field.name == "initializer":
            light.graph.initializer.extend(_stays(t) for t in entries if t.name not in names)
        elif isinstance(entries, str):
            setattr(light.graph, field.name, entries)
        else:
            getattr(light.graph, field.name).extend(entries)
    for tensor in weights:
        if tensor.name not in declared:
            light.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    made = change(light)
    kept = [each for each in made.graph.input if each.name not in names - declared]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    made.graph.initializer.extend(weights)
    return made


def _stays(tensor: onnx.TensorProto) -> onnx.TensorProto:
    if not is_external(tensor):
        return tensor
    return onnx.numpy_helper.from_array(tensor_array(tensor), tensor.name)
