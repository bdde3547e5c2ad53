"""A model run as a processor without VNNI would: pairs of u8 x s8 products saturate in 16 bits.

Each integer product is computed exactly by ONNX Runtime, and what saturation adds to its sums is
computed here, from every activation code, and added to them: the arithmetic of
`foldmark.exact.dot.saturating_pairs_dot` in place of the integer dot product. Later layers see
what earlier ones made of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from foldmark.kernels.compiled import compiled
from foldmark.runtimes.onnxruntime import Optimization, Session

__all__ = [
    "IntegerProduct",
    "SaturatingSession",
    "dynamic_codes",
    "integer_products",
    "saturation_errors",
    "unsigned_codes",
    "windows",
]

Array = NDArray[np.generic]
_LOW, _HIGH = -32768, 32767

# operator -> index of activation, weight, and the zero point of the activation.
_OPERANDS = {
    "QLinearMatMul": (0, 3, 2), "QGemm": (0, 3, 2), "QLinearConv": (0, 3, 2),
    "MatMulInteger": (0, 1, 2), "MatMulIntegerToFloat": (0, 1, 4), "ConvInteger": (0, 1, 2),
    "DynamicQuantizeMatMul": (0, 1, -1),
}  # fmt: skip
_CONVOLUTIONS = {"QLinearConv", "ConvInteger"}


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
        index = _OPERANDS[self.node.op_type][2]
        return self.node.input[index] if 0 <= index < len(self.node.input) else ""


def integer_products(model: onnx.ModelProto) -> Iterator[IntegerProduct]:
    """Yield the products that byte pairs are multiplied for, those outside control flow."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type not in _OPERANDS:
            continue
        activation, weight = (node.input[i] for i in _OPERANDS[node.op_type][:2])
        tensor = stored.get(weight)
        if tensor is None or tensor.data_type != TensorProto.INT8:
            continue
        codes = numpy_helper.to_array(tensor)
        convolution = node.op_type in _CONVOLUTIONS
        if convolution and codes.shape[1] == 1:
            continue  # depthwise: one channel a window, computed without byte pairs
        if not convolution:
            if codes.ndim != 2:
                continue  # a weight of its own for every batch entry
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            codes = np.ascontiguousarray(codes if transposed else codes.T)
        yield IntegerProduct(node, activation, codes, convolution)


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
        dynamic = product.node.op_type == "DynamicQuantizeMatMul"
        if not self._saturate:
            return np.zeros((), np.float32 if dynamic else np.int32)
        given = self._value(product.activation, values)
        codes, scale = dynamic_codes(given) if dynamic else (unsigned_codes(given), 1.0)
        if product.is_convolution:
            return self._convolution_error(product, codes, values)
        rows = np.ascontiguousarray(codes.reshape(-1, codes.shape[-1]))
        errors = saturation_errors(rows, self._weights[product.node.name])
        errors = errors.reshape(*codes.shape[:-1], -1)
        if not dynamic:
            return errors
        steps = self._value(product.node.input[2], values).astype(np.float32)
        return (errors * np.float32(scale) * steps).astype(np.float32)

    def _convolution_error(
        self, product: IntegerProduct, codes: NDArray[np.uint8], values: Mapping[str, Array]
    ) -> Array:
        given = self._value(product.activation, values)
        zero = self._value(product.zero_point, values) if product.zero_point else np.uint8(0)
        padding = int(unsigned_codes(np.asarray(zero, given.dtype)))
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
            case "MatMulInteger" | "ConvInteger" | "DynamicQuantizeMatMul":
                self._keep(node)
            case "MatMulIntegerToFloat":
                self._to_float(node)
            case _:
                self._to_codes(node)

    def _node(self, operator: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def _constant(self, name: str, array: Array | np.floating) -> str:
        self.stored.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def _keep(self, node: onnx.NodeProto) -> None:
        """Leave the operator and add to what it gives."""
        exact = onnx.NodeProto()
        exact.CopyFrom(node)
        exact.output[0] = f"{node.output[0]}__exact"
        self.nodes.append(exact)
        self._node("Add", [exact.output[0], _added(node.name)], node.output[0])

    def _sums(self, node: onnx.NodeProto, operator: str, zero: str) -> str:
        """Add the bare integer product with its error, and return its name."""
        stem = node.output[0]
        activation, index, _ = _OPERANDS[node.op_type]
        weight = node.input[index]
        if any(a.name == "transB" and a.i for a in node.attribute):
            weight = self._node("Transpose", [weight], f"{stem}__weight", perm=[1, 0])
        kept = {
            a.name: helper.get_attribute_value(a)
            for a in node.attribute
            if operator == "ConvInteger"
        }
        inputs = [node.input[activation], weight, *([zero] if zero else [])]
        exact = self._node(operator, inputs, f"{stem}__exact", **kept)
        return self._node("Add", [exact, _added(node.name)], f"{stem}__sums")

    def _to_float(self, node: onnx.NodeProto) -> None:
        given = [*node.input, *[""] * (7 - len(node.input))]
        sums = self._sums(node, "MatMulInteger", given[4])
        real = self._node("Cast", [sums], f"{sums}__real", to=TensorProto.FLOAT)
        scale = self._node("Mul", [given[2], given[3]], f"{sums}__scale")
        last = f"{sums}__scaled" if given[6] else node.output[0]
        self._node("Mul", [real, scale], last)
        if given[6]:
            self._node("Add", [last, given[6]], node.output[0])

    def _to_codes(self, node: onnx.NodeProto) -> None:
        """Open QLinearConv, QLinearMatMul and QGemm: sums, bias, scale, rounding, codes."""
        stem, gemm = node.output[0], node.op_type == "QGemm"
        convolution = node.op_type == "QLinearConv"
        given = [*node.input, *[""] * (9 - len(node.input))]
        bias = given[6] if gemm else given[8] if convolution else ""
        after = (given[7], given[8]) if gemm else (given[6], given[7])
        sums = self._sums(node, "ConvInteger" if convolution else "MatMulInteger", given[2])
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


def unsigned_codes(tapped: Array) -> NDArray[np.uint8]:
    """Return codes as the instruction reads them; kernels move signed ones up by 128."""
    if tapped.dtype == np.int8:
        return (tapped.view(np.uint8) ^ np.uint8(0x80)).astype(np.uint8)
    return tapped.astype(np.uint8, copy=False)


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
