"""Which kernel executed each multiply-accumulate, and which fusions quantization cost."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
import onnx
from onnx import TensorProto

from foldmark.proof.signed import signed_products
from foldmark.proof.unfused import Unfused, unfused_pairs
from foldmark.runtimes.profile import Execution, NodeRun, all_graphs, all_nodes

__all__ = [
    "Executor",
    "KernelShare",
    "Kernels",
    "LostFusion",
    "Product",
    "decoded_at_load",
    "kernels_of",
]


class Executor(Enum):
    """What executed a multiply-accumulate."""

    INTEGER = "integer kernel"
    FLOAT_UNPACKED = "float, unpacks weights each run"
    FLOAT_DEQUANTIZED = "float, dequantizes each run"
    FLOAT_DECODED = "float, weights decoded at load"
    FLOAT = "float, float weights"
    FLOAT_ACTIVATIONS = "float, two activations"


@dataclass(frozen=True)
class Product:
    """An executed operator that multiplies and accumulates.

    Attributes:
        node: its name in the rewritten graph.
        operator: its type.
        executor: what executed it.
        macs: multiply-accumulates of one run.
        seconds: mean time of one run.
        weight_values: values of its stored weight, 0 when it multiplies two activations.
    """

    node: str
    operator: str
    executor: Executor
    macs: int
    seconds: float
    weight_values: int


@dataclass(frozen=True)
class KernelShare:
    """One executor's part of the model."""

    executor: Executor
    operators: int
    macs: int
    seconds: float


@dataclass(frozen=True)
class LostFusion:
    """A fused operator that the float model runs and the quantized one does not."""

    operator: str
    in_float: int
    in_quantized: int


@dataclass(frozen=True)
class Kernels:
    """Who did the work in one run.

    Attributes:
        products: every operator that multiplies and accumulates.
        conversion_seconds: time of quantize, dequantize and dynamic quantize operators.
        other_seconds: time of all other operators.
        unfused: quantized operators that still ran in float, each with the reason.
        lost: fusions of the float model that are gone.
        hidden: control flow whose bodies the runtime does not show; their work is not counted.
        signed: integer products with int8 codes on the left, which ONNX Runtime's fast kernels
            on x86 do not take.
    """

    products: tuple[Product, ...]
    conversion_seconds: float
    other_seconds: float
    unfused: tuple[Unfused, ...]
    lost: tuple[LostFusion, ...]
    hidden: tuple[str, ...] = ()
    signed: tuple[Product, ...] = ()

    @cached_property
    def shares(self) -> tuple[KernelShare, ...]:
        """The products by executor, in the enum's order; executors without work left out."""
        shares = []
        for executor in Executor:
            mine = [each for each in self.products if each.executor is executor]
            if mine:
                macs, seconds = sum(p.macs for p in mine), sum(p.seconds for p in mine)
                shares.append(KernelShare(executor, len(mine), macs, seconds))
        return tuple(shares)

    @property
    def seconds(self) -> float:
        """Time of all operators."""
        products = sum(each.seconds for each in self.products)
        return products + self.conversion_seconds + self.other_seconds

    @property
    def macs(self) -> int:
        """All multiply-accumulates of one run."""
        return sum(each.macs for each in self.products)

    @property
    def weight_macs(self) -> int:
        """Multiply-accumulates with a stored weight."""
        return sum(p.macs for p in self.products if p.executor is not Executor.FLOAT_ACTIVATIONS)

    @property
    def integer_share(self) -> float:
        """Part of the weights' multiply-accumulates that ran on integers, 0 to 1."""
        integer = sum(p.macs for p in self.products if p.executor is Executor.INTEGER)
        return integer / self.weight_macs if self.weight_macs else 0.0


