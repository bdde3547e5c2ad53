"""Putting a model into the plain form that the reader expects."""

import heapq

import numpy as np
import onnx
from onnx import inliner, numpy_helper

from foldmark.errors import HostileFile
from foldmark.graphs.reading.nodes import attributes, used_inside

__all__ = ["prepared"]

_DTYPES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without local functions, in order, every Constant node an initializer.

    The model given is not changed; it is returned itself when there is nothing to do.

    Raises:
        HostileFile: nodes that wait for each other.
    """
    if model.functions:
        model = inliner.inline_local_functions(model)
    order = _in_order(model.graph)
    sorted_already = all(place == index for place, index in enumerate(order))
    if sorted_already and not any(node.op_type == "Constant" for node in model.graph.node):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    nodes = [model.graph.node[index] for index in order]
    del graph.node[:]
    for node in nodes:
        tensor = _constant(node) if node.op_type == "Constant" else None
        if tensor is None:
            graph.node.append(node)
        else:
            graph.initializer.append(tensor)
    return changed


def _in_order(graph: onnx.GraphProto) -> list[int]:
    """Return the places of the nodes, each behind those whose values it reads.

    A graph that is in order already keeps it; some converters append nodes at the end.
    """
    makers = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    waiting: dict[int, set[int]] = {}
    readers: dict[int, list[int]] = {}
    for place, node in enumerate(graph.node):
        needed = {makers[n] for n in (*node.input, *used_inside(node)) if n in makers} - {place}
        waiting[place] = needed
        for maker in needed:
            readers.setdefault(maker, []).append(place)
    ready = [place for place, needed in waiting.items() if not needed]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for reader in readers.get(place, []):
            waiting[reader].discard(place)
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(waiting):
        stuck = graph.node[min(set(waiting) - set(order))]
        raise HostileFile("nodes wait for each other", where=f"node {stuck.name!r}")
    return order


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
