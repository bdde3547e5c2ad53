"""A model run as a processor without VNNI would: pairs of u8 x s8 products saturate in 16 bits.

Each integer product is computed exactly by ONNX Runtime, and what saturation adds to its sums is
computed here, from every activation code, and added to them: the arithmetic of
`foldmark.exact.dot.saturating_pairs_dot` in place of the integer dot product. Later layers see
what earlier ones made of it.

The exact sums must not saturate on any processor. Weights are given as uint8 for that, 128 higher
as their zero point is: u8 x u8 products are added in 32 bits everywhere, and so are those of
ConvInteger, whose int8 weight stands on the left.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from foldmark.kernels.compiled import compiled
from foldmark.proof.signed import signed_products
from foldmark.runtimes.onnxruntime import Optimization, Session

__all__ = [
    "IntegerProduct",
    "SaturatingSession",
    "dynamic_codes",
    "integer_products",
    "saturation_errors",
    "windows",
]

Array = NDArray[np.generic]
_LOW, _HIGH = -32768, 32767

# operator -> index of activation and weight, and of the zero point of each.
_OPERANDS = {
    "QLinearMatMul": (0, 3, 2, 5), "QGemm": (0, 3, 2, 5), "QLinearConv": (0, 3, 2, 5),
    "MatMulInteger": (0, 1, 2, 3), "MatMulIntegerToFloat": (0, 1, 4, 5),
    "DynamicQuantizeMatMul": (0, 1, -1, 3),
}  # fmt: skip
_SIGN = np.uint8(0x80)


@dataclass(frozen=True)
class IntegerProduct:
    """An integer product of activations with stored int8 weights.

    Attributes:
        node: the operator.
        activation: the value that holds its activation codes (floats for DynamicQuantizeMatMul).
        codes: its weights: (n, k), or (out, in / group, *window) of a convolution.
        is_convolution: whether windows are gathered before they are multiplied.
    """

    node: onnx.NodeProto
    activation: str
    codes: NDArray[np.int8]
    is_convolution: bool

    @property
    def zero_point(self) -> str:
        """Name of the activation's zero point, "" without one."""
        return self._operand(2)

    @property
    def weight_zero(self) -> str:
        """Name of the weight's zero point, "" without one."""
        return self._operand(3)

    def _operand(self, which: int) -> str:
        index = _OPERANDS[self.node.op_type][which]
        return self.node.input[index] if 0 <= index < len(self.node.input) else ""


def integer_products(model: onnx.ModelProto) -> Iterator[IntegerProduct]:
    """Yield the products that u8 x s8 pairs are multiplied for, those outside control flow.

    Not those of int8 activations, nor ConvInteger: with int8 codes on the left ONNX Runtime takes
    a kernel whose sums are 32 bits wide.
    """
    signed = signed_products(model)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type not in _OPERANDS or node.name in signed:
            continue
        activation, weight = (node.input[i] for i in _OPERANDS[node.op_type][:2])
        tensor = stored.get(weight)
        if tensor is None or tensor.data_type != TensorProto.INT8:
            continue
        codes = numpy_helper.to_array(tensor)
        convolution = node.op_type == "QLinearConv"
        if convolution and codes.shape[1] == 1:
            continue  # depthwise: one channel a window, computed without byte pairs
        if not convolution:
            if codes.ndim != 2:
                continue  # a weight of its own for every batch entry
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            codes = np.ascontiguousarray(codes if transposed else codes.T)
        found = IntegerProduct(node, activation, codes, convolution)
        if found.weight_zero in ("", *stored):
            yield found


@compiled
def saturation_errors(
    activations: NDArray[np.uint8], weights: NDArray[np.int8]
) -> NDArray[np.int32]:
    """Return what saturation adds to each sum of products, and count the pairs.

    activations  (m, k)  uint8
    weights      (k, n)  int8
    ->           (m, n)  int32: sum over pairs of clip(a w + a' w', int16) - (a w + a' w')
    """
    rows, inner = activations.shape
    columns = weights.shape[1]
    errors = np.zeros((rows, columns), np.int32)
    for row in range(rows):
        out = errors[row]
        for k in range(0, inner - 1, 2):
            a, b = np.int32(activations[row, k]), np.int32(activations[row, k + 1])
            if a + b < 256:  # 128 (a + b) fits
                continue
            first, second = weights[k], weights[k + 1]
            for column in range(columns):
                pair = a * np.int32(first[column]) + b * np.int32(second[column])
                out[column] += min(max(pair, np.int32(_LOW)), np.int32(_HIGH)) - pair
    return errors


