"""Where the operators of an ONNX graph keep the scales of activations, and what these are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from foldmark.errors import NotSupported
from foldmark.formats.activations import StoredActivation
from foldmark.formats.onnx_graph import Graph, attribute
from foldmark.formats.onnx_places import FORMATS, Places
from foldmark.formats.values import Array

__all__ = ["Operand", "activations_of", "operands_of"]

_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


@dataclass(frozen=True)
class Operand:
    """Places among a node's inputs.

    Attributes:
        value: of the value itself, or of its codes; -1 for the node's first output.
        scale, zero_point: of these; the scale's is -1 where it is chosen at run time.
    """

    value: int
    scale: int
    zero_point: int


_RESULT = -1
_FIRST = Operand(0, 1, 2)
_UNARY = (_FIRST, Operand(_RESULT, 3, 4))
_BINARY = (_FIRST, Operand(3, 4, 5), Operand(_RESULT, 6, 7))
_AT_RUN_TIME = (Operand(0, -1, -1),)
# operator -> its operands; those that are constants are weights.
_OPERANDS: Mapping[str, tuple[Operand, ...]] = {
    "QuantizeLinear": (_FIRST,),
    "DequantizeLinear": (_FIRST,),
    "QLinearConv": _BINARY,
    "QLinearMatMul": _BINARY,
    "QLinearAdd": _BINARY,
    "QLinearMul": _BINARY,
    "QGemm": (_FIRST, Operand(3, 4, 5), Operand(_RESULT, 7, 8)),
    "QLinearSigmoid": _UNARY,
    "QLinearLeakyRelu": _UNARY,
    "QLinearSoftmax": _UNARY,
    "QLinearGlobalAveragePool": _UNARY,
    "QLinearAveragePool": _UNARY,
    "QLinearReduceMean": _UNARY,
    "QLinearWhere": (Operand(1, 2, 3), Operand(4, 5, 6), Operand(_RESULT, 7, 8)),
    "QAttention": (Operand(0, 3, 6),),
    "MatMulIntegerToFloat": (Operand(0, 2, 4),),
    "DynamicQuantizeLinear": _AT_RUN_TIME,
    "DynamicQuantizeMatMul": _AT_RUN_TIME,
    "DynamicQuantizeLSTM": _AT_RUN_TIME,
}
# No activation has so many channels; what one has is held in memory.
_MOST_SCALES = 1 << 20
# Operators that give their first input's numbers in other places, and how many are followed.
_MOVING = ("Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
_FAR = 8
# What ONNX Runtime's quantizer appends to a value's name: to its codes, and to an output that it
# quantizes before it leaves.
_CODES, _OUTPUT = "_quantized", "_QuantizeLinear_Input"


def operands_of(node: onnx.NodeProto) -> Iterator[Operand]:
    """Yield the places of a node's operands that carry a scale."""
    yield from _OPERANDS.get(node.op_type, ())
    if node.op_type == "QLinearConcat":
        yield Operand(_RESULT, 0, 1)
        yield from (Operand(k, k + 1, k + 2) for k in range(2, len(node.input), 3))


def activations_of(graph: Graph, places: Places) -> Iterator[StoredActivation]:
    """Yield each quantized activation once, in the order of the nodes.

    A value that is quantized with several scales comes again as "name #2".

    Args:
        graph: the model's constants and nodes.
        places: where its tensors lie.

    Raises:
        NotSupported: more scales than an activation has channels.
    """
    loaded: dict[int, Array] = {}
    seen: dict[str, list[tuple[object, ...]]] = {}
    for found in _found(graph):
        known = seen.setdefault(found.name, [])
        scale, zero = (
            _numbers(tensor, places, loaded) for tensor in (found.scale, found.zero_point)
        )
        zero = zero if zero is not None and zero.any() else None
        key = (found.number_format, *(None if a is None else a.tobytes() for a in (scale, zero)))
        if key not in known:
            known.append(key)
            number = f" #{len(known)}" if len(known) > 1 else ""
            yield StoredActivation(found.name + number, found.number_format, scale, zero)


