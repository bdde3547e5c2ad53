"""QuantizeLinear and DequantizeLinear, of ONNX and of com.microsoft, and DynamicQuantizeLinear."""

import onnx

from foldmark.graphs.reading.codes import decode
from foldmark.graphs.reading.parameters import parameters_of
from foldmark.graphs.reading.workspace import Workspace

__all__ = ["dequantize_linear"]


def dequantize_linear(space: Workspace, node: onnx.NodeProto) -> None:
    """Read DequantizeLinear: the float value is that of its codes, wherever they come from."""
    decode(space, node.input[0], parameters_of(space, node), wanted=node.output[0])