class SaturatingSession:
    """A quantized model, run with saturating pairs.

    Args:
        model: the model as ONNX Runtime rewrote it, optimized no further than EXTENDED.
        threads: threads of one operator.
        saturate: False gives the same graph with exact sums, to compare with.
    """

    def __init__(
        self, model: onnx.ModelProto, threads: int | None = None, *, saturate: bool = True
    ) -> None:
        self._products = {each.node.name: each for each in integer_products(model)}
        self._weights = {
            name: np.ascontiguousarray(each.codes.T)
            for name, each in self._products.items()
            if not each.is_convolution
        }
        self._saturate, self._threads = saturate, threads
        self._stored = {tensor.name: tensor for tensor in model.graph.initializer}
        self._opsets, self._version = list(model.opset_import), model.ir_version
        self.outputs = tuple(value.name for value in model.graph.output)
        self._stages = self._staged(model)
        self._sessions: dict[int, Session] = {}

    def run(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Run once and return the named outputs, all when None."""
        values: dict[str, Array] = dict(feeds)
        for index, (nodes, wanted) in enumerate(self._stages):
            for node in nodes:
                if node.name in self._products:
                    values[_added(node.name)] = self._error(self._products[node.name], values)
            values |= self._session(index, nodes, wanted, values).run(
                {name: values[name] for name in self._needed(nodes, values)}
            )
        return {name: values[name] for name in (outputs or self.outputs)}

    def _staged(self, model: onnx.ModelProto) -> list[tuple[list[onnx.NodeProto], tuple[str, ...]]]:
        """Return the nodes in stages: a product stands one stage after what it reads."""
        stage_of: dict[str, int] = {}
        stages: dict[int, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            read = [stage_of.get(name, 0) for name in _read(node)]
            stage = max(read, default=0) + (node.name in self._products)
            stages.setdefault(stage, []).append(node)
            stage_of |= dict.fromkeys(node.output, stage)
        last_read: dict[str, int] = dict.fromkeys(self.outputs, len(stages) + 1)
        for stage, nodes in stages.items():
            for node in nodes:
                for name in _read(node):
                    last_read[name] = max(last_read.get(name, 0), stage)
        return [
            (
                nodes,
                tuple(
                    name
                    for node in nodes
                    for name in node.output
                    if name and last_read.get(name, -1) > stage
                ),
            )
            for stage, nodes in sorted(stages.items())
        ]

    def _needed(self, nodes: Sequence[onnx.NodeProto], values: Mapping[str, Array]) -> list[str]:
        made = {name for node in nodes for name in node.output}
        read = {name for node in nodes for name in _read(node)}
        extra = {_added(node.name) for node in nodes if node.name in self._products}
        return sorted((read | extra) & values.keys() - made)

    def _session(
        self,
        index: int,
        nodes: Sequence[onnx.NodeProto],
        wanted: tuple[str, ...],
        values: Mapping[str, Array],
    ) -> Session:
        """Return a stage's session, made when it is first needed: only then are types known."""
        if index not in self._sessions:
            changed = _Rewritten(self._stored)
            for node in nodes:
                changed.add(node, self._products.get(node.name))
            inputs = [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(values[name].dtype), None
                )
                for name in self._needed(nodes, values)
            ]
            read = {name for node in changed.nodes for name in _read(node)}
            stored = [tensor for name, tensor in self._stored.items() if name in read]
            graph = helper.make_graph(
                changed.nodes,
                "stage",
                inputs,
                [onnx.ValueInfoProto(name=name) for name in wanted],
                [*stored, *changed.stored],
            )
            made = helper.make_model(graph, opset_imports=self._opsets, ir_version=self._version)
            self._sessions[index] = Session(
                made, optimization=Optimization.OFF, threads=self._threads
            )
        return self._sessions[index]

    def _error(self, product: IntegerProduct, values: Mapping[str, Array]) -> Array:
        """Return what saturation adds to a product's sums, in the shape of its result."""
        if not self._saturate:
            return np.zeros((), np.int32)
        given = self._value(product.activation, values)
        codes = dynamic_codes(given)[0] if given.dtype == np.float32 else given.view(np.uint8)
        if product.is_convolution:
            return self._convolution_error(product, codes, values)
        rows = np.ascontiguousarray(codes.reshape(-1, codes.shape[-1]))
        errors = saturation_errors(rows, self._weights[product.node.name])
        return errors.reshape(*codes.shape[:-1], -1)

    def _convolution_error(
        self, product: IntegerProduct, codes: NDArray[np.uint8], values: Mapping[str, Array]
    ) -> Array:
        zero = self._value(product.zero_point, values) if product.zero_point else np.uint8(0)
        padding = int(np.ravel(zero)[0])
        groups = _group(product.node)
        made = []
        for inside, filters in zip(
            np.split(codes, groups, axis=1), np.split(product.codes, groups), strict=True
        ):
            rows, space = windows(product.node, inside, filters.shape[2:], padding)
            weights = np.moveaxis(filters, 1, -1).reshape(len(filters), -1).T
            errors = saturation_errors(rows, np.ascontiguousarray(weights))
            made.append(np.moveaxis(errors.reshape(len(codes), *space, -1), -1, 1))
        return np.ascontiguousarray(np.concatenate(made, axis=1))

    def _value(self, name: str, values: Mapping[str, Array]) -> Array:
        if name in values:
            return values[name]
        return numpy_helper.to_array(self._stored[name])


