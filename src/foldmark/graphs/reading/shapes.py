"""Ranks and element types of values, as far as ONNX's inference knows them."""

import onnx
from onnx import helper

from foldmark.graphs.reading.workspace import Workspace

__all__ = ["element_types", "rank_of"]

# Constants of more elements never hold a shape, and are left out of inference.
_SHAPE_LIKE = 64


def rank_of(space: Workspace, value: str) -> int | None:
    """Return how many axes a value of the rewritten graph has, None when it can't be told."""
    array = space.constants.get(value)
    if array is not None:
        return len(array.dims)
    inferred = _inferred(space, space.nodes)
    info = inferred.get(value)
    if info is None or not info.HasField("shape"):
        return None
    return len(info.shape.dim)


def element_types(space: Workspace, nodes: list[onnx.NodeProto]) -> dict[str, int]:
    """Return the element type of every value that inference reaches."""
    known = {name: tensor.data_type for name, tensor in space.constants.items()}
    return known | {n: i.elem_type for n, i in _inferred(space, nodes).items() if i.elem_type}


def _inferred(space: Workspace, nodes: list[onnx.NodeProto]) -> dict[str, onnx.TypeProto.Tensor]:
    """Infer over the nodes written so far, large constants given by type and shape alone."""
    source = space.model
    large, small = [], []
    for name, tensor in space.constants.items():
        if sum(1 for _ in tensor.dims) <= 1 and not any(d > _SHAPE_LIKE for d in tensor.dims):
            small.append(tensor)
        else:
            large.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    given = [value for value in source.graph.input if value.name not in space.constants]
    graph = helper.make_graph(nodes, "shapes", [*given, *large], [], small)
    light = helper.make_model(graph, opset_imports=source.opset_import)
    inferred = onnx.shape_inference.infer_shapes(light, data_prop=True)
    values = [*given, *large, *inferred.graph.value_info, *source.graph.value_info]
    return {value.name: value.type.tensor_type for value in reversed(values)}
