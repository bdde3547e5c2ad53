"""Operators that take codes and give codes, against ONNX Runtime's integer kernels."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tests.graphs.networks import WIDEST, Network, draw
from tests.graphs.proof import Arithmetic, prove, run

from foldmark.errors import OperatorNotSupported
from foldmark.graphs.reading.read import read_quantized
from foldmark.graphs.sites import QuantizedGraph, SiteKind

IMAGE = {"x": draw(2, 3, 6, 6, seed=5)}
ROWS = {"x": draw(5, 8, seed=6)}


class Coded:
    """A network on codes with one input, and its float twin."""

    def __init__(self, feeds: dict[str, np.ndarray], dtype=np.uint8, opset: int = 13) -> None:
        self.feeds = feeds
        self.dtype = dtype
        self.middle = 128 if dtype is np.uint8 else 0
        self.net, self.plain = Network(opset), Network(opset)
        for each in (self.net, self.plain):
            each.input("x", feeds["x"].shape)
            each.output("y")
        self.x = self.quantize("x", 3.0)

    def parameters(self, name: str, highest: float, shift: int = 3) -> list[str]:
        scale = self.net.constant(f"{name}_scale", np.float32(highest / 127))
        zero = self.net.constant(f"{name}_zero_point", np.asarray(self.middle + shift, self.dtype))
        return [scale, zero]

    def quantize(self, name: str, highest: float) -> list[str]:
        """Return the names of a value's codes, scale and zero point."""
        parameters = self.parameters(name, highest)
        self.net.node("QuantizeLinear", [name, *parameters], f"{name}_quantized")
        return [f"{name}_quantized", *parameters]

    def weight(self, name: str, w: np.ndarray, axis: int | None = None) -> list[str]:
        """Store a weight as int8 codes, per tensor or per axis."""
        self.plain.constant(name, w)
        others = tuple(i for i in range(w.ndim) if i != axis)
        highest = np.abs(w).max() if axis is None else np.abs(w).max(others, keepdims=True)
        scale = (highest / np.float32(WIDEST)).astype(np.float32)
        codes = np.rint(w / scale).astype(np.int8)
        zero = np.zeros(scale.size if axis is not None else (), np.int8)
        return [
            self.net.constant(f"{name}_quantized", codes),
            self.net.constant(f"{name}_scale", scale.reshape(zero.shape)),
            self.net.constant(f"{name}_zero_point", zero),
        ]

    def bias(self, name: str, b: np.ndarray, scale: np.ndarray) -> str:
        self.plain.constant(name, b)
        return self.net.constant(f"{name}_quantized", np.rint(b / scale).astype(np.int32))

    def finish(self, codes: list[str], plain: str, other_ties: float = 0.02) -> QuantizedGraph:
        """Dequantize into y, rename the float twin's result, prove and compare the codes.

        Kernels that round a half, or an approximated value next to it, the other way are off
        by one code in at most a share of `other_ties`.
        """
        self.net.node("DequantizeLinear", codes, "y")
        self.plain.node("Identity", [plain], "y")
        model = self.net.model("com.microsoft")
        original = self.plain.model("com.microsoft")
        graph = prove(model, original, self.feeds, arithmetic=Arithmetic.UNCHECKED)
        step = next(t for t in self.net.constants if t.name == codes[1])
        size = float(onnx.numpy_helper.to_array(step))
        real, simulated = run(model, self.feeds)["y"], run(graph.simulated, self.feeds)["y"]
        steps = np.rint((real - simulated) / size)
        assert np.abs(steps).max() <= 1
        assert np.mean(steps != 0) <= other_ties
        return graph


def micro(coded: Coded, operator: str, inputs: list[str], output: str, **given) -> None:
    coded.net.node(operator, inputs, f"{output}_quantized", "com.microsoft", **given)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("with_bias", [True, False])
def test_qlinear_conv(dtype, axis: int | None, with_bias: bool) -> None:
    coded = Coded(IMAGE, dtype)
    w = draw(4, 3, 3, 3)
    stored = coded.weight("w", w, axis)
    out = coded.parameters("h", 12.0)
    inputs = [*coded.x, *stored, *out]
    plain = ["x", "w"]
    if with_bias:
        scale = np.float32(3 / 127) * onnx.numpy_helper.to_array(coded.net.constants[-4])
        inputs.append(coded.bias("b", draw(4, seed=1), scale))
        plain.append("b")
    given = {"pads": [1, 1, 1, 1], "strides": [2, 1]}
    coded.net.node("QLinearConv", inputs, "h_quantized", **given)
    coded.plain.node("Conv", plain, "h", **given)
    graph = coded.finish(["h_quantized", *out], "h")
    kinds = [(site.name, site.kind) for site in graph.sites]
    assert kinds == [
        ("x", SiteKind.ACTIVATION),
        ("w", SiteKind.WEIGHT),
        *([("b", SiteKind.BIAS)] if with_bias else []),
        ("h", SiteKind.ACTIVATION),
    ]
    assert graph.sites[1].encoding.axis == axis


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("axis", [None, 1])
def test_qlinear_matmul(dtype, axis: int | None) -> None:
    coded = Coded(ROWS, dtype)
    stored = coded.weight("w", draw(8, 4), axis)
    out = coded.parameters("h", 12.0)
    coded.net.node("QLinearMatMul", [*coded.x, *stored, *out], "h_quantized")
    coded.plain.node("MatMul", ["x", "w"], "h")
    graph = coded.finish(["h_quantized", *out], "h")
    assert [site.name for site in graph.sites] == ["x", "w", "h"]
    assert graph.sites[1].encoding.axis == axis


