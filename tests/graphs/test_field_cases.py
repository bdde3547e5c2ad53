"""Small inputs on which runtimes went wrong: read right, and the right values simulated."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.graphs.networks import Network, draw
from tests.graphs.proof import Arithmetic, constants, prove, run

import foldmark
from foldmark.errors import NothingQuantized, OperatorNotSupported
from foldmark.graphs.control_flow import specialise
from foldmark.graphs.reading.read import read_quantized
from foldmark.graphs.sites import SiteKind


def simulated(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    (value,) = run(read_quantized(model, None).simulated, feeds).values()
    return value


@pytest.mark.parametrize(
    ("x", "right"),
    [([2, 7, 4], [2, 3, 6, 6, 5, 4]), ([2, 5, 3], [2, 3, 4, 4, 4, 3]), ([1, 2, 5], None)],
)
def test_interpolation_between_a_pair_is_done_in_float(x: list, right: list | None) -> None:
    net = Network()
    net.input("x", [1, 1, 1, 3])
    d = net.pair("x", np.float32(1), np.int8(0))
    sizes = net.constant("sizes", np.array([1, 1, 1, 6]))
    given = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    net.node("Resize", [d, "", "", sizes], "r", **given)
    net.output(net.pair("r", np.float32(1), np.int8(0)))
    feeds = {"x": np.array(x, np.float32).reshape(1, 1, 1, 3)}
    graph = prove(net.model(), None, feeds)
    value = run(graph.simulated, feeds)["r_dq"].reshape(-1)
    if right is not None:
        np.testing.assert_array_equal(value, right)
    exact = run(graph.skeleton, feeds)["r_dq"].reshape(-1)
    np.testing.assert_array_equal(value, np.rint(exact))


def test_interpolation_on_the_codes_themselves_rounds_to_the_nearest() -> None:
    net = Network()
    net.input("x", [1, 1, 1, 3])
    net.pair("x", np.float32(1), np.int8(0))
    sizes = net.constant("sizes", np.array([1, 1, 1, 6]))
    net.node("Resize", ["x_q", "", "", sizes], "r", mode="linear")
    net.node("DequantizeLinear", ["r", "x_scale", "x_zero_point"], "y")
    net.output("y")
    feeds = {"x": np.array([2, 7, 4], np.float32).reshape(1, 1, 1, 3)}
    graph = prove(net.model(), None, feeds, arithmetic=Arithmetic.UNCHECKED)
    assert [site.operator for site in graph.sites] == ["Resize", "output"]
    np.testing.assert_array_equal(run(graph.simulated, feeds)["y"].reshape(-1), [2, 3, 6, 6, 5, 4])


def test_a_certain_class_stays_the_most_probable() -> None:
    net = Network()
    net.input("x", [1, 4])
    net.node("Softmax", [net.pair("x", np.float32(0.1), np.int8(0))], "p", axis=-1)
    net.output(net.pair("p", np.float32(1 / 256), np.int8(-128)))
    feeds = {"x": np.array([[12.7, -12.8, -12.8, -12.8]], np.float32)}
    np.testing.assert_array_equal(simulated(net.model(), feeds) * 256, [[255, 0, 0, 0]])


def test_a_certain_class_given_and_returned_as_codes() -> None:
    net = Network()
    net.input("x", [1, 4], TensorProto.INT8)
    scale, zero = net.constant("xs", np.float32(0.1)), net.constant("xz", np.int8(0))
    net.node("Softmax", [net.node("DequantizeLinear", ["x", scale, zero], "xf")], "yf", axis=-1)
    parameters = [net.constant("ys", np.float32(1 / 256)), net.constant("yz", np.int8(-128))]
    net.node("QuantizeLinear", ["yf", *parameters], "y")
    net.output("y", TensorProto.INT8)
    feeds = {"x": np.array([[127, -128, -128, -128]], np.int8)}
    graph = read_quantized(net.model(), None)
    assert [(site.name, site.operator) for site in graph.sites] == [("yf", "output")]
    for each in (graph.original, graph.simulated):
        np.testing.assert_array_equal(run(each, feeds)["y"] * 256, [[255, 0, 0, 0]])


def test_a_certain_class_in_integers_too() -> None:
    net = Network()
    net.input("x", [1, 4])
    net.pair("x", np.float32(0.1), np.int8(0))
    net.constant("p_scale", np.float32(1 / 256))
    net.constant("p_zero", np.int8(-128))
    inputs = ["x_q", "x_scale", "x_zero_point", "p_scale", "p_zero"]
    net.node("QLinearSoftmax", inputs, "p", "com.microsoft", axis=-1, opset=13)
    net.node("DequantizeLinear", ["p", "p_scale", "p_zero"], "y")
    net.output("y")
    feeds = {"x": np.array([[12.7, -12.8, -12.8, -12.8]], np.float32)}
    model = net.model("com.microsoft")
    graph = prove(model, None, feeds, arithmetic=Arithmetic.UNCHECKED)
    assert np.argmax(run(graph.simulated, feeds)["y"]) == 0


ALPHA = {
    (1.0, True): [194, 42, 161],
    (2.0, True): [223, 0, 174],
    (2.0, False): [187, 28, 154],
}
WEIGHTS = np.array([[10, -20, 30], [40, 50, -60], [-70, 80, 90], [25, -35, 45]], np.int8)


def gemm(alpha: float, bias: bool) -> onnx.ModelProto:
    net = Network()
    net.input("a", [1, 4])
    a = net.pair("a", np.float32(0.02), np.uint8(128))
    b = net.stored("b", WEIGHTS, np.float32(0.01), np.int8(0))
    shift = np.array([9000, -9000, 5000] if bias else [0, 0, 0], np.int32)
    c = net.stored("c", shift, np.float32(0.0002), np.int32(0))
    net.node("Gemm", [a, b, c], "h", alpha=alpha)
    net.output(net.pair("h", np.float32(0.05), np.uint8(128)))
    return net.model()


@pytest.mark.parametrize(("alpha", "bias"), ALPHA)
def test_alpha_multiplies_the_product_and_not_the_bias(alpha: float, bias: bool) -> None:
    a = (np.array([[200, 100, 60, 250]]) - 128) * np.float32(0.02)
    graph = prove(gemm(alpha, bias), None, {"a": a.astype(np.float32)})
    value = run(graph.simulated, {"a": a.astype(np.float32)})["h_dq"]
    codes = np.rint(value / np.float32(0.05)) + 128
    np.testing.assert_array_equal(codes[0], ALPHA[alpha, bias])


BIAS_SCALES = {
    1.0: [0.66, 1.16, 1.66, 2.16],
    10.0: [2.06, 2.56, 3.06, 3.56],
    0.1: [0.52, 1.02, 1.52, 2.02],
}


@pytest.mark.parametrize("factor", BIAS_SCALES)
def test_a_bias_is_read_with_its_own_scale(factor: float) -> None:
    net = Network()
    net.input("x", [1, 1, 2, 2])
    x = net.pair("x", np.float32(0.01), np.uint8(0))
    w = net.stored("w", np.full((1, 1, 1, 1), 64, np.int8), np.float32(1 / 64), np.int8(0))
    b = net.stored("b", np.array([1000], np.int32), np.float32(0.01 / 64 * factor))
    net.node("Conv", [x, w, b], "c")
    net.output(net.pair("c", np.float32(0.02), np.uint8(0)))
    plain = Network()
    plain.input("x", [1, 1, 2, 2])
    plain.constant("w", np.ones((1, 1, 1, 1), np.float32))
    plain.node("Conv", ["x", "w", plain.constant("b", np.float32([0.15625]))], "c")
    plain.output("c")
    feeds = {"x": np.array([0.5, 1, 1.5, 2], np.float32).reshape(1, 1, 2, 2)}
    graph = prove(net.model(), plain.model(), feeds)
    value = run(graph.simulated, feeds)["c_dq"].reshape(-1)
    np.testing.assert_allclose(value, BIAS_SCALES[factor], atol=1e-6)
    bias = next(site for site in graph.sites if site.kind is SiteKind.BIAS)
    np.testing.assert_allclose(bias.encoding.scale / (0.01 / 64), factor, rtol=1e-6)


@pytest.mark.parametrize("x", [[-1, -2, -0.5], [0, 0, 0], [5, 5, 5], []])
def test_a_scale_chosen_from_nothing_but_zeros(x: list) -> None:
    net = Network()
    net.input("x", ["n"])
    net.node("Relu", ["x"], "r")
    outputs = ["q", "s", "z"]
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", ["r"], outputs, name="/q"))
    net.node("DequantizeLinear", outputs, "y")
    net.output("y")
    feeds = {"x": np.array(x, np.float32)}
    graph = prove(net.model(), None, feeds)
    np.testing.assert_allclose(run(graph.simulated, feeds)["y"], np.maximum(feeds["x"], 0))
    assert graph.sites[0].encoding.is_dynamic


def test_codes_saturate_at_the_ends_of_their_type() -> None:
    x = np.array([-129, -128, -127, -126, 126, 127, 128, 129], np.float32)
    net = Network(21)
    net.input("x", [8])
    net.output(net.pair("x", np.float32(1), np.int8(0)))
    np.testing.assert_array_equal(
        simulated(net.model(), {"x": x}), [-128, -128, -127, -126, 126, 127, 127, 127]
    )


def test_codes_below_their_zero_point_are_negative() -> None:
    net, plain = Network(21), Network(21)
    for each in (net, plain):
        each.input("x", [3])
        each.output("y")
    codes = np.array([0, 10, 255], np.uint8)
    net.node("Mul", ["x", net.stored("w", codes, np.float32(0.5), np.uint8(200))], "y")
    plain.node("Mul", ["x", plain.constant("w", np.float32([-100, -95, 27.5]))], "y")
    graph = prove(net.model(), plain.model(), {"x": draw(3)})
    np.testing.assert_array_equal(constants(graph.simulated)["w_dq"], [-100, -95, 27.5])


def branching(weight: str, nodes: list[onnx.NodeProto], extra: list) -> onnx.ModelProto:
    """Return an If whose branches multiply by a weight of the graph around them."""

    def branch(name: str) -> onnx.GraphProto:
        product = helper.make_node("MatMul", ["x", weight], [f"{name}_m"], name=f"/{name}")
        last = helper.make_node("Neg" if name == "no" else "Abs", [f"{name}_m"], [f"{name}_y"])
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
        return helper.make_graph([product, last], name, [], [out])

    choice = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("yes"), else_branch=branch("no")
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])
    c = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([*nodes, choice], "g", [x, c], [y], extra)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize("which", [True, False])
def test_weights_used_inside_branches(which: bool) -> None:
    w = draw(8, 8)
    original = branching("w", [], [numpy_helper.from_array(w, "w")])
    step = np.float32(np.abs(w).max() / 127)
    stored = [
        numpy_helper.from_array(np.rint(w / step).astype(np.int8), "w_quantized"),
        numpy_helper.from_array(step, "w_scale"),
    ]
    node = helper.make_node("DequantizeLinear", ["w_quantized", "w_scale"], ["w_dq"], name="/dq")
    quantized = branching("w_dq", [node], stored)
    feeds = {"x": draw(1, 8, seed=3), "c": np.array(which)}

    def flat(model: onnx.ModelProto) -> onnx.ModelProto:
        return specialise(model, lambda probe, names: run(probe, feeds, names)).model

    order = Arithmetic.SUMMED_OTHERWISE
    graph = prove(flat(quantized), flat(original), feeds, arithmetic=order)
    assert [(site.name, site.operator) for site in graph.sites] == [("w", "MatMul")]
    whole = read_quantized(quantized, original)
    assert [site.name for site in whole.sites] == ["w"]


def test_a_quantizer_that_passed_the_branches_by_left_nothing() -> None:
    original = branching("w", [], [numpy_helper.from_array(draw(8, 8), "w")])
    with pytest.raises(NothingQuantized):
        read_quantized(original, original)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_empty_batches(rows: int) -> None:
    net = Network()
    net.input("x", ["n", 4])
    net.pair("x", np.float32(0.05), np.uint8(128))
    w = net.stored("w", np.ones((4, 2), np.int8), np.float32(1), np.int8(0))
    net.node("MatMul", ["x_dq", w], "y")
    net.output("y")
    graph = prove(net.model(), None, {"x": draw(rows, 4)})
    assert run(graph.simulated, {"x": draw(rows, 4)})["y"].shape == (rows, 2)


def test_a_weight_without_elements() -> None:
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("x", ["n", 4])
        each.output("y")
    x = net.pair("x", np.float32(0.05), np.uint8(128))
    nothing = np.zeros((4, 0), np.int8)
    w = net.stored("w", nothing, np.zeros(0, np.float32), np.zeros(0, np.int8), axis=1)
    net.node("MatMul", [x, w], "y")
    plain.node("MatMul", ["x", plain.constant("w", np.zeros((4, 0), np.float32))], "y")
    graph = prove(net.model(), plain.model(), {"x": draw(3, 4)})
    assert [(site.name, site.kind) for site in graph.sites] == [
        ("x", SiteKind.ACTIVATION),
        ("w", SiteKind.WEIGHT),
    ]


def test_a_scalar_constant() -> None:
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("x", ["n", 4])
        each.output("y")
    c = net.stored("c", np.array(5, np.int8), np.float32(0.25), np.int8(0))
    net.node("Mul", [net.pair("x", np.float32(0.05), np.uint8(128)), c], "y")
    plain.node("Mul", ["x", plain.constant("c", np.float32(1.25))], "y")
    graph = prove(net.model(), plain.model(), {"x": draw(3, 4)})
    assert [site.codes.tolist() for site in graph.sites if site.codes is not None] == [5]


def test_an_integer_product_as_output_is_refused_by_name() -> None:
    net = Network()
    net.input("x", ["n", 4])
    outputs = ["q", "s", "z"]
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], outputs, name="/q"))
    net.node("MatMulInteger", ["q", net.constant("w", np.ones((4, 2), np.int8)), "z"], "y")
    net.output("y", TensorProto.INT32)
    with pytest.raises(OperatorNotSupported, match="MatMulInteger"):
        read_quantized(net.model(), None)


def test_an_operator_on_codes_that_is_not_read_is_named() -> None:
    net = Network()
    net.input("x", [1, 1, 4, 4])
    net.pair("x", np.float32(0.05), np.uint8(128))
    net.node("Abs", ["x_q"], "a")
    net.node("DequantizeLinear", ["a", "x_scale", "x_zero_point"], "y")
    net.output("y")
    with pytest.raises(OperatorNotSupported, match="Abs on codes"):
        read_quantized(net.model(), None)


def test_a_model_with_integer_outputs_is_explained_against_a_float_one() -> None:
    w = draw(6, 4)
    step = np.float32(np.abs(w).max() / 127)
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("x", ["n", 6])
    x = net.pair("x", np.float32(0.04), np.int8(3))
    net.node("MatMul", [x, net.stored("w", np.rint(w / step).astype(np.int8), step)], "h")
    parameters = [net.constant("hs", np.float32(0.08)), net.constant("hz", np.int8(1))]
    net.node("QuantizeLinear", ["h", *parameters], "y")
    net.output("y", TensorProto.INT8, ["n", 4])
    plain.node("MatMul", ["x", plain.constant("w", w)], "y")
    plain.output("y", shape=["n", 4])
    report = foldmark.explain(plain.model(), net.model(), {"x": draw(16, 6)})
    assert "3 sites" in str(report)
