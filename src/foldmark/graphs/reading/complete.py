"""Nodes that lack an input or attribute without which they mean nothing."""

import onnx

from foldmark.errors import InvalidScheme
from foldmark.graphs.reading.workspace import Workspace

__all__ = ["check_complete"]

# Of com.microsoft, whose schemas the onnx package does not have: inputs and attributes that must
# be there. https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
_NEEDED: dict[str, tuple[int, tuple[str, ...]]] = {
    "Attention": (2, ("num_heads",)),
    "BiasGelu": (2, ()),
    "DequantizeLinear": (2, ()),
    "DynamicQuantizeLSTM": (12, ("hidden_size",)),
    "DynamicQuantizeMatMul": (3, ()),
    "EmbedLayerNormalization": (7, ()),
    "FusedConv": (2, ()),
    "FusedGemm": (2, ()),
    "FusedMatMul": (2, ()),
    "GatherBlockQuantized": (3, ()),
    "MatMulIntegerToFloat": (4, ()),
    "MatMulNBits": (3, ("K", "N", "block_size")),
    "QAttention": (5, ("num_heads",)),
    "QEmbedLayerNormalization": (14, ()),
    "QGemm": (6, ()),
    "QLinearAdd": (7, ()),
    "QLinearAveragePool": (4, ("kernel_shape",)),
    "QLinearConcat": (5, ("axis",)),
    "QLinearConv": (8, ()),
    "QLinearGlobalAveragePool": (5, ()),
    "QLinearLeakyRelu": (4, ()),
    "QLinearMul": (7, ()),
    "QLinearReduceMean": (5, ()),
    "QLinearSigmoid": (4, ()),
    "QLinearSoftmax": (5, ("opset",)),
    "QLinearWhere": (9, ()),
    "QuantizeLinear": (2, ()),
    "SkipLayerNormalization": (3, ()),
    "SkipSimplifiedLayerNormalization": (3, ()),
}


def check_complete(space: Workspace, node: onnx.NodeProto) -> None:
    """Refuse a node without what it needs.

    Raises InvalidScheme naming the node and what is missing.
    """
    least, attributes = _needed(space, node)
    where = f"node {node.name or ', '.join(node.output)!r}"
    if len(node.input) < least or not any(node.output):
        raise InvalidScheme(
            f"{node.op_type} lacks inputs" if any(node.output) else f"{node.op_type} gives nothing",
            where=where,
            got=", ".join(node.input) or "none",
            expected=f"at least {least}",
        )
    given = {item.name for item in node.attribute}
    for name in attributes:
        if name not in given:
            raise InvalidScheme(f"{node.op_type} lacks the attribute {name!r}", where=where)


def _needed(space: Workspace, node: onnx.NodeProto) -> tuple[int, tuple[str, ...]]:
    if node.domain not in ("", "ai.onnx"):
        return _NEEDED.get(node.op_type, (0, ()))
    version = space.opset()
    if not onnx.defs.has(node.op_type, version):
        return 0, ()
    schema = onnx.defs.get_schema(node.op_type, version)
    required = tuple(n for n, attribute in schema.attributes.items() if attribute.required)
    return schema.min_input, required
