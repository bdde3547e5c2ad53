"""Outputs that a quantized model gives as codes, made comparable with those of a float model."""

import onnx
from onnx import helper

from foldmark.graphs.reading.movement import data_inputs, only_moves

__all__ = ["with_float_outputs"]

# Where an operator that gives codes is given their scale and zero point.
_RESULT_PARAMETERS = {
    "QuantizeLinear": (1, 2),
    "QLinearConv": (6, 7),
    "QLinearMatMul": (6, 7),
    "QLinearAdd": (6, 7),
    "QLinearMul": (6, 7),
    "QLinearSigmoid": (3, 4),
    "QLinearLeakyRelu": (3, 4),
    "QLinearSoftmax": (3, 4),
    "QLinearGlobalAveragePool": (3, 4),
    "QLinearAveragePool": (3, 4),
    "QLinearReduceMean": (3, 4),
    "QLinearConcat": (0, 1),
    "QLinearWhere": (7, 8),
    "QGemm": (7, 8),
}


def with_float_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a DequantizeLinear behind every output that is codes.

    The outputs keep their names; outputs that are only the scale and zero point of another's
    codes are dropped. The model given is not changed; it is returned itself when all its outputs
    are numbers already.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    found = {}
    for value in model.graph.output:
        parameters = _parameters(value.name, makers)
        if parameters and value.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
            found[value.name] = parameters
    if not found:
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    _rename(changed.graph, {name: f"{name}_codes" for name in found})
    for value in changed.graph.output:
        if value.name in found:
            scale, zero_point = found[value.name]
            inputs = [f"{value.name}_codes", scale, *([zero_point] if zero_point else [])]
            node = helper.make_node("DequantizeLinear", inputs, [value.name], f"{value.name}_real")
            changed.graph.node.append(node)
            value.type.tensor_type.elem_type = kinds.get(scale, onnx.TensorProto.FLOAT)
    computed = {name for pair in found.values() for name in pair if name in makers}
    kept = [value for value in changed.graph.output if value.name not in computed]
    del changed.graph.output[:]
    changed.graph.output.extend(kept)
    return changed


def _parameters(value: str, makers: dict[str, onnx.NodeProto]) -> tuple[str, str] | None:
    """Return scale and zero point of an output's codes, None when they are no codes."""
    node = makers.get(value)
    while node is not None and only_moves(node):
        value = node.input[data_inputs(node)[0]]
        node = makers.get(value)
    if node is not None and node.op_type == "DynamicQuantizeLinear" and value == node.output[0]:
        return node.output[1], node.output[2]
    places = _RESULT_PARAMETERS.get(node.op_type) if node is not None else None
    if node is None or places is None or len(node.input) <= places[0]:
        return None
    if not node.input[places[0]]:
        return None
    zero_point = node.input[places[1]] if len(node.input) > places[1] else ""
    return node.input[places[0]], zero_point


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
        for place, name in enumerate(node.output):
            node.output[place] = names.get(name, name)
