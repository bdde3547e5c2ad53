"""Operators from codes to codes, written as DequantizeLinear, float operator, QuantizeLinear."""

from collections.abc import Sequence

import numpy as np
import onnx

from foldmark.errors import OperatorNotSupported
from foldmark.graphs.reading.codes import decode, encode
from foldmark.graphs.reading.names import without_suffixes
from foldmark.graphs.reading.nodes import attributes
from foldmark.graphs.reading.parameters import Parameters, is_single
from foldmark.graphs.reading.workspace import Workspace

__all__ = [
    "operand",
    "q_gemm",
    "qlinear_average_pool",
    "qlinear_binary",
    "qlinear_concat",
    "qlinear_conv",
    "qlinear_global_average_pool",
    "qlinear_matmul",
    "qlinear_reduce_mean",
    "qlinear_softmax",
    "qlinear_unary",
    "qlinear_where",
]


def operand(space: Workspace, names: Sequence[str], axis: int | None = None) -> str:
    """Return the float value of an operand given as codes, scale and zero point.

    Args:
        space: the graph being rewritten.
        names: of codes, scale and, where it is given, zero point.
        axis: what a scale of several elements runs along.
    """
    codes, scale, zero_point = [*names, ""][:3]
    along = None if axis is None or is_single(space, scale) else axis
    return decode(space, codes, Parameters(scale, zero_point, along))


def result(space: Workspace, node: onnx.NodeProto, value: str, scale: str, zero_point: str) -> None:
    """Quantize what a float operator gave into the codes that the node gives."""
    encode(space, value, Parameters(scale, zero_point), node.output[0])


def float_name(space: Workspace, codes: str) -> str:
    """Return a free name for the float value of codes: what it was called before, if possible."""
    names = [name for name in without_suffixes(codes) if name != codes]
    base = names[-1] if names else f"{codes}_float"
    free = space.fresh(base)
    space.titles[free] = base
    return free


def _operator(
    space: Workspace, node: onnx.NodeProto, operator: str, inputs: Sequence[str], *dropped: str
) -> str:
    """Write the float operator of a node, with its attributes but those dropped."""
    given = attributes(node)
    if given.get("channels_last"):
        raise OperatorNotSupported(
            f"{node.op_type} with channels last", where=f"node {node.name or node.output[0]!r}"
        )
    kept = {key: value for key, value in given.items() if key not in {*dropped, "channels_last"}}
    output = float_name(space, node.output[0])
    return space.emit(operator, inputs, output, name=node.name, attributes=kept)


