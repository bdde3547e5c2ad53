"""What a user is told of the small models on which runtimes and quantizers went wrong."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.graphs.networks import Network, draw
from tests.graphs.test_field_cases import branching

import foldmark
from foldmark.errors import (
    NoData,
    NonFiniteValue,
    NothingQuantized,
    OperatorNotSupported,
    OutputNotComparable,
)
from foldmark.ledger.causes import Cause
from foldmark.ledger.findings import Findings
from foldmark.report.explain_text import verdict
from foldmark.report.reasons import reason


def explained(exact, near, data, **asked) -> Findings:
    """Return the report, once its lines are known to add up to what was measured."""
    report = foldmark.explain(exact, near, data, cures=False, **asked)
    closure = report.closure
    lines = closure.sites + closure.graph + closure.kernel + closure.quadrature
    assert lines == pytest.approx(closure.total, rel=1e-9, abs=1e-15)
    assert abs(closure.quadrature) <= 1e-4 * abs(closure.total) + 1e-12
    assert closure.sites == pytest.approx(sum(entry.amount for entry in report.entries))
    assert max(map(len, str(report).splitlines())) <= 80
    return report


def agrees(report: Findings) -> bool:
    """Return True when the runtime computes what the model says, and nothing else is told."""
    return abs(report.closure.kernel) <= 1e-4 * report.closure.total and not report.kernels


def relative_error(exact, near) -> float:
    return float(np.sum((np.subtract(near, exact, dtype=np.float64)) ** 2) / np.sum(exact**2))


def resized(x: str, net: Network) -> str:
    sizes = net.constant("sizes", np.array([1, 1, 1, 6]))
    given = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    return net.node("Resize", [x, "", "", sizes], "r", **given)


ROW = np.array([2, 7, 4], np.float32).reshape(1, 1, 1, 3)
BETWEEN = np.array([2, 3.25, 5.75, 6.25, 4.75, 4])


def test_interpolation_between_a_pair_errs_by_its_rounding_alone():
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("x", [1, 1, 1, 3])
    one, zero = np.float32(1), np.int8(0)
    resized(net.pair("x", one, zero), net)
    net.node("Identity", [net.pair("r", one, zero)], "y")
    plain.node("Identity", [resized("x", plain)], "y")
    for each in (net, plain):
        each.output("y")
    report = explained(plain.model(), net.model(), {"x": ROW})
    assert agrees(report)
    right = relative_error(BETWEEN, [2, 3, 6, 6, 5, 4])
    assert report.closure.total == pytest.approx(right, rel=1e-6)
    assert report.entries[0].site.name == "r"


def test_interpolation_of_codes_that_truncates_is_the_kernels():
    net = Network()
    net.input("x", [1, 1, 1, 3])
    net.pair("x", np.float32(1), np.int8(0))
    net.node("DequantizeLinear", [resized("x_q", net), "x_scale", "x_zero_point"], "y")
    net.output("y")
    report = explained(None, net.model(), {"x": ROW})
    right, real = [2, 3, 6, 6, 5, 4], [2, 3, 5, 6, 4, 4]
    assert report.closure.sites == pytest.approx(relative_error(BETWEEN, right), rel=1e-6)
    assert report.closure.total == pytest.approx(relative_error(BETWEEN, real), rel=1e-6)
    assert [(each.operator, each.steps) for each in report.kernels] == [("Resize", 1)]
    assert "Resize '/r' comes out up to 1 step off" in report.verdict


def certain(form: str) -> tuple[onnx.ModelProto, dict]:
    """Return a softmax that is sure of its first class, and what to feed it."""
    net = Network()
    codes = np.array([[127, -128, -128, -128]], np.int8)
    feeds = {"x": codes if form == "codes" else codes * np.float32(0.1)}
    xs, xz = net.constant("xs", np.float32(0.1)), net.constant("xz", np.int8(0))
    ys, yz = net.constant("ys", np.float32(1 / 256)), net.constant("yz", np.int8(-128))
    net.input("x", [1, 4], TensorProto.INT8 if form == "codes" else TensorProto.FLOAT)
    x = "x" if form == "codes" else net.node("QuantizeLinear", ["x", xs, xz], "xq")
    if form == "integers":
        given = {"domain": "com.microsoft", "axis": -1, "opset": 13}
        net.node("QLinearSoftmax", [x, xs, xz, ys, yz], "q", **given)
    else:
        p = net.node("Softmax", [net.node("DequantizeLinear", [x, xs, xz], "xf")], "p", axis=-1)
        net.node("QuantizeLinear", [p, ys, yz], "q")
    if form == "codes":
        net.output("q", TensorProto.INT8)
    else:
        net.output(net.node("DequantizeLinear", ["q", ys, yz], "y"))
    return net.model("com.microsoft"), feeds


@pytest.mark.parametrize("form", ["pairs", "codes", "integers"])
def test_a_certain_class_is_clipped_by_one_step(form):
    model, feeds = certain(form)
    report = explained(None, model, feeds)
    assert agrees(report)
    assert report.closure.total == pytest.approx((1 / 256) ** 2, rel=1e-4)
    assert report.entries[0].causes[Cause.CLIPPING] == pytest.approx(report.closure.total, rel=1e-3)


CODES = np.array([[10, -20, 30], [40, 50, -60], [-70, 80, 90], [25, -35, 45]], np.int8)
SHIFT = np.array([9000, -9000, 5000], np.int32)


def gemm(factor: float, alpha: float, shift: np.ndarray, *, gives_codes: bool = False):
    """Return a Gemm whose bias has `factor` times the scale of the product, float and int8."""
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("a", ["n", 4])
    step = np.float32(0.0002 * factor)
    a = net.pair("a", np.float32(0.02), np.uint8(128))
    b = net.stored("b", CODES, np.float32(0.01), np.int8(0))
    net.node("Gemm", [a, b, net.stored("c", shift, step, np.int32(0))], "h", alpha=alpha)
    hs, hz = net.constant("hs", np.float32(0.05)), net.constant("hz", np.uint8(128))
    plain.constant("b", (CODES * 0.01).astype(np.float32))
    plain.constant("c", (shift * step).astype(np.float32))
    plain.node("Gemm", ["a", "b", "c"], "y", alpha=alpha)
    plain.output("y")
    if gives_codes:
        net.node("QuantizeLinear", ["h", hs, hz], "y")
        net.output("y", TensorProto.UINT8)
    else:
        net.node("QuantizeLinear", ["h", hs, hz], "hq")
        net.output(net.node("DequantizeLinear", ["hq", hs, hz], "y"))
    return plain.model(), net.model()


@pytest.mark.parametrize("gives_codes", [False, True])
@pytest.mark.parametrize(
    ("alpha", "shift", "right"),
    [
        (1.0, SHIFT, [194, 42, 161]),
        (2.0, SHIFT, [223, 0, 174]),
        (2.0, SHIFT * 0, [187, 28, 154]),
    ],
)
def test_alpha_and_bias_are_no_fault_of_the_kernels(alpha, shift, right, gives_codes):
    exact, near = gemm(1.0, alpha, shift, gives_codes=gives_codes)
    a = (np.array([[200, 100, 60, 250]]) - 128) * np.float32(0.02)
    report = explained(exact, near, {"a": a.astype(np.float32)})
    assert agrees(report)
    wanted = alpha * a @ (CODES * 0.01) + shift * 0.0002
    moved = relative_error(wanted, (np.array(right) - 128) * 0.05)
    assert report.closure.total == pytest.approx(moved, rel=1e-3)


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_bias_scale_that_the_fused_gemm_ignores_is_the_kernels(factor):
    exact, near = gemm(factor, 1.0, SHIFT // 10)
    report = explained(exact, near, {"a": draw(16, 4)})
    assert report.closure.kernel > 0.9 * report.closure.total
    assert [each.operator for each in report.kernels] == ["Gemm"]
    assert report.kernels[0].steps > 1
    assert "Gemm '/h'" in report.verdict
    assert "Where the runtime parts from the model: Gemm '/h'" in str(report)
    assert bias_ratio(report, "c") == pytest.approx(factor, rel=1e-3)
    assert f", c {factor:g} times it" in " ".join(str(report).split())


def bias_ratio(report: Findings, name: str) -> float | None:
    """Return what is told of a bias, once it is known to be told in its reason too."""
    (entry,) = [entry for entry in report.entries if entry.site.name == name]
    told = "times input scale * weight scale" in reason(entry)
    assert told == (entry.bias_ratio is not None)
    return entry.bias_ratio


@pytest.mark.parametrize(
    ("factor", "right"),
    [
        (1.0, [0.66, 1.16, 1.66, 2.16]),
        (10.0, [2.06, 2.56, 3.06, 3.56]),
        (0.1, [0.52, 1.02, 1.52, 2.02]),
    ],
)
def test_a_convolution_keeps_the_scale_of_its_bias(factor, right):
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("x", [1, 1, 2, 2])
    step = np.float32(0.01 / 64 * factor)
    x = net.pair("x", np.float32(0.01), np.uint8(0))
    w = net.stored("w", np.full((1, 1, 1, 1), 64, np.int8), np.float32(1 / 64), np.int8(0))
    net.node("Conv", [x, w, net.stored("b", np.array([1000], np.int32), step)], "c")
    net.node("Identity", [net.pair("c", np.float32(0.02), np.uint8(0))], "y")
    plain.constant("w", np.ones((1, 1, 1, 1), np.float32))
    plain.node("Conv", ["x", "w", plain.constant("b", np.float32([1000]) * step)], "y")
    for each in (net, plain):
        each.output("y")
    values = np.array([0.5, 1, 1.5, 2], np.float32)
    report = explained(plain.model(), net.model(), {"x": values.reshape(1, 1, 2, 2)})
    assert agrees(report)
    moved = relative_error(values + 1000 * np.float64(step), right)
    assert report.closure.total == pytest.approx(moved, rel=1e-3)
    assert bias_ratio(report, "b") == (None if factor == 1 else pytest.approx(factor, rel=1e-3))
    assert report.entries[0].site.name == "c"


def dynamic() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("x", ["n"])
    net.node("Relu", ["x"], "r")
    codes = ["q", "s", "z"]
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", ["r"], codes, name="/q"))
    net.node("DequantizeLinear", codes, "y")
    plain.node("Relu", ["x"], "y")
    for each in (net, plain):
        each.output("y")
    return plain.model(), net.model()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("x", [[-1, -2, -0.5, -3], [0, 0, 0, 0], [5, 5, 5, 5]])
@pytest.mark.parametrize("size", [1, 4])
def test_a_range_of_one_value_moves_nothing(x, size):
    report = explained(*dynamic(), {"x": np.array(x, np.float32)}, batch_size=size)
    assert report.closure.total == 0
    assert "nothing to explain" in report.verdict


def test_a_range_chosen_at_run_time_errs_by_rounding():
    x = np.array([1, 2.3, 3, -4], np.float32)
    report = explained(*dynamic(), {"x": x}, batch_size=4)
    assert agrees(report)
    step, exact = np.float32(3 / 255), np.maximum(x, 0)
    moved = relative_error(exact, np.rint(exact / step) * step)
    assert report.closure.total == pytest.approx(moved, rel=1e-3)


@pytest.mark.parametrize("beside", [(), ("s",), ("z",), ("s", "z")])
@pytest.mark.parametrize("moved_on", [False, True])
def test_codes_of_a_range_chosen_at_run_time_as_output(beside, moved_on):
    """With or without their scale and zero point as further outputs, which are no values."""
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("x", ["n"])
        each.node("Relu", ["x"], "r")
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", ["r"], ["q", "s", "z"], name="/q"))
    name = "q"
    if moved_on:
        name = net.node("Reshape", ["q", net.constant("flat", np.array([-1, 1]))], "column")
    net.output(name, TensorProto.UINT8)
    for other in beside:
        net.output(other, TensorProto.FLOAT if other == "s" else TensorProto.UINT8)
    operator, inputs = "Identity", ["r"]
    if moved_on:
        operator, inputs = "Reshape", ["r", plain.constant("flat", np.array([-1, 1]))]
    plain.output(plain.node(operator, inputs, name))
    x = np.array([1, 2.3, 3, -4], np.float32)
    step, exact = np.float32(3 / 255), np.maximum(x, 0)
    moved = relative_error(exact, np.rint(exact / step) * step)
    for float_model in (plain.model(), None):
        report = explained(float_model, net.model(), {"x": x}, batch_size=4)
        assert agrees(report)
        assert report.metric.outputs == (name,)
        assert [entry.site.name for entry in report.entries] == ["r"]
        assert report.closure.total == pytest.approx(moved, rel=1e-3)
        assert "depend on --batch-size, here 4" in " ".join(str(report).split())


@pytest.mark.parametrize("x", [[-1, -2, -0.5], [0, 0, 0], [5, 5, 5]])
def test_nothing_but_a_quantizer_moves_nothing_on_one_value(x):
    net = Network()
    net.input("x", ["n"])
    net.node("Relu", ["x"], "r")
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", ["r"], ["q", "s", "z"], name="/q"))
    for name, kind in (
        ("q", TensorProto.UINT8),
        ("s", TensorProto.FLOAT),
        ("z", TensorProto.UINT8),
    ):
        net.output(name, kind)
    report = explained(None, net.model(), {"x": np.array(x, np.float32)})
    assert report.closure.total == 0
    assert report.verdict == "Relative squared error did not move from 0: nothing to explain."
    assert "Without the float model weights are not explained: only activations are." in str(report)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_has_no_range_is_refused_with_its_place(bad):
    with pytest.raises(NonFiniteValue, match=r"input 'x' is not finite; got (nan|inf) at \(1,\)"):
        foldmark.explain(*dynamic(), {"x": np.array([1, bad, 2], np.float32)})


@pytest.mark.parametrize("gives_codes", [False, True])
def test_saturated_codes_are_told_as_clipping(gives_codes):
    x = np.array([-129, -128, -127, -126, 126, 127, 128, 129], np.float32)
    net = Network(21)
    net.input("x", [8])
    net.pair("x", np.float32(1), np.int8(0))
    if gives_codes:
        net.output("x_q", TensorProto.INT8, [8])
    else:
        net.output("x_dq")
    report = explained(None, net.model(), {"x": x})
    assert agrees(report)
    moved = relative_error(x, np.clip(x, -128, 127))
    assert report.closure.total == pytest.approx(moved, rel=1e-6)
    assert report.entries[0].causes[Cause.CLIPPING] == pytest.approx(moved, rel=1e-6)
    assert "37.50 % of the values lie outside [-128, 127]" in " ".join(str(report).split())


def test_codes_below_their_zero_point_are_negative():
    net, plain = Network(21), Network(21)
    w = np.float32([-100, -95.1, 27.6])
    codes = np.array([0, 10, 255], np.uint8)
    net.node("Mul", ["x", net.stored("w", codes, np.float32(0.5), np.uint8(200))], "y")
    plain.node("Mul", ["x", plain.constant("w", w)], "y")
    for each in (net, plain):
        each.input("x", [3])
        each.output("y")
    x = draw(3)
    report = explained(plain.model(), net.model(), {"x": x})
    assert agrees(report)
    moved = relative_error(x * w, x * np.float32([-100, -95, 27.5]))
    assert report.closure.total == pytest.approx(moved, rel=1e-3)


def shared_by_branches(w: np.ndarray) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    step = np.float32(np.abs(w).max() / 127)
    stored = [
        numpy_helper.from_array(np.rint(w / step).astype(np.int8), "w_quantized"),
        numpy_helper.from_array(step, "w_scale"),
    ]
    node = helper.make_node("DequantizeLinear", ["w_quantized", "w_scale"], ["w_dq"], name="/dq")
    exact = branching("w", [], [numpy_helper.from_array(w, "w")])
    return exact, branching("w_dq", [node], stored)


@pytest.mark.parametrize("which", [True, False])
def test_a_weight_read_inside_branches_carries_the_change(which):
    w = draw(8, 8)
    feeds = {"x": draw(1, 8, seed=3), "c": np.array(which)}
    report = explained(*shared_by_branches(w), feeds)
    assert agrees(report)
    step = np.float32(np.abs(w).max() / 127)
    turn = np.abs if which else np.negative
    moved = relative_error(turn(feeds["x"] @ w), turn(feeds["x"] @ (np.rint(w / step) * step)))
    assert report.closure.total == pytest.approx(moved, rel=1e-3)
    assert [entry.site.name for entry in report.entries] == ["w"]


def test_a_quantizer_that_passed_the_branches_by_is_found_out():
    exact, _ = shared_by_branches(draw(8, 8))
    feeds = {"x": draw(1, 8), "c": np.array(True)}
    with pytest.raises(NothingQuantized, match="nothing in the quantized model is quantized"):
        foldmark.explain(exact, exact, feeds)


def test_weights_alone_need_the_float_model():
    _, near = shared_by_branches(draw(8, 8))
    feeds = {"x": draw(1, 8), "c": np.array(True)}
    with pytest.raises(NothingQuantized, match=r"only weights are quantized.* Give the float"):
        foldmark.explain(None, near, feeds)


def product(weight: np.ndarray, beside: bool = False) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return a MatMul by a weight of whole numbers, with or without its input beside it."""
    net, plain = Network(), Network()
    columns = weight.shape[1]
    scale, zero = np.ones(columns, np.float32), np.zeros(columns, np.int8)
    x = {net: net.pair("x", np.float32(0.05), np.uint8(128)), plain: "x"}
    w = {
        net: net.stored("w", weight.astype(np.int8), scale, zero, axis=1),
        plain: plain.constant("w", weight.astype(np.float32)),
    }
    for each in (net, plain):
        each.input("x", ["n", 4])
        each.node("MatMul", [x[each], w[each]], "m" if beside else "y")
        if beside:
            each.node("Concat", ["m", x[each]], "y", axis=1)
        each.output("y")
    return plain.model(), net.model()


