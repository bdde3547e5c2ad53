"""Which initializers of an ONNX model are the codes of a weight: the operators say it.

An initializer of integers is a weight's codes when an operator takes it together with a scale:

    DequantizeLinear(codes, scale, zero point)     per tensor, axis or block
    QLinearConv, QLinearMatMul, QGemm              scale and zero point beside the weight
    MatMulInteger, ConvInteger                     the scale is multiplied in behind: Cast, Mul
    DynamicQuantizeMatMul, MatMulIntegerToFloat, QAttention, DynamicQuantizeLSTM
    MatMulNBits, GatherBlockQuantized              packed bits along the reduced axis
    Cast, Mul (or Cast, Sub, Mul)                  arithmetic written out
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx

from foldmark.errors import HostileFile
from foldmark.formats.onnx_graph import Graph, attribute

__all__ = ["Packed", "Weight", "weights_of"]

_Proto = onnx.TensorProto
_CODE_TYPES = frozenset(
    {
        _Proto.INT8,
        _Proto.UINT8,
        _Proto.INT16,
        _Proto.UINT16,
        _Proto.INT4,
        _Proto.UINT4,
        _Proto.INT32,
        _Proto.FLOAT8E4M3FN,
        _Proto.FLOAT8E5M2,
    }
)


@dataclass(frozen=True)
class _Slot:
    """Which inputs of an operator are a weight's codes, scale and zero point.

    Attributes:
        codes, scale, zero_point: positions among the inputs; -1 for none.
        axis: what a scale of more than one item runs along.
    """

    codes: int
    scale: int
    zero_point: int
    axis: int


# A scale of -1 is found behind the operator, where the integers are turned into floats.
_SLOTS: Mapping[str, tuple[_Slot, ...]] = {
    "QLinearConv": (_Slot(3, 4, 5, 0),),
    "QLinearMatMul": (_Slot(3, 4, 5, -1), _Slot(0, 1, 2, -2)),
    "MatMulInteger": (_Slot(1, -1, 3, -1), _Slot(0, -1, 2, -2)),
    "ConvInteger": (_Slot(1, -1, 3, 0),),
    "DynamicQuantizeMatMul": (_Slot(1, 2, 3, -1),),
    "MatMulIntegerToFloat": (_Slot(1, 3, 5, -1),),
    "QAttention": (_Slot(1, 4, 7, -1),),
    "DynamicQuantizeLSTM": (_Slot(1, 8, 9, -1), _Slot(2, 10, 11, -1)),
}


@dataclass(frozen=True)
class Packed:
    """Codes of 2, 4 or 8 bits packed in bytes along the reduced axis.

    Attributes:
        shape: (out, in) of the weight.
        bits: width of a code.
    """

    shape: tuple[int, ...]
    bits: int


@dataclass(frozen=True, eq=False)
class Weight:
    """Codes of a weight with what makes numbers of them, as tensors of the model."""

    name: str
    codes: onnx.TensorProto
    scale: onnx.TensorProto | None
    zero_point: onnx.TensorProto | None
    axis: int | None
    block_size: int
    form: str
    packed: Packed | None = None


def weights_of(node: onnx.NodeProto, graph: Graph) -> Iterator[Weight]:
    """Yield the weights that an operator takes, each only once in a graph.

    Raises:
        HostileFile: attributes that no such operator has.
    """
    if node.op_type == "DequantizeLinear":
        yield from _dequantized(node, graph)
    elif node.op_type == "QGemm":
        axis = 0 if attribute(node, "transB", 0) else 1
        yield from _beside(node, graph, _Slot(3, 4, 5, axis))
    elif node.op_type in ("MatMulNBits", "GatherBlockQuantized"):
        yield from _bits(node, graph)
    elif node.op_type == "Cast":
        yield from _written_out(node, graph)
    for slot in _SLOTS.get(node.op_type, ()):
        yield from _beside(node, graph, slot)


def _take(graph: Graph, *tensors: onnx.TensorProto | None) -> bool:
    """Mark tensors as belonging to a weight; False when the codes, the first, already do."""
    first = tensors[0]
    if first is None or first.name in graph.taken:
        return False
    graph.taken.update(tensor.name for tensor in tensors if tensor is not None)
    return True


def _dequantized(node: onnx.NodeProto, graph: Graph) -> Iterator[Weight]:
    codes = graph.constant(node, 0)
    if codes is None and node.input and node.input[0] in graph.makers:
        maker = graph.makers[node.input[0]]
        codes = graph.constant(maker, 0) if maker.op_type == "Gather" else None
    scale, zero_point = graph.constant(node, 1), graph.constant(node, 2)
    if codes is None or scale is None or codes.data_type not in _CODE_TYPES:
        return
    if _take(graph, codes, scale, zero_point):
        axis, block_size = attribute(node, "axis", 1), attribute(node, "block_size", 0)
        yield Weight(codes.name, codes, scale, zero_point, axis, block_size, "QDQ")


def _beside(node: onnx.NodeProto, graph: Graph, slot: _Slot) -> Iterator[Weight]:
    codes, zero_point = graph.constant(node, slot.codes), graph.constant(node, slot.zero_point)
    if codes is None or codes.data_type not in _CODE_TYPES:
        return
    scale = graph.constant(node, slot.scale) if slot.scale >= 0 else _scale_behind(node, graph)
    if _take(graph, codes, scale, zero_point):
        yield Weight(codes.name, codes, scale, zero_point, slot.axis, 0, node.op_type)


def _scale_behind(node: onnx.NodeProto, graph: Graph) -> onnx.TensorProto | None:
    """Follow integers to the Mul that makes floats of them, and find the constant there.

    The multiplier is the weight's scale, or the product of the activation's and the weight's.
    """
    value = node.output[0] if node.output else ""
    for _ in range(3):
        users = graph.users.get(value, [])
        if len(users) != 1 or not users[0].output:
            return None
        user = users[0]
        if user.op_type == "Mul":
            return _constant_factor(user, value, graph)
        if user.op_type not in ("Cast", "Add", "Reshape"):
            return None
        value = user.output[0]
    return None


def _constant_factor(node: onnx.NodeProto, value: str, graph: Graph) -> onnx.TensorProto | None:
    other = next((name for name in node.input if name != value), "")
    if other in graph.tensors:
        return graph.tensors[other]
    maker = graph.makers.get(other)
    if maker is None or maker.op_type != "Mul":
        return None
    return next((graph.tensors[name] for name in maker.input if name in graph.tensors), None)


def _written_out(node: onnx.NodeProto, graph: Graph) -> Iterator[Weight]:
    """Find Cast, Sub or none, Mul over constants: a weight decoded by plain arithmetic."""
    codes = graph.constant(node, 0)
    if codes is None or codes.data_type not in _CODE_TYPES or not node.output:
        return
    users = graph.users.get(node.output[0], [])
    zero_point = None
    if len(users) == 1 and users[0].op_type == "Sub":
        zero_point = graph.constant(users[0], 1)
        users = graph.users.get(users[0].output[0], [])
    if len(users) != 1 or users[0].op_type != "Mul":
        return
    scale = next((graph.tensors[name] for name in users[0].input if name in graph.tensors), None)
    if scale is not None and _take(graph, codes, scale, zero_point):
        name = users[0].output[0] if users[0].output else codes.name
        yield Weight(name, codes, scale, zero_point, None, 0, "Cast, Mul")


def _bits(node: onnx.NodeProto, graph: Graph) -> Iterator[Weight]:
    if node.op_type == "MatMulNBits":
        places, shape = (1, 2, 3), (attribute(node, "N", 0), attribute(node, "K", 0))
    else:
        places, shape = (0, 2, 3), None
    codes, scale, zero_point = (graph.constant(node, place) for place in places)
    if codes is None or scale is None:
        return
    bits, block = attribute(node, "bits", 4), attribute(node, "block_size", 128)
    if shape is None:
        if codes.data_type != _Proto.UINT8:
            if _take(graph, codes, scale, zero_point):
                axis = attribute(node, "quantize_axis", 1)
                yield Weight(codes.name, codes, scale, zero_point, axis, block, node.op_type)
            return
        shape = (*codes.dims[:-1], codes.dims[-1] * 8 // bits) if codes.dims else ()
    if bits not in (2, 4, 8) or block <= 0 or not shape or min(shape) <= 0:
        raise HostileFile(
            f"{node.op_type} {node.name!r} has impossible attributes",
            where=str(graph.path),
            got=f"bits {bits}, block_size {block}, shape {list(shape)}",
        )
    if _take(graph, codes, scale, zero_point):
        yield Weight(
            codes.name, codes, scale, zero_point, -1, block, node.op_type, Packed(shape, bits)
        )
