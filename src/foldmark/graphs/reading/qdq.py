"""QuantizeLinear and DequantizeLinear, of ONNX and of com.microsoft, and DynamicQuantizeLinear."""

import onnx

from foldmark.graphs.reading.codes import decode
from foldmark.graphs.reading.integer import scale_accumulator
from foldmark.graphs.reading.parameters import parameters_of
from foldmark.graphs.reading.workspace import Workspace

__all__ = ["dequantize_linear"]


def dequantize_linear(space: Workspace, node: onnx.NodeProto) -> None:
    """Read DequantizeLinear: the float value is that of its codes, wherever they come from."""
    if node.input[0] in space.accumulators and not _shifts(space, node):
        scale_accumulator(space, node, node.input[0], node.input[1])
    else:
        decode(space, node.input[0], parameters_of(space, node), wanted=node.output[0])


def _shifts(space: Workspace, node: onnx.NodeProto) -> bool:
    zero_point = space.array(node.input[2]) if len(node.input) > 2 else None
    return zero_point is not None and bool(zero_point.any())
