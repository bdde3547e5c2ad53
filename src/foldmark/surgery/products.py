"""The operators that dominate a model's time, and how each holds its weight."""

from dataclasses import dataclass
from enum import Enum

import numpy as np
import onnx

from foldmark.surgery.editor import Scope, array_of, attribute, node_name

__all__ = ["PRODUCTS", "ChannelFit", "Product", "find_product"]

PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE}


class ChannelFit(Enum):
    """Whether one scale per output channel can be written on one axis of the weight."""

    AXIS = "an axis of the weight counts the output channels"
    ONE = "the axis has a single entry: per channel is one scale"
    NOT_EXPRESSIBLE = "per channel is not expressible on one axis of a grouped transposed weight"


@dataclass(frozen=True)
class Product:
    """A node that multiplies activations by a stored weight.

    Attributes:
        node: the node.
        scope: the graph it is in.
        weight: name of the weight.
        home: the scope that the weight is stored in.
        shape: the weight's shape.
        channel_axis: the axis of the weight that counts output channels.
        fit: whether that axis says all.
        activation: index of the activation among the node's inputs.
    """

    node: onnx.NodeProto
    scope: Scope
    weight: str
    home: Scope
    shape: tuple[int, ...]
    channel_axis: int
    fit: ChannelFit
    activation: int = 0

    @property
    def name(self) -> str:
        """What reports call it."""
        return node_name(self.node)

    @property
    def transposed(self) -> bool:
        """True for a Gemm that stores its weight as (out, in)."""
        return self.node.op_type == "Gemm" and bool(attribute(self.node, "transB", 0))

    def values(self) -> np.ndarray:
        """Return the weight, in the layout it is stored in."""
        found = self.home.stored[self.weight]
        return array_of(found)


def find_product(node: onnx.NodeProto, scope: Scope) -> Product | str:
    """Return the node as a product, or the reason that it is none that can be quantized."""
    if node.op_type not in PRODUCTS:
        return f"no rule for {node.op_type}"
    found = scope.find(node.input[1]) if len(node.input) > 1 else None
    if found is None:
        if node.op_type == "MatMul" and scope.find(node.input[0]) is not None:
            return "the weight is the left factor; integer kernels take it on the right"
        return "both factors are computed: a product of two activations"
    home, tensor = found
    shape = tuple(tensor.dims)
    if reason := _unfit(node, tensor.data_type, shape):
        return reason
    axis, fit = _channel_axis(node, shape)
    return Product(node, scope, node.input[1], home, shape, axis, fit)


def _unfit(node: onnx.NodeProto, kind: int, shape: tuple[int, ...]) -> str:
    """Return why a weight can't be quantized here, "" when it can."""
    if kind not in _FLOATS:
        return "the weight is not float"
    if not all(shape):
        return "the weight is empty"
    if node.op_type == "MatMul" and len(shape) != 2:
        return f"the weight has {len(shape)} axes; a matrix is needed"
    if node.op_type == "Gemm" and attribute(node, "transA", 0):
        return "the activation is transposed"
    return ""


def _channel_axis(node: onnx.NodeProto, shape: tuple[int, ...]) -> tuple[int, ChannelFit]:
    match node.op_type:
        case "MatMul":
            axis = 1
        case "Gemm":
            axis = 0 if attribute(node, "transB", 0) else 1
        case "Conv":
            axis = 0
        case _:
            axis = 1
            if attribute(node, "group", 1) > 1 and shape[1] > 1:
                return axis, ChannelFit.NOT_EXPRESSIBLE
    return axis, ChannelFit.ONE if shape[axis] == 1 else ChannelFit.AXIS