@pytest.mark.parametrize("rows", [1, 3])
def test_small_batches_close(rows):
    assert agrees(explained(*product(np.ones((4, 2))), {"x": draw(rows, 4)}))


def test_a_batch_without_samples_is_refused():
    with pytest.raises(NoData, match="no samples"):
        foldmark.explain(*product(np.ones((4, 2))), {"x": draw(0, 4)})


def test_outputs_without_elements_are_refused():
    with pytest.raises(OutputNotComparable, match=r"no element to compare.*y float32\[3, 0\]"):
        foldmark.explain(*product(np.ones((4, 0))), {"x": draw(3, 4)})


def selecting() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Give the positive elements of a product: as many as there are."""
    net, plain = Network(), Network()
    w = draw(4, 2)
    x = {net: net.pair("x", np.float32(0.05), np.uint8(128)), plain: "x"}
    for each in (net, plain):
        each.input("x", ["n", 4])
        each.node("MatMul", [x[each], each.constant("w", w)], "m")
        each.node("Reshape", ["m", each.constant("flat", np.array([-1]))], "f")
        each.node("Greater", ["f", each.constant("bar", np.float32(0))], "g")
        each.node("Compress", ["f", "g"], "y", axis=0)
        each.output("y")
    return plain.model(), net.model()


def test_first_samples_without_elements_in_their_outputs():
    exact, near = selecting()
    (w,) = (numpy_helper.to_array(t) for t in exact.graph.initializer if t.name == "w")
    target = np.concatenate([-np.ones((3, 2)), np.ones((5, 2))]) + 0.1 * draw(8, 2)
    x = (target @ np.linalg.pinv(w)).astype(np.float32)
    report = explained(exact, near, {"x": x}, batch_size=1)
    assert agrees(report)
    assert report.cost.samples == 8
    assert report.closure.total > 0


def test_an_output_that_quantization_makes_longer_is_refused():
    exact, near = selecting()
    (w,) = (numpy_helper.to_array(t) for t in exact.graph.initializer if t.name == "w")
    clear = np.ones((3, 2)) @ np.linalg.pinv(w)
    # A sample whose second product is just below 0 until it is rounded.
    tried = draw(4000, 4) * 3
    rounded = np.rint(tried / 0.05) * 0.05
    flips = ((tried @ w > 0) != (rounded @ w > 0)).any(1)
    x = np.concatenate([clear, tried[flips][:1]]).astype(np.float32)
    with pytest.raises(OutputNotComparable, match="its length follows the data"):
        foldmark.explain(exact, near, {"x": x}, batch_size=1)


def test_a_float_constant_that_changed_is_named_and_is_in_graph():
    net, plain = Network(), Network()
    w, b = draw(4, 4), draw(4)
    for each, shift in ((net, np.float32(0.1)), (plain, np.float32(0))):
        each.input("x", ["n", 4])
        each.constant("b", b + shift)
    net.node("MatMul", [net.pair("x", np.float32(0.05), np.uint8(128)), net.constant("w", w)], "m")
    plain.node("MatMul", ["x", plain.constant("w", w)], "m")
    for each in (net, plain):
        each.output(each.node("Add", ["m", "b"], "y"))
    x = draw(16, 4)
    report = explained(plain.model(), net.model(), {"x": x})
    moved = relative_error(x @ w + b, x @ w + b + 0.1)
    assert report.closure.graph == pytest.approx(moved, rel=1e-3)
    assert [each.name for each in report.unmatched] == ["b"]
    assert report.unmatched[0].reason.startswith("stored in float")
    text = " ".join(str(report).split())
    assert "no site's: the network was changed besides quantization" in text
    assert "stored in float, and" in text


def test_a_weight_without_elements_carries_nothing():
    report = explained(*product(np.ones((4, 0)), beside=True), {"x": draw(8, 4)})
    assert agrees(report)
    assert {entry.site.name: entry.amount > 0 for entry in report.entries} == {
        "x": True,
        "w": False,
    }


def test_a_scalar_constant_is_a_site():
    net, plain = Network(), Network()
    x = net.pair("x", np.float32(0.05), np.uint8(128))
    c = net.stored("c", np.array(5, np.int8), np.float32(0.25), np.int8(0))
    net.node("Mul", [x, c], "y")
    plain.node("Mul", ["x", plain.constant("c", np.float32(1.3))], "y")
    for each in (net, plain):
        each.input("x", ["n", 4])
        each.output("y")
    report = explained(plain.model(), net.model(), {"x": draw(8, 4)})
    assert agrees(report)
    assert report.entries[0].site.name == "c"
    assert report.entries[0].amount == pytest.approx((0.05 / 1.3) ** 2, rel=0.1)


def test_a_scalar_input_is_a_sample():
    net, plain = Network(), Network()
    net.node("Neg", [net.pair("x", np.float32(0.05), np.uint8(128))], "y")
    plain.node("Neg", ["x"], "y")
    for each in (net, plain):
        each.input("x", [])
        each.output("y")
    report = explained(plain.model(), net.model(), [{"x": np.float32(v)} for v in (1.23, 0.77)])
    assert report.cost.samples == 2
    moved = relative_error(np.array([1.23, 0.77]), [1.25, 0.75])
    assert report.closure.total == pytest.approx(moved, rel=1e-3)


def test_sums_of_codes_as_outputs_are_refused_by_name():
    net = Network()
    net.input("x", ["n", 4])
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="/q"))
    net.node("MatMulInteger", ["q", net.constant("w", np.ones((4, 2), np.int8)), "z"], "y")
    net.output("y", TensorProto.INT32)
    with pytest.raises(OperatorNotSupported, match="MatMulInteger"):
        foldmark.explain(None, net.model(), {"x": draw(3, 4)})


def test_a_change_that_no_site_can_carry_is_not_called_nothing():
    exact, near = gemm(10.0, 1.0, SHIFT // 10)
    report = explained(exact, near, {"a": draw(16, 4)})
    closure = replace(report.closure, kernel=report.closure.total / 3)
    bare = replace(report, entries=(), closure=closure)
    assert "no site is there to carry it" in verdict(bare)