@pytest.mark.parametrize(("alpha", "turned"), [(1.0, 0), (2.0, 0), (1.0, 1), (0.5, 1)])
def test_qgemm(alpha: float, turned: int) -> None:
    coded = Coded(ROWS)
    w = draw(4, 8) if turned else draw(8, 4)
    stored = coded.weight("w", w)
    scale = np.float32(alpha) * np.float32(3 / 127) * np.float32(np.abs(w).max() / 127)
    bias = coded.bias("b", draw(4, seed=1), scale)
    out = coded.parameters("h", 20.0)
    micro(coded, "QGemm", [*coded.x, *stored, bias, *out], "h", alpha=alpha, transB=turned)
    coded.plain.node("Gemm", ["x", "w", "b"], "h", alpha=alpha, transB=turned)
    graph = coded.finish(["h_quantized", *out], "h")
    assert [site.name for site in graph.sites] == ["x", "w", "b", "h"]


def test_qgemm_with_a_float_result() -> None:
    coded = Coded(ROWS)
    stored = coded.weight("w", draw(8, 4), 1)
    coded.net.node("QGemm", [*coded.x, *stored], "h", "com.microsoft")
    coded.plain.node("Gemm", ["x", "w"], "h")
    out = coded.quantize("h", 12.0)
    graph = coded.finish(out, "h")
    assert [site.name for site in graph.sites] == ["x", "w", "h"]


@pytest.mark.parametrize("operator", ["Add", "Mul"])
def test_qlinear_binary(operator: str) -> None:
    coded = Coded(ROWS)
    stored = coded.weight("w", draw(8))
    # QLinearAdd and QLinearMul want one type for both operands.
    stored[0] = coded.net.constant("v_quantized", np.arange(120, 128, dtype=np.uint8))
    stored[2] = coded.net.constant("v_zero_point", np.uint8(124))
    out = coded.parameters("h", 6.0)
    micro(coded, f"QLinear{operator}", [*coded.x, *stored, *out], "h")
    scale = onnx.numpy_helper.to_array(coded.net.constants[3])
    coded.plain.constant("v", ((np.arange(120, 128) - 124) * scale).astype(np.float32))
    coded.plain.node(operator, ["x", "v"], "h")
    graph = coded.finish(["h_quantized", *out], "h", 0.05)
    assert [site.name for site in graph.sites] == ["x", "v", "h"]


