"""float16 and bfloat16: every value in float32, rounded where the half-precision model rounds.

    weights       the stored half is the code, its float32 value what it stands for
    activations   operator in float32 -> Cast to half -> Cast to float32: a site

An operator that moves or compares elements rounds nothing and gets no site. That is the
arithmetic of the specification; a runtime without half-precision kernels rounds less often.
"""

from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from foldmark.errors import OperatorNotSupported
from foldmark.formats.onnx_tensor import tensor_array
from foldmark.graphs.reading.absorbed import original_name, title
from foldmark.graphs.reading.arithmetic import format_name
from foldmark.graphs.reading.movement import is_movement
from foldmark.graphs.reading.nodes import attributes, subgraphs
from foldmark.graphs.reading.shapes import element_types
from foldmark.graphs.reading.workspace import Draft, Workspace
from foldmark.graphs.sites import Encoding

__all__ = ["widen"]

_FLOAT = onnx.TensorProto.FLOAT
_HALVES = frozenset({onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
_TO_HALF = frozenset({"Cast", "CastLike"})
# Operators besides the moving ones whose result on halves is a half.
_EXACT = frozenset({"Neg", "Abs", "Sign", "Round", "Floor", "Ceil", "TopK", "ConstantOfShape"})


def widen(space: Workspace) -> None:
    """Rewrite a workspace so that nothing but graph inputs and outputs is in half precision."""
    if not _has_halves(space):
        return
    types = _types(space)
    _Widening(space, types).run()


def _has_halves(space: Workspace) -> bool:
    if any(tensor.data_type in _HALVES for tensor in space.constants.values()):
        return True
    inputs = (value.type.tensor_type.elem_type for value in space.model.graph.input)
    casts = (attributes(n).get("to") for n in space.nodes if n.op_type == "Cast")
    return any(kind in _HALVES for kind in (*inputs, *casts))


def _types(space: Workspace) -> dict[str, int]:
    """Return each value's element type; where inference is silent, that of the first float."""
    types = element_types(space, space.nodes)
    for node in space.nodes:
        halves = [types[name] for name in node.input if types.get(name) in _HALVES]
        for name in node.output:
            if name not in types and halves:
                types[name] = halves[0]
    return types


class _Widening:
    """The pass over the nodes; `half` maps values in half precision to their type."""

    def __init__(self, space: Workspace, types: dict[str, int]) -> None:
        self.space = space
        self.half = {name: kind for name, kind in types.items() if kind in _HALVES}
        self.types = types
        self.names: dict[str, str] = {}
        self.drafted = {draft.after for draft in space.drafts}

    def run(self) -> None:
        nodes, self.space.nodes = self.space.nodes, []
        self._constants()
        for value in self.space.model.graph.input:
            if value.name in self.half and value.name not in self.space.constants:
                wide = self.space.fresh(f"{value.name}_float32")
                self.space.emit("Cast", [value.name], wide, attributes={"to": _FLOAT})
                self.names[value.name] = wide
        for value in self.space.model.graph.output:
            if value.name in self.half:
                self.names[value.name] = self.space.fresh(f"{value.name}_float32")
        for node in nodes:
            self._name_after_output(node)
        for node in nodes:
            self._node(node)
        for value in self.space.model.graph.output:
            if value.name in self.half:
                kind: dict[str, object] = {"to": self.half[value.name]}
                wide = self.names[value.name]
                self.space.emit("Cast", [wide], value.name, attributes=kind)
        self.space.drafts = [
            replace(d, before=self.name(d.before), after=self.name(d.after))
            for d in self.space.drafts
        ]

    def name(self, value: str) -> str:
        """Return the float32 value that stands for a value."""
        return self.names.get(value, value)

    def _constants(self) -> None:
        for name, tensor in list(self.space.constants.items()):
            if tensor.data_type not in _HALVES:
                continue
            codes = tensor_array(tensor)
            wide = numpy_helper.from_array(codes.astype(np.float32), name)
            self.space.constants[name] = wide
            if name not in self.drafted:
                encoding = Encoding(format_name(codes.dtype))
                self.space.drafts.append(Draft(name, "", name, encoding, codes, (name,)))

    def _name_after_output(self, node: onnx.NodeProto) -> None:
        """Call a value that a converter put before an output's Cast as that output."""
        if node.op_type == "Cast" and node.input[0] in self.half:
            source, value = node.input[0], node.output[0]
            if original_name(self.space, source) is None and original_name(self.space, value):
                self.space.titles[source] = value

    def _node(self, node: onnx.NodeProto) -> None:
        if self._reads_or_makes_half(node) and any(True for _ in subgraphs(node)):
            raise OperatorNotSupported(
                f"half precision in the subgraphs of {node.op_type}",
                where=f"node {node.name or node.output[0]!r}",
                todo="choose the branch that the data takes first",
            )
        made = [name for name in node.output if name in self.half]
        if node.op_type in _TO_HALF:
            self._cast(node)
        elif not made or self._is_exact(node):
            self._write(node, {})
        else:
            self._rounded(node, made)

    def _reads_or_makes_half(self, node: onnx.NodeProto) -> bool:
        return any(name in self.half for name in (*node.input, *node.output))

    def _is_exact(self, node: onnx.NodeProto) -> bool:
        return node.op_type in _EXACT or is_movement(node)

    def _write(self, node: onnx.NodeProto, outputs: dict[str, str]) -> None:
        written = onnx.NodeProto()
        written.CopyFrom(node)
        del written.input[:], written.output[:]
        written.input.extend(self.name(name) for name in node.input)
        written.output.extend(outputs.get(name, self.name(name)) for name in node.output)
        for item in written.attribute:
            if item.name == "value" and item.t.data_type in _HALVES:
                wide = tensor_array(item.t).astype(np.float32)
                item.t.CopyFrom(numpy_helper.from_array(wide))
            elif item.name in {"dtype", "output_dtype"} and item.i in _HALVES:
                item.i = _FLOAT
        self.space.write(written)

    def _rounded(self, node: onnx.NodeProto, made: list[str]) -> None:
        """Write an operator in float32 and round each of its results."""
        exact = {name: self.space.fresh(f"{name}_exact") for name in made}
        self._write(node, exact)
        for name in made:
            self._round(exact[name], name)

    def _round(self, x: str, value: str, shown: str = "") -> None:
        """Write the rounding of x to half precision; it gives what stands for `value`."""
        kind = self.half[value]
        short = self.space.fresh(f"{value}_half")
        self.space.emit("Cast", [x], short, attributes={"to": kind})
        self.space.emit("Cast", [short], self.name(value), attributes={"to": _FLOAT})
        if value not in self.drafted:
            encoding = Encoding(format_name(helper.tensor_dtype_to_np_dtype(kind)))
            name = shown or title(self.space, value)
            self.space.drafts.append(Draft(name, x, value, encoding))

    def _cast(self, node: onnx.NodeProto) -> None:
        source, value = node.input[0], node.output[0]
        kind = self.types.get(value)
        if kind in _HALVES:
            if self.half.get(source) == kind:
                self._same(source, value)
                return
            x = self.name(source)
            if source not in self.half and self.types.get(source) != _FLOAT:
                wide = self.space.fresh(f"{value}_exact")
                x = self.space.emit("Cast", [x], wide, attributes={"to": _FLOAT})
            self._round(x, value, title(self.space, source))
        elif kind == _FLOAT and source in self.half:
            self._same(source, value)
        else:
            self._write(node, {})

    def _same(self, source: str, value: str) -> None:
        """Let a Cast that changes nothing any more pass its input on."""
        self.space.emit("Identity", [self.name(source)], self.name(value))
