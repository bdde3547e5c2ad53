"""Where the bytes of a model file are: an account that sums to the file."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import onnx
from onnx import TensorProto

from foldmark.formats.onnx_file import files_of, read_mapped
from foldmark.runtimes.profile import all_graphs, all_nodes

__all__ = ["Bytes", "KeptFloat", "Role", "SizeAccount", "account_of"]


class Role(Enum):
    """What a stored tensor is for."""

    CODES = "quantized weights and biases"
    SCALES = "scales"
    ZERO_POINTS = "zero points"
    FLOATS = "left in float"
    OTHER = "shapes, indices and other constants"
    GRAPH = "graph: nodes, names, metadata"


@dataclass(frozen=True)
class Bytes:
    """Bytes of one role and how many tensors hold them."""

    role: Role
    size: int
    tensors: int


@dataclass(frozen=True)
class KeptFloat:
    """Float tensors of one use, with the reason that they are not quantized."""

    reason: str
    size: int
    tensors: int
    largest: str


@dataclass(frozen=True)
class SizeAccount:
    """The bytes of a model.

    Attributes:
        total: bytes of the file and of its external data.
        lines: bytes by role; they sum to `total`.
        kept_float: the float part, by reason, largest first; sums to the FLOATS line.
    """

    total: int
    lines: tuple[Bytes, ...]
    kept_float: tuple[KeptFloat, ...]

    def of(self, role: Role) -> int:
        """Return the bytes of one role."""
        return sum(line.size for line in self.lines if line.role is role)


_CODES, _SCALES, _ZEROS = Role.CODES, Role.SCALES, Role.ZERO_POINTS
# operator -> role of the stored tensor at each input; other inputs decide by their type.
_INPUT_ROLES: dict[str, dict[int, Role]] = {
    "QuantizeLinear": {1: _SCALES, 2: _ZEROS},
    "DequantizeLinear": {0: _CODES, 1: _SCALES, 2: _ZEROS},
    "QLinearConv": {
        1: _SCALES, 2: _ZEROS, 3: _CODES, 4: _SCALES, 5: _ZEROS, 6: _SCALES, 7: _ZEROS, 8: _CODES,
    },
    "QLinearMatMul": {
        0: _CODES, 1: _SCALES, 2: _ZEROS, 3: _CODES, 4: _SCALES, 5: _ZEROS, 6: _SCALES, 7: _ZEROS,
    },
    "QGemm": {
        1: _SCALES, 2: _ZEROS, 3: _CODES, 4: _SCALES, 5: _ZEROS, 6: _CODES, 7: _SCALES, 8: _ZEROS,
    },
    "MatMulInteger": {0: _CODES, 1: _CODES, 2: _ZEROS, 3: _ZEROS},
    "ConvInteger": {1: _CODES, 2: _ZEROS, 3: _ZEROS},
    "MatMulIntegerToFloat": {1: _CODES, 2: _SCALES, 3: _SCALES, 4: _ZEROS, 5: _ZEROS},
    "DynamicQuantizeMatMul": {1: _CODES, 2: _SCALES, 3: _ZEROS},
    "DynamicQuantizeLSTM": {1: _CODES, 2: _CODES, 8: _SCALES, 9: _ZEROS, 10: _SCALES, 11: _ZEROS},
    "QAttention": {1: _CODES, 3: _SCALES, 4: _SCALES, 6: _ZEROS, 7: _ZEROS},
    "MatMulNBits": {1: _CODES, 2: _SCALES, 3: _ZEROS},
    "GatherBlockQuantized": {0: _CODES, 2: _SCALES, 3: _ZEROS},
}  # fmt: skip
# The remaining QLinear operators of com.microsoft: a, a_scale, a_zero, b, b_scale, b_zero, ...
_BINARY = {
    0: _CODES,
    1: _SCALES,
    2: _ZEROS,
    3: _CODES,
    4: _SCALES,
    5: _ZEROS,
    6: _SCALES,
    7: _ZEROS,
}
_UNARY = {1: _SCALES, 2: _ZEROS, 3: _SCALES, 4: _ZEROS}
for _name in ("QLinearAdd", "QLinearMul"):
    _INPUT_ROLES[_name] = _BINARY
for _name in ("QLinearSigmoid", "QLinearLeakyRelu", "QLinearGlobalAveragePool", "QLinearSoftmax"):
    _INPUT_ROLES[_name] = _UNARY

_CODE_TYPES = {
    TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16,
    TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2,
}  # fmt: skip
_FLOAT_TYPES = {
    TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16,
}  # fmt: skip
_WEIGHTED = {"MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN", "Attention"}
_NORMALIZATIONS = {"LayerNormalization", "BatchNormalization", "SkipLayerNormalization"}

Use = tuple[onnx.NodeProto, int]


def account_of(path: Path) -> SizeAccount:
    """Account for the bytes of the model at `path` and of the files that hold weights of it."""
    model = read_mapped(path)
    total = sum(each.stat().st_size for each in files_of(model, path))
    uses = _uses(model)
    scales = _applied_scales(model)
    sizes: dict[Role, int] = defaultdict(int)
    counts: dict[Role, int] = defaultdict(int)
    kept: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for name, tensor in _stored(model):
        role, size = _role(name, tensor, uses, scales), _payload(tensor)
        sizes[role] += size
        counts[role] += 1
        if role is Role.FLOATS:
            kept[_reason(name, tensor, uses)].append((size, name))
    sizes[Role.GRAPH] = total - sum(sizes.values())
    lines = tuple(Bytes(role, sizes[role], counts[role]) for role in Role if sizes[role])
    floats = [
        KeptFloat(why, sum(size for size, _ in them), len(them), max(them)[1])
        for why, them in kept.items()
    ]
    return SizeAccount(total, lines, tuple(sorted(floats, key=lambda each: -each.size)))


def _stored(model: onnx.ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """Yield every stored tensor with the name of the value it gives."""
    for graph in all_graphs(model.graph):
        for tensor in graph.initializer:
            yield tensor.name, tensor
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield node.output[0] if node.output else node.name, attribute.t


def _payload(tensor: TensorProto) -> int:
    """Return the bytes that hold a tensor's values, without its name and shape."""
    if tensor.data_location == TensorProto.EXTERNAL:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if "length" in entries:
            return int(entries["length"])
    if tensor.raw_data:
        return len(tensor.raw_data)
    values = TensorProto()
    for field, data in tensor.ListFields():
        if field.name.endswith("_data") and field.name != "external_data":
            getattr(values, field.name).extend(data)
    return values.ByteSize()