# operator -> index of its weight among the inputs.
_WEIGHT_INPUT = {
    "MatMul": 1, "FusedMatMul": 1, "Gemm": 1, "FusedGemm": 1, "Conv": 1, "FusedConv": 1,
    "ConvTranspose": 1, "MatMulInteger": 1, "MatMulIntegerToFloat": 1, "DynamicQuantizeMatMul": 1,
    "QLinearMatMul": 3, "QGemm": 3, "QLinearConv": 3, "ConvInteger": 1, "MatMulNBits": 1,
    "Attention": 1, "QAttention": 1, "LSTM": 1, "GRU": 1, "RNN": 1, "DynamicQuantizeLSTM": 1,
    "MultiHeadAttention": -1, "TransposedConv": 1, "NhwcFusedConv": 1, "NhwcConv": 1,
}  # fmt: skip
_INTEGER = {
    "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul", "QGemm",
    "QLinearConv", "ConvInteger", "QAttention", "DynamicQuantizeLSTM",
}  # fmt: skip
_CONVERSIONS = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
_RECURRENT = {"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"}
_CONVOLUTIONS = {"Conv", "FusedConv", "QLinearConv", "ConvInteger", "NhwcFusedConv", "NhwcConv"}
_FUSIONS = {
    "Gelu", "BiasGelu", "FastGelu", "QuickGelu", "LayerNormalization", "SkipLayerNormalization",
    "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "EmbedLayerNormalization",
    "Attention", "MultiHeadAttention", "FusedConv", "FusedGemm", "FusedMatMul", "NhwcFusedConv",
    "BiasSoftmax", "RotaryEmbedding", "GroupQueryAttention",
}  # fmt: skip
# A fusion that has a quantized counterpart is not lost when that one runs.
_COUNTERPART = {
    "Attention": ("QAttention",),
    "FusedConv": ("QLinearConv",),
    "FusedGemm": ("QGemm",),
    "FusedMatMul": ("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul"),
    "NhwcFusedConv": ("QLinearConv",),
}
_TRANSPARENT = {
    "DequantizeLinear", "QuantizeLinear", "Cast", "Mul", "Sub", "Add", "Transpose", "Reshape",
    "Identity", "Squeeze", "Unsqueeze", "Slice",
}  # fmt: skip
# Those of them through which a weight's shape can be followed.
_KEEPS_SHAPE = {
    *("DequantizeLinear", "QuantizeLinear", "Cast", "Mul", "Sub", "Transpose", "Identity"),
}
_CODE_TYPES = {
    TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4,
    TensorProto.INT16, TensorProto.UINT16, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2,
}  # fmt: skip


_PADDED_LAYOUT, _PADDED_SUFFIX = "com.microsoft.nchwc", "_nchwc"


class _Origin(Enum):
    CODES = "stored codes"
    FLOATS = "stored floats"
    ACTIVATION = "computed from the input"


class _Values:
    """A model's values: who makes each, what is stored, where a weight comes from."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.made_by: dict[str, onnx.NodeProto] = {}
        self.stored: dict[str, tuple[int, tuple[int, ...]]] = {}
        for graph in all_graphs(model.graph):
            for tensor in graph.initializer:
                self.stored[tensor.name] = (tensor.data_type, tuple(tensor.dims))
            for node in graph.node:
                for output in node.output:
                    self.made_by.setdefault(output, node)
                if node.op_type == "Constant":
                    for attribute in node.attribute:
                        if attribute.HasField("t"):
                            tensor = attribute.t
                            self.stored[node.output[0]] = (tensor.data_type, tuple(tensor.dims))
        self._origins: dict[str, _Origin] = {}

    def origin(self, name: str) -> _Origin:
        """Return what a value is computed from."""
        if name not in self._origins:
            self._origins[name] = _Origin.ACTIVATION  # a cycle can't be; this is a placeholder
            self._origins[name] = self._trace(name)
        return self._origins[name]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return a weight's shape when it is stored, or decoded from something stored."""
        if name in self.stored:
            return self.stored[name][1]
        node = self.made_by.get(name)
        if node is None or node.op_type not in _KEEPS_SHAPE or not node.input:
            return None
        if self.origin(name) is _Origin.ACTIVATION:
            return None
        shape = self.shape(node.input[0])
        if shape is not None and node.op_type == "Transpose":
            order = next((tuple(a.ints) for a in node.attribute if a.name == "perm"), None)
            shape = tuple(shape[i] for i in (order or reversed(range(len(shape)))))
        return shape

    def _trace(self, name: str) -> _Origin:
        if name in self.stored:
            return _Origin.CODES if self.stored[name][0] in _CODE_TYPES else _Origin.FLOATS
        node = self.made_by.get(name)
        if node is None or node.op_type not in _TRANSPARENT:
            return _Origin.ACTIVATION
        origins = [self.origin(each) for each in node.input if each]
        if _Origin.ACTIVATION in origins or not origins:
            return _Origin.ACTIVATION
        return _Origin.CODES if _Origin.CODES in origins else _Origin.FLOATS


