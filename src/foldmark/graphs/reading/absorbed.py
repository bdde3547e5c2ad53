"""Relu and Clip that a quantizer dropped, since the range of the codes does their work."""

import ml_dtypes
import numpy as np
import onnx

from foldmark.graphs.reading.names import without_suffixes
from foldmark.graphs.reading.original import CLIPPING, Bounds
from foldmark.graphs.reading.workspace import Workspace
from foldmark.graphs.sites import Encoding

__all__ = ["original_name", "restored", "title"]

# Operators whose output has both signs, so that a range that starts at zero cuts it.
_SIGNED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "BatchNormalization"})


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
    if maker is not None and maker.op_type in CLIPPING:
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


def _write(space: Workspace, x: str, bounds: Bounds, node: onnx.NodeProto | None) -> str:
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
