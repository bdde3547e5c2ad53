"""Relu and Clip that a quantizer dropped, since the range of the codes does their work."""

import ml_dtypes
import numpy as np
import onnx

from foldmark.formats.onnx_tensor import tensor_array
from foldmark.graphs.reading.names import without_suffixes
from foldmark.graphs.reading.workspace import Workspace, attributes
from foldmark.graphs.sites import Encoding

__all__ = ["OriginalGraph", "original_name", "restored", "title"]

_Bounds = tuple[float | None, float | None]

_CLIPPING = frozenset({"Relu", "Clip"})
# Operators whose output has both signs, so that a range that starts at zero cuts it.
_SIGNED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "BatchNormalization"})


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
        if maker.op_type in _CLIPPING:
            return maker
        readers = self.readers.get(value, [])
        if len(readers) == 1 and readers[0].op_type in _CLIPPING and value not in self.outputs:
            return readers[0]
        return None

    def bounds(self, node: onnx.NodeProto) -> _Bounds:
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


def restored(space: Workspace, x: str, encoding: Encoding) -> str:
    """Return what the float model would have quantized: x, or x behind its Relu or Clip.

    The clipping operator is written beside the quantizer, which still reads x: the simulated
    model computes what it did, the site's error is measured against the clipped value, and
    the skeleton has its activation function back.

    The float model tells by the names of values; where it does not know them, a range that
    starts at exactly zero behind an operator of both signs counts as a Relu.
    """
    if encoding.scale is None or encoding.axis is not None:
        return x
    maker = space.made.get(x)
    if maker is not None and maker.op_type in _CLIPPING:
        return x
    name = original_name(space, x)
    if space.original is None or name is None:
        return _write(space, x, (0.0, None), None) if _starts_at_zero(space, x, encoding) else x
    node = space.original.clipping(name)
    if node is None or _survives(space, node):
        return x
    return _write(space, x, space.original.bounds(node), node)


def title(space: Workspace, value: str) -> str:
    """Return what to call a value: its name in the float model where that is known."""
    return space.titles.get(value) or original_name(space, value) or value


def original_name(space: Workspace, value: str) -> str | None:
    """Return a value's name in the float model, None when that has no such value."""
    if space.original is None:
        return None
    known = space.original.makers
    names = without_suffixes(space.titles.get(value, value))
    return next((name for name in names if name in known), None)


def _survives(space: Workspace, node: onnx.NodeProto) -> bool:
    """True when the quantized model still has the clipping operator."""
    maker = space.producers.get(node.output[0])
    return maker is not None and maker.op_type == node.op_type


def _starts_at_zero(space: Workspace, x: str, encoding: Encoding) -> bool:
    maker = space.made.get(x)
    if maker is None or maker.op_type not in _SIGNED or encoding.zero_point is None:
        return False
    if encoding.number_format.startswith("float"):
        return False
    return int(encoding.zero_point) == int(ml_dtypes.iinfo(encoding.zero_point.dtype).min)


def _write(space: Workspace, x: str, bounds: _Bounds, node: onnx.NodeProto | None) -> str:
    """Write a Relu or Clip, under the names that it has in the float model."""
    operator = "Relu" if bounds == (0.0, None) else "Clip"
    inputs = [x]
    for side, bound in zip(("low", "high"), bounds if operator == "Clip" else (), strict=False):
        known = bound is not None
        array = np.asarray(bound, np.float32)
        inputs.append(space.constant(array, f"{x}_{side}") if known else "")
    output = space.fresh(f"{x}_{operator.lower()}")
    shown = x if node is None else node.output[0]
    space.titles[output] = space.titles.get(shown, shown)
    return space.emit(operator, inputs, output, name="" if node is None else node.name)
