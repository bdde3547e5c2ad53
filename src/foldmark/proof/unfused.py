"""Why a quantized operator still runs in float: the pairs that ONNX Runtime did not fuse."""

from collections import Counter, defaultdict
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from foldmark.runtimes.profile import all_graphs, all_nodes

__all__ = ["Unfused", "unfused_pairs"]


@dataclass(frozen=True)
class Unfused:
    """Operators that read dequantized values in float, for one reason.

    Attributes:
        operator: their type.
        reason: why ONNX Runtime left them.
        count: how many there are.
        example: the name of the first.
    """

    operator: str
    reason: str
    count: int
    example: str


# Operators with an integer kernel that ONNX Runtime fuses from quantize/dequantize pairs, and
# whether the result must be quantized again for it.
_NEEDS_OUTPUT_PAIR = {
    "Conv": True, "FusedConv": True, "MatMul": False, "Gemm": False, "Add": True, "Mul": True,
    "Sigmoid": True, "Softmax": True, "LeakyRelu": True, "GlobalAveragePool": True,
    "AveragePool": True, "Concat": True,
}  # fmt: skip
_WEIGHTED = {"Conv", "FusedConv", "MatMul", "Gemm", "ConvTranspose"}
_PASS_THROUGH = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Flatten"}
_WIDE = {TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32}
_NARROW = {TensorProto.INT4, TensorProto.UINT4}


class _Graph:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.made_by: dict[str, onnx.NodeProto] = {}
        self.users: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        self.types: dict[str, int] = {}
        self.outputs: set[str] = set()
        for graph in all_graphs(model.graph):
            self.outputs |= {value.name for value in graph.output}
            self.types |= {t.name: t.data_type for t in graph.initializer}
        for node in all_nodes(model):
            for name in node.output:
                self.made_by.setdefault(name, node)
            for name in node.input:
                self.users[name].append(node)

    def dequantized(self, name: str) -> onnx.NodeProto | None:
        """Return the DequantizeLinear that makes a value, if one does."""
        node = self.made_by.get(name)
        return node if node is not None and node.op_type == "DequantizeLinear" else None

    def code_type(self, dequantize: onnx.NodeProto) -> int | None:
        """Return the type of the codes that a DequantizeLinear reads, when the graph tells."""
        for name in (*dequantize.input[2:3], dequantize.input[0]):
            if name in self.types:
                return self.types[name]
        return None


def unfused_pairs(model: onnx.ModelProto) -> tuple[Unfused, ...]:
    """Return what still reads dequantized values in float in a rewritten graph, with the reasons.

    Sorted by count; operators that only hand values on are left out.
    """
    graph = _Graph(model)
    found: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for node in all_nodes(model):
        if node.op_type in _PASS_THROUGH | {"QuantizeLinear", "DequantizeLinear"}:
            continue
        if not any(graph.dequantized(name) for name in node.input if name):
            continue
        key = (node.op_type, _reason(node, graph))
        found[key] += 1
        examples.setdefault(key, node.name)
    return tuple(
        Unfused(operator, reason, count, examples[operator, reason])
        for (operator, reason), count in found.most_common()
    )


def _reason(node: onnx.NodeProto, graph: _Graph) -> str:
    if node.op_type == "MatMulNBits":
        return "ran on integers, but its activation is dequantized first and quantized anew"
    if node.op_type not in _NEEDS_OUTPUT_PAIR:
        return f"ONNX Runtime's CPU has no integer kernel for {node.op_type}"
    pairs = [graph.dequantized(name) for name in node.input[:2] if name]
    if node.op_type in _WEIGHTED:
        if pairs[0] is None:
            return "the activation is not quantized, only the weight"
        if len(pairs) > 1 and pairs[1] is None:
            return "the weight is not quantized, only the activation"
    elif None in pairs:
        return "only one of its two inputs is quantized"
    types = [graph.code_type(pair) for pair in pairs if pair is not None]
    return (
        _type_reason(node, types)
        or _output_reason(node, graph)
        or _bias_reason(node, graph)
        or "none of the known reasons: the pairs and types are as its kernel takes them"
    )


def _type_reason(node: onnx.NodeProto, types: list[int | None]) -> str:
    if any(each in _WIDE for each in types):
        return "16-bit codes: no integer kernel takes them"
    if any(each in _NARROW for each in types):
        return "4-bit codes beside a quantized activation: no integer kernel takes them"
    if types[:2] == [TensorProto.INT8, TensorProto.UINT8] and node.op_type in _WEIGHTED:
        return "int8 activation with uint8 weight: no integer kernel takes them"
    if node.op_type not in _WEIGHTED and len(set(types)) > 1:
        return "its inputs have codes of different types"
    return ""


def _output_reason(node: onnx.NodeProto, graph: _Graph) -> str:
    result = node.output[0]
    users = graph.users[result]
    if result in graph.outputs and _NEEDS_OUTPUT_PAIR[node.op_type]:
        return "its result is an output of the model, in float"
    quantized = [user for user in users if user.op_type == "QuantizeLinear"]
    if quantized and len(quantized) == len(users) and _type_changes(node, quantized[0], graph):
        return "int8 in, uint8 out (or the reverse): the kernel takes one type for both"
    if not _NEEDS_OUTPUT_PAIR[node.op_type]:
        return ""
    if not quantized:
        followers = "/".join(sorted({user.op_type for user in users})) or "nothing"
        return f"no quantize after it: its result goes to {followers} in float"
    if len(quantized) < len(users):
        return "its result is also read in float"
    return ""


def _type_changes(node: onnx.NodeProto, after: onnx.NodeProto, graph: _Graph) -> bool:
    before = graph.dequantized(node.input[0])
    made = graph.types.get(after.input[2]) if len(after.input) > 2 else TensorProto.UINT8
    taken = graph.code_type(before) if before is not None else None
    return None not in (taken, made) and taken != made


def _bias_reason(node: onnx.NodeProto, graph: _Graph) -> str:
    if node.op_type not in {"Conv", "Gemm"} or len(node.input) < 3 or not node.input[2]:
        return ""
    pair = graph.dequantized(node.input[2])
    if pair is None:
        return "its bias is in float; the kernel takes int32"
    if graph.types.get(pair.input[0]) not in {None, TensorProto.INT32}:
        return "its bias is not int32"
    return ""
