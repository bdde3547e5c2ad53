"""Which module of the network a weight belongs to, where an exporter named it `val_118`."""

from collections.abc import Mapping

import onnx

from foldmark.formats.onnx_file import read_in_place
from foldmark.formats.onnx_graph import Graph, collect
from foldmark.formats.stored import Artefact
from foldmark.graphs.labels import Labels, module_path

__all__ = ["module_paths"]

# Operators that compute with a weight; others on the way only decode or move it.
_LAYERS = ("MatMul", "Gemm", "Conv", "Attention", "LSTM", "GRU", "Gather", "NBits")
_FAR = 5


def module_paths(artefact: Artefact) -> Mapping[str, str]:
    """Return the module of each quantized weight of an ONNX model whose own name tells none.

    Args:
        artefact: an opened file; those of other formats name their tensors by module.
    """
    if artefact.format_name != "ONNX":
        return {}
    wanted = [
        tensor.name
        for tensor in artefact.tensors
        if tensor.layout.is_quantized and not module_path(tensor.name)
    ]
    if not wanted:
        return {}
    graph = Graph(artefact.path)
    collect(read_in_place(artefact.path).graph, graph)
    labels = Labels(graph.nodes, graph.tensors)
    found = {name: _module(name, graph, labels) for name in wanted}
    return {name: path for name, path in found.items() if path}


def _module(name: str, graph: Graph, labels: Labels) -> str:
    """Follow a weight to the layer that takes it."""
    reached = [name]
    for _ in range(_FAR):
        users: list[onnx.NodeProto] = [n for value in reached for n in graph.users.get(value, [])]
        for node in users:
            if node.output and any(part in node.op_type for part in _LAYERS):
                return labels.of(node)
        reached = [value for node in users for value in node.output]
    return ""
