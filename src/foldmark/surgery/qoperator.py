"""Quantize/dequantize pairs rewritten to operators on codes: QLinearConv and QLinearMatMul."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from foldmark.surgery.account import Account
from foldmark.surgery.editor import Editor, array_of, consumers, node_name

__all__ = ["to_operators"]

_ACTIVATIONS = {"Relu", "Clip"}


@dataclass(frozen=True)
class _Pattern:
    """A product between its dequantized inputs and its quantized result."""

    node: onnx.NodeProto
    activation: onnx.NodeProto
    weight: onnx.NodeProto
    bias: onnx.NodeProto | None
    quantize: onnx.NodeProto
    gone: tuple[onnx.NodeProto, ...]


def to_operators(model: onnx.ModelProto, account: Account) -> onnx.ModelProto:
    """Return a model of pairs with every Conv and MatMul that stands between pairs on codes.

    What has no result in codes (a matrix product whose result stays in float) keeps its pairs:
    the two forms mean the same, and ONNX Runtime fuses the pairs when it loads the model.
    """
    editor = Editor(model)
    graph = editor.root.graph
    makers = {name: node for node in graph.node for name in node.output}
    readers = consumers(graph)
    replaced: dict[str, onnx.NodeProto] = {}
    gone: set[str] = set()
    kept = signed = 0
    for node in graph.node:
        if node.op_type not in ("Conv", "MatMul"):
            continue
        pattern = _pattern(node, makers, readers, editor)
        if pattern is None:
            kept += any(_dequantize(name, makers) is not None for name in node.input)
            continue
        replaced[node.output[0]] = _on_codes(pattern)
        signed += _code_type(pattern.activation, editor) == TensorProto.INT8
        gone |= {each.output[0] for each in pattern.gone}
    made = []
    for node in graph.node:
        if node.output[0] in replaced:
            made.append(replaced[node.output[0]])
        elif node.output[0] not in gone:
            made.append(node)
    editor.replace_nodes(editor.root, _without_unread(made, graph))
    if kept:
        account.note(f"{kept} products give floats and keep their pairs; ONNX Runtime fuses them")
    if signed:
        # Of pairs ONNX Runtime moves such codes to uint8 itself; operators it takes as they are.
        account.note(
            f"{signed} operators multiply int8 activations by int8 weights: on x86 processors "
            "ONNX Runtime's fast kernels take uint8 activations, and these may be slower than "
            "float; use uint8 activations, or pairs instead of operators"
        )
    return editor.finish()


def _pattern(
    node: onnx.NodeProto,
    makers: Mapping[str, onnx.NodeProto],
    readers: Mapping[str, list[onnx.NodeProto]],
    editor: Editor,
) -> _Pattern | None:
    activation, weight = (_dequantize(node.input[i], makers) for i in (0, 1))
    bias = _dequantize(node.input[2], makers) if len(node.input) > 2 else None
    if activation is None or weight is None or (len(node.input) > 2 and bias is None):
        return None
    gone: list[onnx.NodeProto] = []
    result = node.output[0]
    users = readers[result]
    if len(users) == 1 and users[0].op_type in _ACTIVATIONS:
        # Codes are cut at the activation's bounds already when the range begins and ends there.
        gone.append(users[0])
        result = users[0].output[0]
        users = readers[result]
    if len(users) != 1 or users[0].op_type != "QuantizeLinear":
        return None
    quantize = users[0]
    if gone and not _cuts_alike(gone[0], quantize, editor):
        return None
    outputs = {value.name for value in editor.root.graph.output}
    if outputs & {node.output[0], result}:
        return None
    types = {_code_type(each, editor) for each in (activation, quantize)}
    if types not in ({TensorProto.UINT8}, {TensorProto.INT8}):
        return None
    return _Pattern(node, activation, weight, bias, quantize, (*gone, quantize))


def _cuts_alike(function: onnx.NodeProto, quantize: onnx.NodeProto, editor: Editor) -> bool:
    """Return whether codes beyond the activation function's bounds can't arise."""
    scale, zero = (editor.root.find(name) for name in quantize.input[1:3])
    if scale is None or zero is None:
        return False
    step = float(np.asarray(array_of(scale[1])).ravel()[0])
    signed = zero[1].data_type == TensorProto.INT8
    middle = int(np.asarray(array_of(zero[1])).ravel()[0])
    low, high = ((end - middle) * step for end in ((-128, 127) if signed else (0, 255)))
    bounds = [0.0, np.inf]
    if function.op_type == "Clip":
        bounds = [-np.inf, np.inf]
        for index in (1, 2):
            if len(function.input) > index and function.input[index]:
                found = editor.root.find(function.input[index])
                if found is None:
                    return False
                bounds[index - 1] = float(np.asarray(array_of(found[1])).ravel()[0])
    # Half a step: what lies between the last code and the bound rounds to that code.
    return low >= bounds[0] - step / 2 and high <= bounds[1] + step / 2


def _dequantize(name: str, makers: Mapping[str, onnx.NodeProto]) -> onnx.NodeProto | None:
    node = makers.get(name)
    return node if node is not None and node.op_type == "DequantizeLinear" else None


def _code_type(node: onnx.NodeProto, editor: Editor) -> int:
    found = editor.root.find(node.input[2]) if len(node.input) > 2 else None
    return found[1].data_type if found is not None else TensorProto.UINT8


def _on_codes(pattern: _Pattern) -> onnx.NodeProto:
    node, weight = pattern.node, pattern.weight
    inputs = [*pattern.activation.input, *weight.input, *pattern.quantize.input[1:]]
    if pattern.bias is not None:
        inputs.append(pattern.bias.input[0])
    made = helper.make_node(
        f"QLinear{node.op_type}", inputs, [pattern.quantize.output[0]], f"{node_name(node)}_quant"
    )
    made.attribute.extend(node.attribute)
    return made


def _without_unread(nodes: list[onnx.NodeProto], graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes without those whose results nothing reads any more."""
    outputs = {value.name for value in graph.output}
    while True:
        read = outputs | {name for node in nodes for name in node.input}
        kept = [
            node for node in nodes if node.op_type != "DequantizeLinear" or set(node.output) & read
        ]
        if len(kept) == len(nodes):
            return kept
        nodes = kept
