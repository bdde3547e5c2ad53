"""Values that follow from constants alone, and nodes that nothing reads once they are stored."""

from collections import Counter

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.runtimes.onnxruntime import Session
from foldmark.surgery.editor import Editor, Scope, array_of

__all__ = ["computed_constant", "drop_unread"]

_LONGEST = 64  # nodes of a computation that is followed


def computed_constant(name: str, scope: Scope, editor: Editor) -> NDArray[np.generic] | None:
    """Return a value that follows from constants alone, by running what computes it; else None.

    Exporters write shapes, paddings and the order of an LSTM's gates as small computations on
    constants. Constants and nodes of the graphs around count as well.
    """
    found = scope.find(name)
    if found is not None:
        return np.asarray(array_of(found[1]))
    makers: dict[str, onnx.NodeProto] = {}
    place: Scope | None = scope
    while place is not None:
        for node in place.graph.node:
            for output in node.output:
                makers.setdefault(output, node)
        place = place.parent
    wanted, needed, stored = [name], dict[str, onnx.NodeProto](), set[str]()
    while wanted:
        each = wanted.pop()
        if not each or scope.find(each) is not None:
            stored |= {each} - {""}
        elif each not in makers or len(needed) > _LONGEST or _holds_graphs(makers[each]):
            return None
        elif each not in needed:
            needed |= dict.fromkeys(makers[each].output, makers[each])
            wanted += makers[each].input
    model = onnx.ModelProto(ir_version=editor.model.ir_version)
    model.opset_import.extend(editor.model.opset_import)
    model.graph.name = "constants"
    model.graph.node.extend(_in_order(needed, stored))
    for each in stored:
        inner = scope.find(each)
        assert inner is not None
        array = np.asarray(array_of(inner[1]))
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, each))
    model.graph.output.append(onnx.ValueInfoProto(name=name))
    return Session(model, threads=1).run({})[name]


def drop_unread(scope: Scope, editor: Editor) -> None:
    """Take away the nodes of a graph whose results nothing reads any more, and what fed them."""
    readers = Counter(
        name
        for each in editor.scopes()
        for name in (
            *(name for node in each.graph.node for name in node.input),
            *(value.name for value in each.graph.output),
        )
    )
    kept = []
    for node in reversed(scope.graph.node):
        if any(readers[name] for name in node.output) or _holds_graphs(node):
            kept.append(node)
        else:
            readers.subtract(node.input)
    if len(kept) != len(scope.graph.node):
        editor.replace_nodes(scope, reversed(kept))


def _in_order(needed: dict[str, onnx.NodeProto], stored: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes so that each stands behind what it reads."""
    made, ordered = stored | {""}, list[onnx.NodeProto]()
    waiting = list({id(node): node for node in needed.values()}.values())
    while waiting:
        ready = [node for node in waiting if made.issuperset(node.input)]
        ordered += ready
        made |= {name for node in ready for name in node.output}
        waiting = [node for node in waiting if not made.issuperset(node.output)]
    return ordered


def _holds_graphs(node: onnx.NodeProto) -> bool:
    return any(each.HasField("g") or each.graphs for each in node.attribute)
