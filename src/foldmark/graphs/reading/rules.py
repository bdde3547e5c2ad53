"""Which function reads which operator; an operator without one is copied as it is."""

from collections.abc import Callable

import onnx

from foldmark.graphs.reading import qdq
from foldmark.graphs.reading.workspace import Workspace

__all__ = ["ON_CODES", "RULES", "key_of"]

_ONNX, _MICROSOFT = "", "com.microsoft"
_Key = tuple[str, str]


def key_of(node: onnx.NodeProto) -> _Key:
    """Return a node's operator set and type; ONNX's own set is ""."""
    return ("" if node.domain == "ai.onnx" else str(node.domain), str(node.op_type))


RULES: dict[_Key, Callable[[Workspace, onnx.NodeProto], object]] = {
    (_ONNX, "DequantizeLinear"): qdq.dequantize_linear,
    (_MICROSOFT, "DequantizeLinear"): qdq.dequantize_linear,
}

# Operators that compute on codes. Wherever one is left in the skeleton, it was not read.
ON_CODES: frozenset[_Key] = frozenset(
    {
        (_ONNX, "QLinearConv"),
        (_ONNX, "QLinearMatMul"),
        (_ONNX, "MatMulInteger"),
        (_ONNX, "ConvInteger"),
        *RULES,
    }
) - {(_ONNX, "DequantizeLinear"), (_MICROSOFT, "DequantizeLinear")}