UNARY: dict[str, tuple[str, dict, str, dict]] = {
    "sigmoid": ("QLinearSigmoid", {}, "Sigmoid", {}),
    "leaky relu": ("QLinearLeakyRelu", {"alpha": 0.1}, "LeakyRelu", {"alpha": 0.1}),
    "softmax": ("QLinearSoftmax", {"axis": 1, "opset": 13}, "Softmax", {"axis": 1}),
    "global average": ("QLinearGlobalAveragePool", {}, "GlobalAveragePool", {}),
    "average": (
        "QLinearAveragePool",
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        "AveragePool",
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_unary(name: str, dtype) -> None:
    operator, given, plain, plain_given = UNARY[name]
    coded = Coded(IMAGE, dtype)
    out = coded.parameters("h", 3.0)
    micro(coded, operator, [*coded.x, *out], "h", **given)
    coded.plain.node(plain, ["x"], "h", **plain_given)
    graph = coded.finish(
        ["h_quantized", *out], "h", {"softmax": 0.15, "average": 0.25}.get(name, 0.02)
    )
    assert [site.name for site in graph.sites] == ["x", "h"]


def test_qlinear_softmax_of_an_old_opset_runs_over_all_later_axes() -> None:
    coded = Coded(IMAGE)
    out = coded.parameters("h", 0.1)
    micro(coded, "QLinearSoftmax", [*coded.x, *out], "h", axis=1, opset=11)
    coded.plain.constant("shape", np.array([2, 108]))
    coded.plain.constant("back", np.array([2, 3, 6, 6]))
    coded.plain.node("Reshape", ["x", "shape"], "flat")
    coded.plain.node("Softmax", ["flat"], "soft", axis=1)
    coded.plain.node("Reshape", ["soft", "back"], "h")
    coded.finish(["h_quantized", *out], "h")


def test_qlinear_concat() -> None:
    coded = Coded(ROWS)
    coded.net.node("Neg", ["x"], "n")
    coded.plain.node("Neg", ["x"], "n")
    other = coded.quantize("n", 5.0)
    out = coded.parameters("h", 4.0)
    micro(coded, "QLinearConcat", [*out, *coded.x, *other], "h", axis=1)
    coded.plain.node("Concat", ["x", "n"], "h", axis=1)
    graph = coded.finish(["h_quantized", *out], "h")
    assert [site.name for site in graph.sites] == ["x", "n", "h"]


def test_qlinear_where() -> None:
    coded = Coded(ROWS)
    coded.net.constant("which", draw(8) > 0)
    coded.plain.constant("which", draw(8) > 0)
    out = coded.parameters("h", 4.0)
    zero = coded.parameters("z", 1.0)
    stored = coded.net.constant("z_quantized", np.full(8, 131, np.uint8))
    micro(coded, "QLinearWhere", ["which", *coded.x, stored, *zero, *out], "h")
    coded.plain.constant("z", np.zeros(8, np.float32))
    coded.plain.node("Where", ["which", "x", "z"], "h")
    coded.finish(["h_quantized", *out], "h")


def test_a_chain_of_integer_operators_has_one_site_between_two() -> None:
    coded = Coded(IMAGE)
    stored = coded.weight("w", draw(4, 3, 3, 3), 0)
    middle, out = coded.parameters("a", 12.0, -128), coded.parameters("h", 4.0)
    coded.net.node("QLinearConv", [*coded.x, *stored, *middle], "a_quantized")
    coded.net.node("MaxPool", ["a_quantized"], "p_quantized", kernel_shape=[2, 2])
    micro(coded, "QLinearSigmoid", ["p_quantized", *middle, *out], "h")
    coded.plain.node("Conv", ["x", "w"], "a")
    coded.plain.node("Relu", ["a"], "r")
    coded.plain.node("MaxPool", ["r"], "p", kernel_shape=[2, 2])
    coded.plain.node("Sigmoid", ["p"], "h")
    graph = coded.finish(["h_quantized", *out], "h")
    assert [site.name for site in graph.sites] == ["x", "w", "r", "h"]


RESTORE: dict[str, Callable[[Network], str]] = {
    "relu": lambda net: net.node("Relu", ["a"], "r"),
    "relu6": lambda net: net.node(
        "Clip",
        ["a", net.constant("low", np.float32(0)), net.constant("high", np.float32(6))],
        "r",
    ),
}


@pytest.mark.parametrize("name", RESTORE)
@pytest.mark.parametrize("renamed", [True, False])
def test_a_dropped_activation_function_comes_back(name: str, renamed: bool) -> None:
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("x", [5, 8])
        each.constant("w", 3 * draw(8, 4))
        each.output("y")
    plain.node("MatMul", ["x", "w"], "a")
    plain.node("Neg", [RESTORE[name](plain)], "y")
    product = net.node("MatMul", ["x", "w"], "r" if renamed else "a")
    net.node("Neg", [net.pair(product, np.float32(6 / 255), np.uint8(0))], "y")
    graph = prove(net.model(), plain.model(), ROWS)
    assert [site.name for site in graph.sites] == ["r"]


def test_without_a_float_model_a_range_from_zero_counts_as_relu() -> None:
    net = Network()
    net.input("x", [5, 8])
    net.constant("w", draw(8, 4))
    net.node("MatMul", ["x", "w"], "a")
    net.node("Neg", [net.pair("a", np.float32(6 / 255), np.uint8(0))], "y")
    net.output("y")
    graph = prove(net.model(), None, ROWS)
    assert "Relu" in {node.op_type for node in graph.skeleton.graph.node}


def test_a_range_from_zero_is_no_relu_where_the_float_model_has_none() -> None:
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("x", [5, 8])
        each.constant("w", draw(8, 4))
        each.node("MatMul", ["x", "w"], "a")
        each.output("y")
    plain.node("Neg", ["a"], "y")
    net.node("Neg", [net.pair("a", np.float32(6 / 255), np.uint8(0))], "y")
    prove(net.model(), plain.model(), ROWS)


def test_channels_last_is_refused_by_name() -> None:
    coded = Coded(IMAGE)
    out = coded.parameters("h", 3.0)
    micro(coded, "QLinearGlobalAveragePool", [*coded.x, *out], "h", channels_last=1)
    coded.net.node("DequantizeLinear", ["h_quantized", *out], "y")
    with pytest.raises(OperatorNotSupported, match="QLinearGlobalAveragePool with channels last"):
        read_quantized(coded.net.model("com.microsoft"), None)


def test_an_integer_result_is_dequantized() -> None:
    coded = Coded(ROWS)
    out = coded.parameters("h", 3.0)
    micro(coded, "QLinearSigmoid", [*coded.x, *out], "h")
    coded.net.outputs.clear()
    coded.net.output("h_quantized", TensorProto.UINT8)
    graph = read_quantized(coded.net.model("com.microsoft"), None)
    assert [(site.name, site.operator) for site in graph.sites] == [
        ("x", "Sigmoid"),
        ("h", "output"),
    ]
    for each in (graph.original, graph.simulated, graph.skeleton):
        assert run(each, ROWS)["h_quantized"].dtype == np.float32