class _Rewritten:
    """The nodes of a stage with every product opened, so that its sums can be added to."""

    def __init__(self, stored: Mapping[str, TensorProto]) -> None:
        self._stored = stored
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[TensorProto] = []

    def add(self, node: onnx.NodeProto, product: IntegerProduct | None) -> None:
        """Add a node; that of a product with its error."""
        if product is None:
            self.nodes.append(node)
            return
        match node.op_type:
            case "MatMulInteger":
                sums = self._sums(node, product, node.input[0], product.zero_point)
                self._node("Identity", [sums], node.output[0])
            case "MatMulIntegerToFloat":
                given = [*node.input, *[""] * (7 - len(node.input))]
                sums = self._sums(node, product, given[0], given[4])
                self._to_float(sums, given[2], given[3], given[6], node.output[0])
            case "DynamicQuantizeMatMul":
                self._dynamic(node, product)
            case _:
                self._to_codes(node, product)

    def _node(self, operator: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def _constant(self, name: str, array: Array | np.floating) -> str:
        self.stored.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def _sums(
        self, node: onnx.NodeProto, product: IntegerProduct, activation: str, zero: str
    ) -> str:
        """Add the bare integer product with its error, and return its name."""
        exact = f"{node.output[0]}__exact"
        if product.is_convolution:
            kept = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            inputs = [activation, node.input[3], *([zero] if zero else [])]
            self._node("ConvInteger", inputs, exact, **kept)
        else:
            weight = self._constant(f"{exact}__weight", product.codes.T.view(np.uint8) ^ _SIGN)
            own = product.weight_zero
            low = numpy_helper.to_array(self._stored[own]) if own else np.zeros((), np.int8)
            high = self._constant(f"{exact}__zero", low.view(np.uint8) ^ _SIGN)
            self._node("MatMulInteger", [activation, weight, zero, high], exact)
        return self._node("Add", [exact, _added(node.name)], f"{exact}__sums")

    def _to_float(self, sums: str, scale: str, weight_scale: str, bias: str, result: str) -> None:
        real = self._node("Cast", [sums], f"{sums}__real", to=TensorProto.FLOAT)
        both = self._node("Mul", [scale, weight_scale], f"{sums}__scale")
        last = f"{sums}__scaled" if bias else result
        self._node("Mul", [real, both], last)
        if bias:
            self._node("Add", [last, bias], result)

    def _dynamic(self, node: onnx.NodeProto, product: IntegerProduct) -> None:
        """Open DynamicQuantizeMatMul: codes, scale and zero point at run time, sums, floats."""
        given = [*node.input, *[""] * (5 - len(node.input))]
        codes, scale, zero = (f"{node.output[0]}__{part}" for part in ("codes", "scale", "zero"))
        self.nodes.append(
            helper.make_node("DynamicQuantizeLinear", [given[0]], [codes, scale, zero], name=codes)
        )
        sums = self._sums(node, product, codes, zero)
        self._to_float(sums, scale, given[2], given[4], node.output[0])

    def _to_codes(self, node: onnx.NodeProto, product: IntegerProduct) -> None:
        """Open QLinearConv, QLinearMatMul and QGemm: sums, bias, scale, rounding, codes."""
        stem, gemm = node.output[0], node.op_type == "QGemm"
        convolution = product.is_convolution
        given = [*node.input, *[""] * (9 - len(node.input))]
        bias = given[6] if gemm else given[8] if convolution else ""
        after = (given[7], given[8]) if gemm else (given[6], given[7])
        sums = self._sums(node, product, given[0], given[2])
        weight = self._stored[given[3]]
        spread = [-1, *[1] * (len(weight.dims) - 2)] if convolution else [-1]
        if bias:
            shaped = self._spread(bias, spread, f"{stem}__bias")
            sums = self._node("Add", [sums, shaped], f"{stem}__biased")
        real = self._node("Cast", [sums], f"{stem}__real", to=TensorProto.FLOAT)
        weight_scale = self._spread(given[4], spread, f"{stem}__weight_scale")
        scale = self._node("Mul", [given[1], weight_scale], f"{stem}__product_scale")
        alpha = _alpha(node)
        if alpha != 1.0:
            factor = self._constant(f"{stem}__alpha", np.float32(alpha))
            scale = self._node("Mul", [scale, factor], f"{stem}__alpha_scale")
        if not after[0]:
            self._node("Mul", [real, scale], node.output[0])
            return
        scale = self._node("Div", [scale, after[0]], f"{stem}__scale")
        real = self._node("Mul", [real, scale], f"{stem}__scaled")
        one = self._constant(f"{stem}__one", np.float32(1))
        self._node("QuantizeLinear", [real, one, *filter(None, after[1:])], node.output[0])

    def _spread(self, name: str, shape: list[int], output: str) -> str:
        sizes = self._constant(f"{output}__shape", np.array(shape, np.int64))
        return self._node("Reshape", [name, sizes], output)


def _added(node: str) -> str:
    return f"{node}__saturation"


def _read(node: onnx.NodeProto) -> set[str]:
    """Return what a node reads, what its bodies take from outside included."""
    read = {name for name in node.input if name}
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            inside = attribute.g
            made = {each.name for each in (*inside.input, *inside.initializer)}
            for inner in inside.node:
                read |= _read(inner) - made
                made |= set(inner.output)
            read |= {value.name for value in inside.output} - made
    return read


def _group(node: onnx.NodeProto) -> int:
    return next((a.i for a in node.attribute if a.name == "group"), 1)


def _alpha(node: onnx.NodeProto) -> float:
    return next((a.f for a in node.attribute if a.name == "alpha"), 1.0)


def dynamic_codes(real: Array) -> tuple[NDArray[np.uint8], np.float32]:
    """Return floats as DynamicQuantizeLinear quantizes them: (codes, scale)."""
    values = real.astype(np.float32, copy=False)
    low, high = min(np.float32(0), values.min()), max(np.float32(0), values.max())
    if high == low:
        return np.zeros(values.shape, np.uint8), np.float32(1)
    scale = np.float32(high - low) / np.float32(255)
    zero = np.rint(np.clip(-low / scale, 0, 255))
    return np.clip(np.rint(values / scale) + zero, 0, 255).astype(np.uint8), np.float32(scale)


def windows(
    node: onnx.NodeProto, codes: NDArray[np.uint8], kernel: tuple[int, ...], padding: int
) -> tuple[NDArray[np.uint8], tuple[int, ...]]:
    """Return what a convolution multiplies, a row per window, in the order (place, channel).

    codes    (batch, channels, *space)
    kernel   size of the window per axis
    padding  the code that stands for zero outside
    ->       (batch * windows, places * channels), windows per axis
    """
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    axes = len(kernel)
    strides = list(found.get("strides", [1] * axes))
    dilations = list(found.get("dilations", [1] * axes))
    reach = [(n - 1) * d + 1 for n, d in zip(kernel, dilations, strict=True)]
    pads = _pads(found, codes.shape[2:], reach, strides)
    padded = np.pad(codes, [(0, 0), (0, 0), *pads], constant_values=padding)
    views = np.lib.stride_tricks.sliding_window_view(padded, reach, tuple(range(2, padded.ndim)))
    whole = slice(None), slice(None)
    steps = tuple(slice(None, None, step) for step in (*strides, *dilations))
    views = views[whole + steps]
    space = views.shape[2 : 2 + axes]
    rows = np.moveaxis(views, 1, -1).reshape(codes.shape[0] * int(np.prod(space)), -1)
    return np.ascontiguousarray(rows), space


def _pads(
    found: Mapping[str, object], space: Sequence[int], reach: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the padding (before, after) of every axis."""
    kind = found.get("auto_pad", b"NOTSET")
    if kind in (b"SAME_UPPER", b"SAME_LOWER"):
        pads = []
        for size, window, stride in zip(space, reach, strides, strict=True):
            total = max(0, (-(-size // stride) - 1) * stride + window - size)
            small, large = total // 2, total - total // 2
            pads.append((small, large) if kind == b"SAME_UPPER" else (large, small))
        return pads
    flat: list[int] = list(found.get("pads", [0] * (2 * len(space))))  # type: ignore[call-overload]
    half = len(space)
    return list(zip(flat[:half], flat[half:], strict=True))