def qlinear_conv(space: Workspace, node: onnx.NodeProto) -> None:
    """Read QLinearConv; its bias has the scale x_scale * w_scale."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.input[:8]
    inputs = [operand(space, (x, x_scale, x_zero)), operand(space, (w, w_scale, w_zero), 0)]
    if len(node.input) > 8 and node.input[8]:
        inputs.append(product_bias(space, node.input[8], x_scale, w_scale))
    result(space, node, _operator(space, node, "Conv", inputs), y_scale, y_zero)


def product_bias(space: Workspace, codes: str, scale: str, other: str, alpha: float = 1.0) -> str:
    """Return the float value of an int32 bias whose scale is the product of two others."""
    factors = space.array(scale), space.array(other)
    if factors[0] is None or factors[1] is None:
        raise OperatorNotSupported(
            "a bias whose scale is chosen at run time", where=f"bias {codes!r}"
        )
    step = (factors[0].reshape(-1) * factors[1].reshape(-1) * np.float32(alpha)).astype(np.float32)
    name = space.constant(step.reshape(()) if step.size == 1 else step, f"{codes}_scale")
    return operand(space, (codes, name), -1)


def qlinear_matmul(space: Workspace, node: onnx.NodeProto) -> None:
    """Read QLinearMatMul; scales of several elements are one a row of a, one a column of b."""
    a, b = operand(space, node.input[0:3], -2), operand(space, node.input[3:6], -1)
    result(space, node, _operator(space, node, "MatMul", [a, b]), *node.input[6:8])


def q_gemm(space: Workspace, node: onnx.NodeProto) -> None:
    """Read QGemm: y = alpha a b + c, c of scale alpha a_scale b_scale; float without y_scale."""
    given = attributes(node)
    alpha = float(given.get("alpha", 1.0))
    axis = 0 if given.get("transB", 0) else 1
    inputs = [operand(space, node.input[0:3]), operand(space, node.input[3:6], axis)]
    rest = [*node.input[6:], "", "", ""]
    if rest[0]:
        inputs.append(product_bias(space, rest[0], node.input[1], node.input[4], alpha))
    if rest[1]:
        result(space, node, _operator(space, node, "Gemm", inputs), rest[1], rest[2])
    else:
        space.emit("Gemm", inputs, node.output[0], name=node.name, attributes=given)


def qlinear_binary(space: Workspace, node: onnx.NodeProto) -> None:
    """Read QLinearAdd and QLinearMul."""
    operands = [operand(space, node.input[0:3]), operand(space, node.input[3:6])]
    operator = node.op_type.removeprefix("QLinear")
    rest = [*node.input[6:8], ""]
    result(space, node, _operator(space, node, operator, operands), rest[0], rest[1])


def qlinear_unary(space: Workspace, node: onnx.NodeProto) -> None:
    """Read QLinearSigmoid and QLinearLeakyRelu."""
    operator = node.op_type.removeprefix("QLinear")
    value = _operator(space, node, operator, [operand(space, node.input[0:3])])
    rest = [*node.input[3:5], ""]
    result(space, node, value, rest[0], rest[1])


def qlinear_softmax(space: Workspace, node: onnx.NodeProto) -> None:
    """Read QLinearSoftmax; before opset 13 softmax runs over all axes from `axis` on."""
    given = attributes(node)
    old = int(given.get("opset", 13)) < 13
    axis = int(given.get("axis", 1 if old else -1))
    x = operand(space, node.input[0:3])
    output = float_name(space, node.output[0])
    if old:
        value = _flat_softmax(space, x, axis, output)
    else:
        value = space.emit("Softmax", [x], output, name=node.name, attributes={"axis": axis})
    result(space, node, value, node.input[3], [*node.input[4:5], ""][0])


def _flat_softmax(space: Workspace, x: str, axis: int, output: str) -> str:
    shape = space.emit("Shape", [x], space.fresh(f"{output}_shape"))
    flat = space.emit("Flatten", [x], space.fresh(f"{output}_flat"), attributes={"axis": axis})
    row = space.emit("Softmax", [flat], space.fresh(f"{output}_row"), attributes={"axis": -1})
    return space.emit("Reshape", [row, shape], output)


def qlinear_global_average_pool(space: Workspace, node: onnx.NodeProto) -> None:
    """Read QLinearGlobalAveragePool."""
    value = _operator(space, node, "GlobalAveragePool", [operand(space, node.input[0:3])])
    result(space, node, value, *node.input[3:5])


def qlinear_average_pool(space: Workspace, node: onnx.NodeProto) -> None:
    """Read QLinearAveragePool."""
    value = _operator(space, node, "AveragePool", [operand(space, node.input[0:3])])
    rest = [*node.input[3:5], ""]
    result(space, node, value, rest[0], rest[1])


def qlinear_reduce_mean(space: Workspace, node: onnx.NodeProto) -> None:
    """Read QLinearReduceMean; its axes become an input where the opset wants them there."""
    inputs, dropped = [operand(space, node.input[0:3])], []
    axes = attributes(node).get("axes")
    if axes is not None and space.opset() >= 18:
        inputs.append(space.constant(np.asarray(axes, np.int64), f"{node.output[0]}_axes"))
        dropped.append("axes")
    value = _operator(space, node, "ReduceMean", inputs, *dropped)
    result(space, node, value, *node.input[3:5])


def qlinear_concat(space: Workspace, node: onnx.NodeProto) -> None:
    """Read QLinearConcat: the result's scale and zero point, then three inputs an operand."""
    operands = [
        operand(space, node.input[place : place + 3]) for place in range(2, len(node.input), 3)
    ]
    result(space, node, _operator(space, node, "Concat", operands), *node.input[0:2])


def qlinear_where(space: Workspace, node: onnx.NodeProto) -> None:
    """Read QLinearWhere."""
    condition = space.value(node.input[0])
    operands = [operand(space, node.input[1:4]), operand(space, node.input[4:7])]
    value = _operator(space, node, "Where", [condition, *operands])
    result(space, node, value, *node.input[7:9])
