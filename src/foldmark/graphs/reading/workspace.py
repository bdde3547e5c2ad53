"""The graph being rewritten: its constants, the nodes written so far, the sites found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from foldmark.errors import OperatorNotSupported
from foldmark.formats.onnx_kept import Kept
from foldmark.formats.onnx_tensor import tensor_array
from foldmark.graphs.reading.nodes import used_inside
from foldmark.graphs.reading.original import OriginalGraph
from foldmark.graphs.sites import Encoding, OddScale

__all__ = [
    "Accumulator",
    "Draft",
    "StoredWeight",
    "Workspace",
]


@dataclass
class Draft:
    """A site as it is found, before the float weights are known.

    Attributes:
        name: the name to show.
        before: value of the simulated graph that is quantized, "" for a stored weight.
        after: the value quantized and dequantized; an initializer for weights.
        encoding: number format and granularity.
        codes: stored codes of a weight in the layout of `after`, None for activations.
        names: names under which the float original may be known, the likeliest first.
        own: the float weight when the quantized model itself still stores it.
    """

    name: str
    before: str
    after: str
    encoding: Encoding
    codes: NDArray[Any] | None = None
    names: tuple[str, ...] = ()
    own: NDArray[Any] | None = None

    @property
    def is_weight(self) -> bool:
        """True when the site's tensor is a constant of the model."""
        return self.codes is not None


@dataclass(frozen=True)
class Accumulator:
    """An integer product whose scale is not complete yet.

    Attributes:
        node: the MatMulInteger or ConvInteger.
        factors: names of what it was multiplied by so far.
    """

    node: onnx.NodeProto
    factors: tuple[str, ...] = ()


@dataclass(frozen=True)
class StoredWeight:
    """A constant that Cast, Sub and Mul are turning from codes into real values.

    Attributes:
        name: of the constant.
        codes: as stored, moved as the graph moved them.
        scale: of the codes' rank, broadcasts to their shape.
        zero_point: like scale, None for none.
        gather: the Gather that takes some rows of it before it is real, if there is one.
    """

    name: str
    codes: NDArray[Any]
    scale: NDArray[Any]
    zero_point: NDArray[Any] | None = None
    gather: onnx.NodeProto | None = None


@dataclass
class Workspace:
    """A model's graph on its way to the simulated form.

    Nodes are visited in graph order; each is copied or replaced. Values keep their names, so
    that every float value of the original is found under its own name afterwards.

    Attributes:
        model: the model being read, never changed.
        constants: initializers and Constant nodes by name.
        producers: the original node of each value.
        consumers: the original nodes that read each value.
        kept: names that must survive: graph outputs and what subgraphs read from outside.
        nodes: the nodes written so far.
        drafts: the sites found so far.
        made: the written node of each value.
        original: the float model's graph, None when there is none.
        decoded: float value of (codes, scale, zero point, axis, block size).
        accumulators: integer products on their way to be real.
        stored: constants on their way to be real.
        titles: what to call a value to the reader, where that is not its name.
        pending: values whose replacement is written when something first reads them.
        given: names of the constants that the model came with.
        odd_scales: scales that are no normal positive numbers, by name.
        files: makes tensors of what is computed while reading.
    """

    model: onnx.ModelProto
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    producers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    consumers: dict[str, list[onnx.NodeProto]] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)
    decoded: dict[tuple[object, ...], str] = field(default_factory=dict)
    accumulators: dict[str, Accumulator] = field(default_factory=dict)
    stored: dict[str, StoredWeight] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    made: dict[str, onnx.NodeProto] = field(default_factory=dict)
    original: OriginalGraph | None = None
    pending: dict[str, Callable[[], None]] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    odd_scales: dict[str, OddScale] = field(default_factory=dict)
    files: Kept = field(default_factory=Kept)
    _alias: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, model: onnx.ModelProto, original: OriginalGraph | None = None) -> "Workspace":
        """Index a model's graph."""
        space = cls(model, original=original)
        graph = model.graph
        space.constants = {tensor.name: tensor for tensor in graph.initializer}
        space.given = frozenset(space.constants)
        for node in graph.node:
            for name in node.output:
                space.producers[name] = node
            inside = set(used_inside(node))
            space.kept |= inside
            for name in {*node.input, *inside}:
                space.consumers.setdefault(name, []).append(node)
        space.kept |= {value.name for value in graph.output}
        space._taken = {*space.constants, *space.producers, *(v.name for v in graph.input), ""}
        return space

    def opset(self, domain: str = "") -> int:
        """Return the version of an operator set that the model imports, 0 when it does not."""
        names = {"", "ai.onnx"} if domain == "" else {domain}
        return max((o.version for o in self.model.opset_import if o.domain in names), default=0)

    def fresh(self, base: str) -> str:
        """Return a value name that nothing uses yet."""
        name, number = base, 1
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name

    def value(self, name: str) -> str:
        """Return the name that stands for an original value in the rewritten graph."""
        settle = self.pending.pop(name, None)
        if settle is not None:
            settle()
        while name in self._alias:
            name = self._alias[name]
        return name

    def equate(self, name: str, other: str) -> None:
        """Let an original value be another one from here on."""
        other = self.value(other)
        if name == other:
            return
        if name in self.kept:
            self.write(helper.make_node("Identity", [other], [name], name=f"{name}_copy"))
        else:
            self._alias[name] = other

    def copy(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Write an original node as it is, its inputs renamed."""
        written = onnx.NodeProto()
        written.CopyFrom(node)
        for place, name in enumerate(node.input):
            written.input[place] = self.value(name)
        return self.write(written)

    def write(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Write a node whose inputs are names of the rewritten graph."""
        self.nodes.append(node)
        for name in node.output:
            self.made[name] = node
        return node

    def emit(
        self,
        operator: str,
        inputs: Sequence[str],
        output: str,
        *,
        name: str = "",
        domain: str = "",
        attributes: dict[str, object] | None = None,
    ) -> str:
        """Write a new node with one output and return the output's name."""
        node = helper.make_node(
            operator,
            list(inputs),
            [output],
            name=name or output,
            domain=domain,
            **(attributes or {}),
        )
        self.write(node)
        return output

    def constant(self, array: NDArray[Any], base: str) -> str:
        """Add a constant and return its name."""
        name = self.fresh(base)
        self.constants[name] = numpy_helper.from_array(np.asarray(array), name)
        return name

    def array(self, name: str) -> NDArray[Any] | None:
        """Return the elements of a constant, None for any other value."""
        tensor = self.constants.get(self.value(name))
        return None if tensor is None else tensor_array(tensor)

    def need(self, node: onnx.NodeProto, place: int) -> NDArray[Any]:
        """Return the constant at an input of a node that must be one.

        Raises:
            OperatorNotSupported: the input is computed at run time, or absent.
        """
        name = node.input[place] if place < len(node.input) else ""
        array = self.array(name)
        if array is None:
            raise OperatorNotSupported(
                f"{node.op_type} whose input {place} is not a constant",
                where=f"node {node.name or node.output[0]!r}",
                got=f"{name!r} computed at run time" if name else "no such input",
            )
        return array
