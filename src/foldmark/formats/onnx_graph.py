"""The constants and nodes of an ONNX model, by name, its subgraphs' among them."""

from dataclasses import dataclass, field
from pathlib import Path

import onnx

from foldmark.errors import HostileFile

__all__ = ["Graph", "attribute", "collect"]


@dataclass
class Graph:
    """Initializers and nodes of a model and its subgraphs, by name.

    Attributes:
        path: the model's file.
        tensors: every initializer, and every Constant node's tensor.
        nodes: every node.
        users: the nodes that take a value.
        makers: the node that makes a value.
        taken: names that belong to a weight.
    """

    path: Path
    tensors: dict[str, onnx.TensorProto] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    users: dict[str, list[onnx.NodeProto]] = field(default_factory=dict)
    makers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def constant(self, node: onnx.NodeProto, place: int) -> onnx.TensorProto | None:
        """Return the constant at an input, None when there is none."""
        if not 0 <= place < len(node.input):
            return None
        return self.tensors.get(node.input[place])


def collect(graph: onnx.GraphProto, into: Graph) -> None:
    """Add a graph's constants and nodes.

    Raises:
        HostileFile: a name that is no text, which protobuf hands out as bytes.
    """
    # nodes first, as they stand in the file: their constants' places are looked for in that order
    for node in graph.node:
        _demand_text(into.path, node.name, node.op_type, *node.input, *node.output)
        into.nodes.append(node)
        for name in node.input:
            into.users.setdefault(name, []).append(node)
        for name in node.output:
            into.makers[name] = node
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.type == onnx.AttributeProto.TENSOR:
                into.tensors.setdefault(node.output[0] if node.output else "", attribute.t)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                collect(attribute.g, into)
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                for inner in attribute.graphs:
                    collect(inner, into)
    for tensor in graph.initializer:
        _demand_text(into.path, tensor.name)
        into.tensors.setdefault(tensor.name, tensor)


def _demand_text(path: Path, *names: str | bytes) -> None:
    for name in names:
        if not isinstance(name, str):
            raise HostileFile("a name is not text", where=str(path), got=repr(name[:40]))


def attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    """Return an integer attribute, the default where it is absent or something else."""
    for each in node.attribute:
        if each.name == name and each.type == onnx.AttributeProto.INT:
            return int(each.i)
    return default
