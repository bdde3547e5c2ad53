"""A model under edit: constants found through every enclosing graph, nodes replaced."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from foldmark.formats.onnx_tensor import tensor_array

__all__ = ["Editor", "Scope", "array_of", "attribute", "consumers", "node_name"]

Array = NDArray[np.generic]


def attribute(node: onnx.NodeProto, name: str, default: float) -> float:
    """Return a numeric attribute of a node."""
    for each in node.attribute:
        if each.name == name:
            return each.f if each.type == onnx.AttributeProto.FLOAT else each.i
    return default


def node_name(node: onnx.NodeProto) -> str:
    """Return what reports call a node: its name, or its first output when it has none."""
    return node.name or node.output[0]


def array_of(tensor: TensorProto) -> Array:
    """Return a tensor's values."""
    return tensor_array(tensor)


@dataclass
class Scope:
    """A graph and the graphs around it.

    Attributes:
        graph: the graph.
        parent: the graph that holds its node, None for the outermost.
        stored: initializers and Constant outputs of this graph by name.
    """

    graph: onnx.GraphProto
    parent: "Scope | None" = None
    stored: dict[str, TensorProto] = field(default_factory=dict)

    def find(self, name: str) -> tuple["Scope", TensorProto] | None:
        """Return a constant by name and the scope that it lies in."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.stored:
                return scope, scope.stored[name]
            scope = scope.parent
        return None

    def add(self, name: str, array: Array | TensorProto) -> str:
        """Store a constant and return its name."""
        tensor = array
        if not isinstance(tensor, TensorProto):
            tensor = numpy_helper.from_array(np.asarray(array), name)
        self.graph.initializer.append(tensor)
        self.stored[name] = tensor
        return name


class Editor:
    """A copy of a model, taken apart for editing.

    Args:
        model: the model; it is not changed.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.names = {value.name for value in model.graph.input}
        self.root = self._open(self.model.graph, None)
        self._scopes: list[Scope] = list(self._walk(self.root))

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return next(o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx"))

    def scopes(self) -> Iterator[Scope]:
        """Yield every graph, outermost first."""
        yield from self._scopes

    def fresh(self, name: str) -> str:
        """Return a name that nothing in the model has yet, and keep it."""
        chosen, number = name, 1
        while chosen in self.names:
            number += 1
            chosen = f"{name}_{number}"
        self.names.add(chosen)
        return chosen

    def use_domain(self, domain: str, version: int) -> None:
        """Import an operator domain."""
        if all(each.domain != domain for each in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid(domain, version))

    def replace_nodes(self, scope: Scope, nodes: Iterable[onnx.NodeProto]) -> None:
        """Give a graph other nodes."""
        kept = list(nodes)
        copies = []
        for node in kept:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copies.append(copy)
        del scope.graph.node[:]
        scope.graph.node.extend(copies)

    def reopen(self) -> None:
        """Find the graphs again after nodes that hold graphs were replaced."""
        self.root = self._open(self.model.graph, None)
        self._scopes = list(self._walk(self.root))

    def finish(self) -> onnx.ModelProto:
        """Return the edited model without the constants and value notes that nothing uses."""
        self.reopen()
        used = self._used()
        for scope in self._scopes:
            graph = scope.graph
            # One by one from behind: building the list again would copy every weight.
            for place in reversed(range(len(graph.initializer))):
                if graph.initializer[place].name not in used:
                    del graph.initializer[place]
            for place in reversed(range(len(graph.node))):
                node = graph.node[place]
                if node.op_type == "Constant" and used.isdisjoint(node.output):
                    del graph.node[place]
            # An initializer that is also listed as an input must stay one or vanish from both.
            stored = {tensor.name for tensor in graph.initializer}
            inputs = [
                value
                for value in graph.input
                if value.name in used or value.name not in scope.stored
            ]
            gone = [v for v in graph.input if v not in inputs and v.name not in stored]
            for value in gone:
                graph.input.remove(value)
            del graph.value_info[:]
        return self.model

    def _used(self) -> set[str]:
        used = set()
        for scope in self._scopes:
            used |= {value.name for value in scope.graph.output}
            for node in scope.graph.node:
                used |= set(node.input)
        return used

    def _open(self, graph: onnx.GraphProto, parent: Scope | None) -> Scope:
        scope = Scope(graph, parent)
        for tensor in graph.initializer:
            scope.stored[tensor.name] = tensor
        for node in graph.node:
            self.names |= {node.name, *node.output}
            if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
                scope.stored[node.output[0]] = node.attribute[0].t
        self.names |= set(scope.stored)
        return scope

    def _walk(self, scope: Scope) -> Iterator[Scope]:
        yield scope
        for node in scope.graph.node:
            for each in node.attribute:
                graphs = [each.g] if each.HasField("g") else []
                for graph in (*graphs, *each.graphs):
                    yield from self._walk(self._open(graph, scope))


def consumers(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    """Return who reads each value of a graph; a branch counts as a reader of what it captures."""
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in dict.fromkeys((*node.input, *_captured(node))):
            if name:
                readers[name].append(node)
    return readers


def _captured(node: onnx.NodeProto) -> Iterator[str]:
    for each in node.attribute:
        for graph in (*([each.g] if each.HasField("g") else []), *each.graphs):
            for inner in graph.node:
                yield from inner.input
                yield from _captured(inner)
            yield from (value.name for value in graph.output)
