"""Nodes and constants that the outputs of a graph need."""

from collections.abc import Iterable

import onnx

from foldmark.graphs.reading.nodes import used_inside

__all__ = ["live_nodes"]


def live_nodes(
    nodes: list[onnx.NodeProto], outputs: Iterable[str]
) -> tuple[list[onnx.NodeProto], set[str]]:
    """Return the nodes that lead to the outputs, in order, and every name that they read."""
    needed = set(outputs)
    live = []
    for node in reversed(nodes):
        if needed.isdisjoint(node.output):
            continue
        live.append(node)
        needed.update(name for name in node.input if name)
        needed.update(used_inside(node))
    live.reverse()
    return live, needed