@dataclass(frozen=True, eq=False)
class _Found:
    """An activation whose scale is not read yet."""

    name: str
    number_format: str
    scale: onnx.TensorProto | None = None
    zero_point: onnx.TensorProto | None = None


def _found(graph: Graph) -> Iterator[_Found]:
    """Yield what each operand is; a node that only repeats another's scales is passed over."""
    seen: set[tuple[object, ...]] = set()
    for node in graph.nodes:
        for operand in operands_of(node):
            found = _activation(graph, node, operand)
            if found is not None:
                key = (found.name, found.number_format, id(found.scale), id(found.zero_point))
                if key not in seen:
                    seen.add(key)
                    yield found


def _numbers(
    tensor: onnx.TensorProto | None, places: Places, loaded: dict[int, Array]
) -> Array | None:
    if tensor is None:
        return None
    if id(tensor) not in loaded:
        numbers = places.numbers(tensor)
        if numbers.elements > _MOST_SCALES:
            raise NotSupported(
                "not supported: an activation with so many scales",
                where=f"{places.model.path}: {tensor.name!r}",
                got=str(numbers.elements),
                expected=f"at most {_MOST_SCALES}, for they are held in memory",
            )
        loaded[id(tensor)] = numbers.load().astype(np.float32).reshape(-1)
    return loaded[id(tensor)]


def _activation(graph: Graph, node: onnx.NodeProto, operand: Operand) -> _Found | None:
    """Return what an operand is, None for a weight and for what carries no scale."""
    names = node.output[:1] if operand.value == _RESULT else node.input[operand.value :][:1]
    if not names or not names[0] or _is_weight(graph, names[0]):
        return None
    name = _float_name(graph, node, names[0])
    if name in graph.tensors:
        return None  # a weight that is quantized whenever the model runs
    if operand.scale < 0:
        return _Found(name, "uint8")  # what these operators choose
    scale, zero = graph.constant(node, operand.scale), graph.constant(node, operand.zero_point)
    number_format = _format(graph, node, zero)
    if scale is None or scale.data_type not in _TYPES:
        # whoever reads codes of such a scale finds them quantized by another node
        return _Found(name, number_format) if node.op_type == "QuantizeLinear" else None
    is_number = zero is not None and zero.data_type in FORMATS
    return _Found(name, number_format, scale, zero if is_number else None)


def _is_weight(graph: Graph, name: str) -> bool:
    """Say whether a value is a constant, or part of one: the rows that a table is asked for."""
    for _ in range(_FAR):
        if name in graph.tensors:
            return True
        maker = graph.makers.get(name)
        if maker is None or maker.op_type not in _MOVING or not maker.input:
            return False
        name = maker.input[0]
    return False


def _float_name(graph: Graph, node: onnx.NodeProto, name: str) -> str:
    """Return what the value was called before it became codes."""
    if node.op_type == "QuantizeLinear" or node.op_type.startswith("Dynamic"):
        return name.removesuffix(_OUTPUT)
    maker = graph.makers.get(name)
    if maker is not None and maker.op_type == "QuantizeLinear" and maker.input:
        return maker.input[0].removesuffix(_OUTPUT)
    return name.removesuffix(_CODES)


def _format(graph: Graph, node: onnx.NodeProto, zero: onnx.TensorProto | None) -> str:
    if zero is not None:
        return FORMATS.get(zero.data_type, "")
    if node.op_type != "DequantizeLinear":  # uint8 is QuantizeLinear's own choice
        stated = attribute(node, "output_dtype", 0) or onnx.TensorProto.UINT8
        return FORMATS.get(stated, "")
    maker = graph.makers.get(node.input[0])
    if maker is None or maker.op_type != "QuantizeLinear":
        return ""
    return _format(graph, maker, graph.constant(maker, 2))
