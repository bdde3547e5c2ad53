"""What a node says of itself: its attributes, its subgraphs, the values these read."""

from collections.abc import Iterable, Iterator
from typing import Any

import onnx
from onnx import helper

__all__ = ["attributes", "subgraphs", "used_inside"]


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes as Python values."""
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def subgraphs(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield the name and graph of each subgraph of a node (If, Loop, Scan)."""
    for item in node.attribute:
        if item.type == onnx.AttributeProto.GRAPH:
            yield item.name, item.g
        elif item.type == onnx.AttributeProto.GRAPHS:
            yield from ((item.name, graph) for graph in item.graphs)


def used_inside(node: onnx.NodeProto) -> Iterable[str]:
    """Return the names that a node's subgraphs read from the graph around them."""
    for _, graph in subgraphs(node):
        known = {tensor.name for tensor in graph.initializer}
        known |= {value.name for value in graph.input}
        for inner in graph.node:
            yield from (name for name in (*inner.input, *used_inside(inner)) if name not in known)
            known |= set(inner.output)
        yield from (value.name for value in graph.output if value.name not in known)
