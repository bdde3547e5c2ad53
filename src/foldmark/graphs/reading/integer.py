"""Products of integers that become real later: MatMulInteger, Cast, Mul by the scales.

The integer product says nothing about the scales; they come in one or more Mul behind it. So
it is kept as an accumulator that collects factors until both operands have their scale.
"""

from dataclasses import dataclass, replace

import numpy as np
import onnx

from foldmark.errors import OperatorNotSupported
from foldmark.graphs.reading.codes import decode
from foldmark.graphs.reading.nodes import attributes
from foldmark.graphs.reading.parameters import Parameters
from foldmark.graphs.reading.qlinear import operand
from foldmark.graphs.reading.scales import check_scale
from foldmark.graphs.reading.workspace import Accumulator, Workspace

__all__ = [
    "cast_accumulator",
    "dynamic_quantize_matmul",
    "integer_product",
    "matmul_integer_to_float",
    "multiply_accumulator",
    "quantize_at_run_time",
]


def integer_product(space: Workspace, node: onnx.NodeProto) -> None:
    """Read MatMulInteger and ConvInteger: remember the product until its scale is known."""
    space.copy(node)
    space.accumulators[node.output[0]] = Accumulator(node)


def cast_accumulator(space: Workspace, node: onnx.NodeProto) -> bool:
    """Carry an accumulator through a Cast to float; False when the Cast is of something else."""
    accumulator = space.accumulators.get(node.input[0])
    if accumulator is None:
        return False
    _carry(space, node, accumulator)
    return True


def multiply_accumulator(space: Workspace, node: onnx.NodeProto) -> bool:
    """Multiply an accumulator; False when neither operand of the Mul is one."""
    for name, factor in (tuple(node.input), tuple(reversed(node.input))):
        if name in space.accumulators:
            scale_accumulator(space, node, name, factor)
            return True
    return False


def scale_accumulator(space: Workspace, node: onnx.NodeProto, name: str, factor: str) -> None:
    """Multiply an accumulator by a factor; written in float once both scales are there."""
    accumulator = space.accumulators[name]
    grown = replace(accumulator, factors=(*accumulator.factors, *_factors(space, factor)))
    if _is_complete(space, grown):
        write(space, grown, node.output[0])
    else:
        _carry(space, node, grown)


def _carry(space: Workspace, node: onnx.NodeProto, accumulator: Accumulator) -> None:
    output = node.output[0]
    space.accumulators[output] = accumulator
    space.pending[output] = lambda: write(space, accumulator, output)


