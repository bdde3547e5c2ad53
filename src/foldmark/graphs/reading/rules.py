"""Which function reads which operator; an operator without one is copied as it is."""

from collections.abc import Callable

import onnx

from foldmark.graphs.reading import (
    attention,
    fused,
    integer,
    nbits,
    qdq,
    qlinear,
    recurrent,
    stored,
)
from foldmark.graphs.reading.workspace import Workspace

__all__ = ["ON_CODES", "RULES", "key_of"]

_ONNX, _MICROSOFT = "", "com.microsoft"
_Key = tuple[str, str]
_Rule = Callable[[Workspace, onnx.NodeProto], object]


def key_of(node: onnx.NodeProto) -> _Key:
    """Return a node's operator set and type; ONNX's own set is ""."""
    return ("" if node.domain == "ai.onnx" else str(node.domain), str(node.op_type))


def _or_copy(*attempts: Callable[[Workspace, onnx.NodeProto], bool]) -> _Rule:
    """Return a rule that tries others in turn, and copies the node when none applies."""

    def rule(space: Workspace, node: onnx.NodeProto) -> None:
        if not any(attempt(space, node) for attempt in attempts):
            space.copy(node)

    return rule


_CODES_TO_CODES: dict[_Key, _Rule] = {
    (_ONNX, "QLinearConv"): qlinear.qlinear_conv,
    (_MICROSOFT, "QLinearConv"): qlinear.qlinear_conv,
    (_ONNX, "QLinearMatMul"): qlinear.qlinear_matmul,
    (_MICROSOFT, "QGemm"): qlinear.q_gemm,
    (_MICROSOFT, "QLinearAdd"): qlinear.qlinear_binary,
    (_MICROSOFT, "QLinearMul"): qlinear.qlinear_binary,
    (_MICROSOFT, "QLinearSigmoid"): qlinear.qlinear_unary,
    (_MICROSOFT, "QLinearLeakyRelu"): qlinear.qlinear_unary,
    (_MICROSOFT, "QLinearSoftmax"): qlinear.qlinear_softmax,
    (_MICROSOFT, "QLinearGlobalAveragePool"): qlinear.qlinear_global_average_pool,
    (_MICROSOFT, "QLinearAveragePool"): qlinear.qlinear_average_pool,
    (_MICROSOFT, "QLinearReduceMean"): qlinear.qlinear_reduce_mean,
    (_MICROSOFT, "QLinearConcat"): qlinear.qlinear_concat,
    (_MICROSOFT, "QLinearWhere"): qlinear.qlinear_where,
}

_TO_FLOAT: dict[_Key, _Rule] = {
    (_ONNX, "MatMulInteger"): integer.integer_product,
    (_ONNX, "ConvInteger"): integer.integer_product,
    (_MICROSOFT, "MatMulIntegerToFloat"): integer.matmul_integer_to_float,
    (_MICROSOFT, "DynamicQuantizeMatMul"): integer.dynamic_quantize_matmul,
    (_MICROSOFT, "QAttention"): attention.q_attention,
    (_MICROSOFT, "QEmbedLayerNormalization"): attention.q_embed_layer_normalization,
    (_MICROSOFT, "DynamicQuantizeLSTM"): recurrent.dynamic_quantize_lstm,
    (_MICROSOFT, "MatMulNBits"): nbits.matmul_nbits,
    (_MICROSOFT, "GatherBlockQuantized"): nbits.gather_block_quantized,
}

# Operators that mean something else where codes pass through them.
_SOMETIMES: dict[_Key, _Rule] = {
    (_ONNX, "DequantizeLinear"): qdq.dequantize_linear,
    (_MICROSOFT, "DequantizeLinear"): qdq.dequantize_linear,
    (_ONNX, "Cast"): _or_copy(integer.cast_accumulator, stored.cast_stored),
    (_ONNX, "Mul"): _or_copy(integer.multiply_accumulator, stored.scale_stored),
    (_ONNX, "Div"): _or_copy(stored.scale_stored),
    (_ONNX, "Sub"): _or_copy(stored.shift_stored),
    (_ONNX, "Transpose"): _or_copy(stored.move_stored),
    (_ONNX, "Reshape"): _or_copy(stored.move_stored),
    (_ONNX, "Identity"): _or_copy(stored.move_stored),
}

# Operators in float that ONNX itself does not have, and that have no derivative as they are.
_FUSED: dict[_Key, _Rule] = {
    (_MICROSOFT, "Gelu"): fused.gelu,
    (_MICROSOFT, "BiasGelu"): fused.bias_gelu,
    (_MICROSOFT, "FastGelu"): fused.fast_gelu,
    (_MICROSOFT, "QuickGelu"): fused.quick_gelu,
    (_MICROSOFT, "SkipLayerNormalization"): fused.skip_layer_normalization,
    (_MICROSOFT, "SkipSimplifiedLayerNormalization"): fused.skip_simplified_layer_normalization,
    (_ONNX, "SimplifiedLayerNormalization"): fused.simplified_layer_normalization,
    (_MICROSOFT, "EmbedLayerNormalization"): fused.embed_layer_normalization,
    (_MICROSOFT, "Attention"): attention.attention,
    (_MICROSOFT, "FusedMatMul"): fused.fused_matmul,
    (_MICROSOFT, "FusedConv"): fused.fused_conv,
    (_MICROSOFT, "FusedGemm"): fused.fused_gemm,
}

RULES: dict[_Key, _Rule] = {**_CODES_TO_CODES, **_TO_FLOAT, **_SOMETIMES, **_FUSED}

_NOT_READ = (
    "MatMulBnb4",
    "MatMulFpQ4",
    "NhwcMaxPool",
    "QLinearReduceSum",
    "QMoE",
    "QOrderedAttention",
    "QOrderedGelu",
    "QOrderedLayerNormalization",
    "QOrderedLongformerAttention",
    "QOrderedMatMul",
    "QuantizeWithOrder",
)
# Operators that compute on codes. Wherever one is left in the skeleton, it was not read.
ON_CODES: frozenset[_Key] = (
    frozenset(_CODES_TO_CODES)
    | frozenset(_TO_FLOAT)
    | frozenset((_MICROSOFT, name) for name in _NOT_READ)
)
