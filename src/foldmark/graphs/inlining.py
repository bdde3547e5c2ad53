"""Graphs copied into graphs, with names that stay apart."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray

__all__ = ["Outer", "inline", "names_read", "replaced_nodes", "reread", "subgraphs"]


class Outer:
    """A graph that takes in others: its constants, and names that nothing in it has yet.

    Attributes:
        graph: the graph, as it was when names were gathered but for constants.
        read: the values that its nodes and outputs read.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self._taken = {value.name for value in graph.input}
        self._taken |= {tensor.name for tensor in graph.initializer}
        self._taken |= {name for node in graph.node for name in node.output}
        self._nodes = {node.name for node in graph.node}
        self.read = {value.name for value in graph.output}
        self.read |= {name for node in graph.node for name in names_read(node)}

    def fresh(self, wanted: str) -> str:
        """Return the wanted value name, or the first numbered one that is free."""
        return _free(wanted, self._taken)

    def fresh_node(self, wanted: str) -> str:
        """Return the wanted node name, or the first numbered one that is free."""
        return _free(wanted, self._nodes) if wanted else ""

    def constant(self, wanted: str, value: NDArray[np.generic] | np.generic) -> str:
        """Add a constant and return its name."""
        name = self.fresh(wanted)
        self.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def take(self, tensor: onnx.TensorProto, wanted: str) -> str:
        """Add a copy of a tensor and return its name."""
        copy = self.graph.initializer.add()
        copy.CopyFrom(tensor)
        copy.name = self.fresh(wanted)
        return copy.name


def _free(wanted: str, taken: set[str]) -> str:
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted} #{number}"
    taken.add(name)
    return name


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs inside a node."""
    return [
        graph
        for attribute in node.attribute
        for graph in ([attribute.g] if attribute.HasField("g") else attribute.graphs)
    ]


def names_read(node: onnx.NodeProto) -> set[str]:
    """Return the values that a node reads, those inside its subgraphs included."""
    names = set(node.input)
    for graph in subgraphs(node):
        names.update(value.name for value in graph.output)
        for child in graph.node:
            names |= names_read(child)
    return names


def reread(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Let a node, and the graphs inside it, read values by other names."""
    node.input[:] = [names.get(name, name) for name in node.input]
    for graph in subgraphs(node):
        own = {value.name for value in graph.input}
        own |= {tensor.name for tensor in graph.initializer}
        own |= {name for child in graph.node for name in child.output}
        seen = {old: new for old, new in names.items() if old not in own}
        for child in graph.node:
            reread(child, seen)
        for value in graph.output:
            value.name = seen.get(value.name, value.name)


def inline(
    graph: onnx.GraphProto,
    outer: Outer,
    inputs: Mapping[str, str],
    outputs: Sequence[str] = (),
    suffix: str = "",
) -> tuple[list[onnx.NodeProto], list[str]]:
    """Return a subgraph's nodes as nodes of the graph around it, and where its outputs are.

    Args:
        graph: the subgraph; it is not changed.
        outer: takes the subgraph's constants and gives out names.
        inputs: the subgraph's inputs -> values of `outer`.
        outputs: names that the outputs must get, one each; any name when empty.
        suffix: appended to every name made inside.
    """
    renamed = dict(inputs)
    made = {name for node in graph.node for name in node.output if name}
    results = [value.name for value in graph.output]
    for inside, wanted in zip(results, outputs, strict=False):
        if inside in made and inside not in renamed:
            renamed[inside] = wanted
    for tensor in graph.initializer:
        renamed[tensor.name] = outer.take(tensor, f"{tensor.name}{suffix}")
    nodes = []
    for node in graph.node:
        copied = onnx.NodeProto()
        copied.CopyFrom(node)
        reread(copied, renamed)
        copied.name = outer.fresh_node(f"{node.name}{suffix}" if node.name else "")
        for i, name in enumerate(node.output):
            if name and name not in renamed:
                renamed[name] = outer.fresh(f"{name}{suffix}")
            copied.output[i] = renamed.get(name, name)
        nodes.append(copied)
    arrived = [renamed.get(name, name) for name in results]
    for i, wanted in enumerate(outputs):
        if arrived[i] != wanted:
            nodes.append(onnx.helper.make_node("Identity", [arrived[i]], [wanted], name=wanted))
            arrived[i] = wanted
    return nodes, arrived


def replaced_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Let a graph have these nodes, some of which it may have already."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