def _factors(space: Workspace, name: str) -> list[str]:
    """Return the names whose product a scale is, looking through reshapes and casts."""
    node = space.producers.get(name)
    if space.array(name) is not None or node is None:
        return [name]
    if node.op_type == "Mul":
        return [*_factors(space, node.input[0]), *_factors(space, node.input[1])]
    if node.op_type in {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze"}:
        return _factors(space, node.input[0])
    return [name]


def _is_complete(space: Workspace, accumulator: Accumulator) -> bool:
    sides = [_side(space, accumulator.node, place) for place in (0, 1)]
    scales = [side.scale for side in sides if side.scale]
    rest = _without(accumulator.factors, scales)
    if len(scales) == 2:
        return len(rest) == len(accumulator.factors) - 2
    return bool(scales) and any(space.array(name) is not None for name in accumulator.factors)


@dataclass(frozen=True)
class _Side:
    """An operand: its codes, and the scale when what made the codes tells."""

    codes: str
    zero_point: str
    scale: str


def _side(space: Workspace, node: onnx.NodeProto, place: int) -> _Side:
    codes = node.input[place]
    zero_point = [*node.input, "", ""][2 + place]
    maker = space.producers.get(codes)
    while maker is not None and maker.op_type not in _QUANTIZERS and maker.input:
        maker = space.producers.get(maker.input[0])
    if space.array(codes) is not None or maker is None:
        return _Side(codes, zero_point, "")
    scale = maker.output[1] if maker.op_type == "DynamicQuantizeLinear" else maker.input[1]
    return _Side(codes, zero_point, scale)


_QUANTIZERS = frozenset({"DynamicQuantizeLinear", "QuantizeLinear"})


def _without(factors: tuple[str, ...], scales: list[str]) -> list[str]:
    rest = list(factors)
    for scale in scales:
        if scale in rest:
            rest.remove(scale)
    return rest


def write(space: Workspace, accumulator: Accumulator, wanted: str) -> None:
    """Write the float product of an accumulator's operands.

    What is left of the factors once the known scales are taken out is the scale of the other
    operand, a constant.

    Raises:
        OperatorNotSupported: the product never got the scale of an operand.
    """
    node = accumulator.node
    sides = [_side(space, node, place) for place in (0, 1)]
    known = [side.scale for side in sides if side.scale]
    rest = _without(accumulator.factors, known)
    combined = np.ones((), np.float32)
    for name in rest:
        array = space.array(name)
        if array is not None:
            check_scale(space, name, array)
            combined = combined * _flat(array)
    for scale in _without(tuple(known), list(accumulator.factors)):
        combined = combined / _fixed(space, node, scale)
    leftover = [space.value(name) for name in rest if space.array(name) is None]
    if all(side.scale for side in sides) and np.any(combined != 1):
        leftover.append(space.constant(combined, f"{wanted}_factor"))
    _write_product(space, node, _operands(space, node, sides, combined), leftover, wanted)


def _flat(scale: np.ndarray) -> np.ndarray:
    """Return a scale without the axes that broadcasting needed."""
    return scale.reshape(-1 if scale.size > 1 else ()).astype(np.float32)


def _fixed(space: Workspace, node: onnx.NodeProto, scale: str) -> np.ndarray:
    """Return a scale that the factors hold only as part of a constant."""
    fixed = space.array(scale)
    if fixed is None:
        raise OperatorNotSupported(
            f"{node.op_type} that is not multiplied by the scale of its input",
            where=f"node {node.name or node.output[0]!r}",
            expected=f"a Mul by {scale!r} behind it",
        )
    return _flat(fixed)


def _write_product(
    space: Workspace, node: onnx.NodeProto, inputs: list[str], leftover: list[str], wanted: str
) -> None:
    operator = node.op_type.removesuffix("Integer")
    steps = [wanted if i == len(leftover) else "" for i in range(len(leftover) + 1)]
    outputs = [step or space.fresh(f"{wanted}_product") for step in steps]
    value = space.emit(operator, inputs, outputs[0], name=node.name, attributes=attributes(node))
    for factor, output in zip(leftover, outputs[1:], strict=True):
        value = space.emit("Mul", [value, factor], output)


def _operands(
    space: Workspace, node: onnx.NodeProto, sides: list[_Side], combined: np.ndarray
) -> list[str]:
    """Return the float operands; the combined scale goes to the one without its own."""
    alone = [side for side in sides if not side.scale]
    constant = [side for side in alone if space.array(side.codes) is not None]
    stored = next(iter(constant + alone), None)
    one = np.ones((), np.float32)
    return [
        decode(space, side.codes, Parameters(side.scale, side.zero_point))
        if side.scale
        else _unscaled(space, node, side, combined if side is stored else one)
        for side in sides
    ]


def _unscaled(space: Workspace, node: onnx.NodeProto, side: _Side, scale: np.ndarray) -> str:
    """Return the float value of codes whose scale stands behind the product."""
    zero = space.array(side.zero_point) if side.zero_point else None
    count = max(scale.size, 1 if zero is None else zero.size)
    shape, axis = ((), None) if count == 1 else ((count,), -1)
    if axis is not None and node.op_type == "ConvInteger":
        axis = 0
    scale_name = space.constant(
        np.broadcast_to(scale.reshape(-1 if scale.size > 1 else ()), shape),
        f"{side.codes}_combined_scale",
    )
    zero_name = side.zero_point
    if zero is not None and zero.shape != shape:
        flat = zero.reshape(-1 if zero.size > 1 else ())
        zero_name = space.constant(np.broadcast_to(flat, shape), f"{side.zero_point}_spread")
    return decode(space, side.codes, Parameters(scale_name, zero_name, axis))


def matmul_integer_to_float(space: Workspace, node: onnx.NodeProto) -> None:
    """Read MatMulIntegerToFloat: A, B, their scales, their zero points, a float bias."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = [*node.input, "", "", ""][:7]
    operands = [operand(space, (a, a_scale, a_zero)), operand(space, (b, b_scale, b_zero), -1)]
    _with_bias(space, node, operands, bias)


def dynamic_quantize_matmul(space: Workspace, node: onnx.NodeProto) -> None:
    """Read DynamicQuantizeMatMul: A in float is quantized to uint8 at run time."""
    a, b, b_scale, b_zero, bias = [*node.input, "", ""][:5]
    quantized = quantize_at_run_time(space, a)
    operands = [operand(space, quantized), operand(space, (b, b_scale, b_zero), -1)]
    _with_bias(space, node, operands, bias)


def quantize_at_run_time(space: Workspace, x: str) -> list[str]:
    """Write a DynamicQuantizeLinear; return the names of codes, scale and zero point."""
    outputs = [space.fresh(f"{x}_{part}") for part in ("codes", "scale", "zero_point")]
    quantizer = onnx.helper.make_node(
        "DynamicQuantizeLinear", [space.value(x)], outputs, name=outputs[0]
    )
    space.write(quantizer)
    for output in outputs:
        space.producers[output] = quantizer
    return outputs


def _with_bias(space: Workspace, node: onnx.NodeProto, operands: list[str], bias: str) -> None:
    product = space.fresh(f"{node.output[0]}_product") if bias else node.output[0]
    space.emit("MatMul", operands, product, name=node.name)
    if bias:
        space.emit("Add", [product, space.value(bias)], node.output[0])
