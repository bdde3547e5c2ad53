"""From a finished workspace to the simulated model and the float skeleton."""

from collections import Counter
from collections.abc import Iterable, Mapping

import onnx
from onnx import helper

from foldmark.graphs.reading.liveness import live_nodes
from foldmark.graphs.reading.nodes import used_inside
from foldmark.graphs.reading.workspace import Draft, Workspace

__all__ = ["assemble", "simulated_nodes", "skeleton_nodes"]


def simulated_nodes(space: Workspace) -> list[onnx.NodeProto]:
    """Return the nodes of the simulated graph that its outputs and its live sites need."""
    outputs = {value.name for value in space.model.graph.output}
    _, needed = live_nodes(space.nodes, outputs)
    tapped = {d.before for d in space.drafts if d.after in needed and not d.is_weight}
    return live_nodes(space.nodes, outputs | tapped)[0]


def skeleton_nodes(space: Workspace, drafts: Iterable[Draft]) -> list[onnx.NodeProto]:
    """Return the nodes of the graph without quantization: an Identity at every activation."""
    bypassed = {draft.after: draft for draft in drafts if not draft.is_weight}
    nodes = [
        helper.make_node("Identity", [draft.before], [draft.after], name=f"{draft.after}_site")
        if (draft := bypassed.get(node.output[0])) is not None
        else node
        for node in space.nodes
    ]
    outputs = [value.name for value in space.model.graph.output]
    return live_nodes(nodes, outputs)[0]


def assemble(
    space: Workspace,
    nodes: list[onnx.NodeProto],
    replaced: Mapping[str, onnx.TensorProto],
) -> onnx.ModelProto:
    """Return a model of these nodes with the workspace's inputs, outputs and constants.

    Args:
        space: the finished workspace.
        nodes: in graph order.
        replaced: tensors that stand in for constants, by the constant's name.
    """
    source = space.model
    model = onnx.ModelProto(ir_version=source.ir_version, producer_name="foldmark")
    model.opset_import.extend(source.opset_import)
    graph = model.graph
    graph.name = source.graph.name or "graph"
    graph.input.extend(v for v in source.graph.input if v.name not in space.constants)
    graph.output.extend(source.graph.output)
    graph.node.extend(_named_apart(nodes))
    needed = {value.name for value in source.graph.output}
    for node in nodes:
        needed.update(node.input)
        needed.update(used_inside(node))
    for name in sorted(needed & space.constants.keys()):
        tensor = replaced.get(name, space.constants[name])
        graph.initializer.append(tensor)
        graph.initializer[-1].name = name
    return model


def _named_apart(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return the nodes, those that share a name numbered; ONNX Runtime wants each its own."""
    seen: Counter[str] = Counter()
    named = []
    for node in nodes:
        seen[node.name] += 1
        if node.name and seen[node.name] > 1:
            numbered = onnx.NodeProto()
            numbered.CopyFrom(node)
            numbered.name = f"{node.name}#{seen[node.name]}"
            node = numbered  # noqa: PLW2901
        named.append(node)
    return named