def _uses(model: onnx.ModelProto) -> dict[str, list[Use]]:
    uses: dict[str, list[Use]] = defaultdict(list)
    for node in all_nodes(model):
        for index, name in enumerate(node.input):
            uses[name].append((node, index))
    return uses


def _role(name: str, tensor: TensorProto, uses: dict[str, list[Use]], scales: set[str]) -> Role:
    for node, index in uses[name]:
        known = _INPUT_ROLES.get(node.op_type, {}).get(index)
        if known is not None and not (known is _CODES and tensor.data_type in _FLOAT_TYPES):
            return known
    if tensor.data_type in _CODE_TYPES:
        return Role.CODES
    if tensor.data_type not in _FLOAT_TYPES:
        return Role.OTHER
    return Role.SCALES if name in scales else Role.FLOATS


def _applied_scales(model: onnx.ModelProto) -> set[str]:
    """Return what is multiplied onto codes cast to float or onto a scale chosen at run time."""
    stored = {name for name, tensor in _stored(model) if tensor.data_type in _CODE_TYPES}
    factors, rows = set(), {}
    for node in all_nodes(model):
        if node.op_type == "Gather":
            rows[node.output[0]] = node.input[0]
            stored |= {node.output[0]} if node.input[0] in stored else set()
        if node.op_type == "DynamicQuantizeLinear":
            factors.add(node.output[1])
        elif node.op_type == "Cast" and node.input[0] in stored:
            factors.add(node.output[0])
    return {
        rows.get(name, name)
        for node in all_nodes(model)
        if node.op_type == "Mul" and set(node.input) & factors
        for name in node.input
    }


def _reason(name: str, tensor: TensorProto, uses: dict[str, list[Use]]) -> str:
    operators = sorted({node.op_type for node, _ in uses[name]})
    first = operators[0] if operators else "nothing"
    if set(operators) & _NORMALIZATIONS:
        return "normalization parameters"
    if len(tensor.dims) <= 1 and (
        first == "Add"
        or any(index == 2 and node.op_type in _WEIGHTED for node, index in uses[name])
    ):
        return "biases: added in float"
    if first == "Gather":
        return "tables read by Gather: no multiply to speed up"
    if set(operators) & _WEIGHTED:
        return f"weights of {'/'.join(sorted(set(operators) & _WEIGHTED))} left in float"
    return f"constants of {'/'.join(operators) or 'no node'}"
