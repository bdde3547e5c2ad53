"""Integer products whose kernel ONNX Runtime has not sped up on x86: int8 codes on the left."""

import onnx
from onnx import TensorProto

from foldmark.runtimes.profile import all_graphs, all_nodes

__all__ = ["signed_products"]

# operator -> inputs that tell the type of the operand that its kernel takes on the left: the zero
# point of the activation, or what is multiplied itself. A ConvInteger takes its weight there.
_TELLS = {
    "QLinearConv": (2, 0),
    "QLinearMatMul": (2, 0),
    "QGemm": (2, 0),
    "MatMulInteger": (2, 0),
    "MatMulIntegerToFloat": (4, 0),
    "ConvInteger": (3, 1),
}


def signed_products(model: onnx.ModelProto) -> frozenset[str]:
    """Return the names of nodes that multiply int8 codes on the left of a product.

    On x86 processors the fast kernels take uint8 codes there; ONNX Runtime computes int8 codes
    with a plain loop, which may be slower than float. Pairs of QuantizeLinear and
    DequantizeLinear are moved to uint8 when a model loads, so give the graph as rewritten.
    """
    types: dict[str, int] = {}
    for graph in all_graphs(model.graph):
        types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        types |= {value.name: value.type.tensor_type.elem_type for value in graph.input}
    for node in all_nodes(model):
        if node.op_type == "QuantizeLinear" and len(node.input) > 2 and node.input[2] in types:
            types[node.output[0]] = types[node.input[2]]
    return frozenset(
        node.name for node in all_nodes(model) if _left_type(node, types) == TensorProto.INT8
    )


def _left_type(node: onnx.NodeProto, types: dict[str, int]) -> int | None:
    for index in _TELLS.get(node.op_type, ()):
        if index < len(node.input) and node.input[index] in types:
            return types[node.input[index]]
    return None
