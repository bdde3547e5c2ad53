"""Putting a model into the plain form that the reader expects."""

import numpy as np
import onnx
from onnx import inliner, numpy_helper

from foldmark.graphs.reading.workspace import attributes

__all__ = ["prepared"]

_DTYPES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without local functions and with every Constant node an initializer.

    The model given is not changed; it is returned itself when there is nothing to do.
    """
    if model.functions:
        model = inliner.inline_local_functions(model)
    if not any(node.op_type == "Constant" for node in model.graph.node):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        tensor = _constant(node) if node.op_type == "Constant" else None
        if tensor is None:
            graph.node.append(node)
        else:
            graph.initializer.append(tensor)
    return changed


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return what a Constant node holds under the name of its output, None if not a tensor."""
    (key, value), *_ = attributes(node).items()
    if key == "value":
        tensor = onnx.TensorProto()
        tensor.CopyFrom(value)
        tensor.name = node.output[0]
        return tensor
    dtype = _DTYPES.get(key)
    if dtype is None:
        return None
    return numpy_helper.from_array(np.asarray(value, dtype=dtype), node.output[0])
