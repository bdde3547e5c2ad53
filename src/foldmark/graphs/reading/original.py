"""The float model beside the quantized one: who makes and who reads each of its values."""

import onnx

from foldmark.formats.onnx_tensor import tensor_array
from foldmark.graphs.reading.nodes import attributes

__all__ = ["CLIPPING", "Bounds", "OriginalGraph"]

CLIPPING = frozenset({"Relu", "Clip"})

# The lowest and the highest value let through, None where there is no bound.
Bounds = tuple[float | None, float | None]


class OriginalGraph:
    """The float model's nodes, found by the values that they make and read."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.makers = {name: node for node in graph.node for name in node.output}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self.outputs = {value.name for value in graph.output}

    def clipping(self, value: str) -> onnx.NodeProto | None:
        """Return the Relu or Clip that makes a value, or is all that becomes of it."""
        maker = self.makers[value]
        if maker.op_type in CLIPPING:
            return maker
        readers = self.readers.get(value, [])
        if len(readers) == 1 and readers[0].op_type in CLIPPING and value not in self.outputs:
            return readers[0]
        return None

    def bounds(self, node: onnx.NodeProto) -> Bounds:
        """Return the lowest and highest value that a Relu or Clip lets through."""
        if node.op_type == "Relu":
            return 0.0, None
        given = attributes(node)
        low, high = (given.get("min"), given.get("max"))
        found = [self._number(name) for name in [*node.input[1:3], "", ""][:2]]
        return (
            found[0] if found[0] is not None else _number(low),
            found[1] if found[1] is not None else _number(high),
        )

    def _number(self, name: str) -> float | None:
        if name in self._constants:
            return float(tensor_array(self._constants[name]).reshape(()))
        maker = self.makers.get(name)
        value = attributes(maker).get("value") if maker is not None else None
        return None if value is None else float(onnx.numpy_helper.to_array(value).reshape(()))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