def kernels_of(
    original: onnx.ModelProto, execution: Execution, float_execution: Execution | None = None
) -> Kernels:
    """Assign every multiply-accumulate of a run to what executed it.

    Args:
        original: the model as stored, before ONNX Runtime rewrote it.
        execution: what ONNX Runtime executed of it.
        float_execution: what it executed of the float model, to see which fusions are gone.
    """
    values, before = _Values(execution.graph), _Values(original)
    nodes = {node.name: node for node in all_nodes(execution.graph)}
    stored_nodes = {node.name: node for node in all_nodes(original) if node.name}
    products, conversion, other = [], 0.0, 0.0
    for run in execution.nodes:
        node = nodes.get(run.name)
        if run.operator in _CONVERSIONS:
            conversion += run.seconds
        elif node is not None and run.operator in _WEIGHT_INPUT:
            products.append(_product(run, node, values, before, stored_nodes))
        else:
            other += run.seconds
    signed = signed_products(execution.graph)
    return Kernels(
        tuple(products),
        conversion,
        other,
        unfused_pairs(execution.graph),
        _lost(execution, float_execution) if float_execution else (),
        signed=tuple(each for each in products if each.node in signed),
    )


def _product(
    run: NodeRun,
    node: onnx.NodeProto,
    values: _Values,
    before: _Values,
    stored_nodes: dict[str, onnx.NodeProto],
) -> Product:
    index = _WEIGHT_INPUT[node.op_type]
    weight = node.input[index] if 0 <= index < len(node.input) else ""
    shape = values.shape(weight) if weight else None
    made = int(np.prod(run.output_shapes[0])) if run.output_shapes else 0
    if node.domain == _PADDED_LAYOUT and shape is not None:
        # Channels are padded to whole vectors there; the model's own count is in the file.
        real = _unpadded_shape(node, before)
        made, shape = (made // shape[0] * real[0], real) if real is not None else (made, shape)
    executor = _executor(node, weight, values, before, stored_nodes)
    if executor is Executor.FLOAT_ACTIVATIONS or shape is None:
        macs, stored = _activation_macs(run), 0
    else:
        macs, stored = _weight_macs(run, node, shape, made), int(np.prod(shape))
    return Product(run.name, run.operator, executor, macs, run.seconds, stored)


def _executor(
    node: onnx.NodeProto,
    weight: str,
    values: _Values,
    before: _Values,
    stored_nodes: dict[str, onnx.NodeProto],
) -> Executor:
    if node.op_type in _INTEGER:
        return Executor.INTEGER
    if node.op_type == "MatMulNBits":
        level = next((a.i for a in node.attribute if a.name == "accuracy_level"), 0)
        return Executor.INTEGER if level == 4 else Executor.FLOAT_UNPACKED
    origin = values.origin(weight) if weight else _Origin.ACTIVATION
    if origin is _Origin.ACTIVATION:
        # A weight may stand on the left of a MatMul.
        left = values.origin(node.input[0])
        if left is _Origin.ACTIVATION or node.op_type not in {"MatMul", "FusedMatMul", "Gemm"}:
            return Executor.FLOAT_ACTIVATIONS
        origin, weight = left, node.input[0]
    if origin is _Origin.CODES:
        return Executor.FLOAT_DEQUANTIZED
    return (
        Executor.FLOAT_DECODED if _decoded(node, weight, before, stored_nodes) else Executor.FLOAT
    )


def _decoded(
    node: onnx.NodeProto, weight: str, before: _Values, stored_nodes: dict[str, onnx.NodeProto]
) -> bool:
    """Return whether a float weight of the rewritten graph was integer codes in the file.

    Folding a constant keeps the value's name. Where a rewrite gave the weight a new name, the
    node that made the same output, or had the same name, tells.
    """
    if before.origin(weight) is not _Origin.ACTIVATION or weight in before.stored:
        return before.origin(weight) is _Origin.CODES
    for candidate in (
        before.made_by.get(node.output[0]),
        before.made_by.get(node.name.removesuffix(_PADDED_SUFFIX)),
        stored_nodes.get(node.name),
        stored_nodes.get(node.name.split("/")[0]),
    ):
        node_before = _behind_bias(candidate, before)
        if node_before is not None:
            index = _WEIGHT_INPUT[node_before.op_type]
            if 0 <= index < len(node_before.input):
                return before.origin(node_before.input[index]) is _Origin.CODES
    return False


def decoded_at_load(original: onnx.ModelProto, names: Iterable[str]) -> bool:
    """Return whether one of the named nodes (or values) multiplies by codes in the file."""
    wanted, values = set(names), _Values(original)
    for node in all_nodes(original):
        index = _WEIGHT_INPUT.get(node.op_type, -1)
        if 0 <= index < len(node.input) and wanted & {node.name, *node.output}:
            return values.origin(node.input[index]) is _Origin.CODES
    return False


def _unpadded_shape(node: onnx.NodeProto, before: _Values) -> tuple[int, ...] | None:
    """Return the shape in the file of the weight of a convolution in the padded layout."""
    made = before.made_by.get(node.name.removesuffix(_PADDED_SUFFIX))
    product = _behind_bias(made, before)
    return before.shape(product.input[1]) if product is not None else None


def _behind_bias(node: onnx.NodeProto | None, values: _Values) -> onnx.NodeProto | None:
    """Return the product behind the activation functions and bias that fusions join to it."""
    for _ in range(3):
        if node is None or node.op_type in _WEIGHT_INPUT:
            return node
        if node.op_type not in {"Add", "Relu", "Clip", "Mul", "Sigmoid", "HardSigmoid"}:
            return None
        makers = [values.made_by[name] for name in node.input if name in values.made_by]
        node = makers[0] if makers else None
    return None


def _weight_macs(run: NodeRun, node: onnx.NodeProto, shape: tuple[int, ...], made: int) -> int:
    """Return the multiply-accumulates of one run that gives `made` values from a weight."""
    if node.op_type in _CONVOLUTIONS:
        return made * int(np.prod(shape[1:]))
    if node.op_type == "ConvTranspose":
        return int(np.prod(run.input_shapes[0])) * int(np.prod(shape[1:]))
    if node.op_type in _RECURRENT:
        # Both matrices, W (directions, gates*hidden, input) and R, once a step and sample.
        steps = run.output_shapes[0][0] * run.output_shapes[0][-2]
        recurrent = shape[0] * shape[1] * run.output_shapes[0][-1]
        return int(steps * (np.prod(shape) + recurrent))
    if node.op_type in {"Attention", "QAttention"}:
        tokens = int(np.prod(run.input_shapes[0][:-1]))
        return tokens * int(np.prod(shape))
    if node.op_type == "MatMulNBits":
        inner = next(a.i for a in node.attribute if a.name == "K")
        return made * int(inner)
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    inner = shape[-1] if transposed else shape[-2] if len(shape) > 1 else shape[0]
    return made * int(inner)


def _activation_macs(run: NodeRun) -> int:
    """Return the multiply-accumulates of a product of two activations, from what was seen."""
    if not run.input_shapes or not run.output_shapes or not run.input_shapes[0]:
        return 0
    return int(np.prod(run.output_shapes[0])) * run.input_shapes[0][-1]


def _lost(execution: Execution, float_execution: Execution) -> tuple[LostFusion, ...]:
    after, before = _counted(execution.nodes), _counted(float_execution.nodes)
    lost = []
    for operator in sorted(_FUSIONS & set(before)):
        now = after[operator] + sum(after[each] for each in _COUNTERPART.get(operator, ()))
        if now < before[operator]:
            lost.append(LostFusion(operator, before[operator], after[operator]))
    return tuple(lost)


def _counted(runs: Iterable[NodeRun]) -> Counter[str]:
    return Counter(run.operator for run in runs)
