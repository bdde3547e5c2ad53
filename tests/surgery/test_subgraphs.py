"""Static quantization inside If, Loop and Scan: ranges from there, integer kernels there."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tests.exact_sums import SEVEN_BITS
from tests.models.branches import branches, samples
from tests.surgery import nets

from foldmark.calibrate.calibration import calibrate
from foldmark.calibrate.observers import Observer
from foldmark.calibrate.statistics import Detail
from foldmark.graphs.exposing import expose, uniquely_named
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import Recipe
from foldmark.runtimes.batches import open_data
from foldmark.runtimes.onnxruntime import Session
from foldmark.runtimes.profile import execute

WEIGHT = nets.random(16, 16) / 4


def value(name, kind=TensorProto.FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def loop(turns=3):
    """s = tanh(s W), some turns of it, every s kept too."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "w"], ["r"], "inner"),
            helper.make_node("Tanh", ["r"], ["s2"]),
            helper.make_node("Identity", ["c"], ["c2"]),
            helper.make_node("Identity", ["s2"], ["kept"]),
        ],
        "body",
        [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), value("s")],
        [value("c2", TensorProto.BOOL, []), value("s2"), value("kept")],
    )
    nodes = [
        helper.make_node("Loop", ["turns", "", "x"], ["final", "all"], "loop", body=body),
        helper.make_node("MatMul", ["final", "w"], ["y"], "last"),
    ]
    return nets.net(nodes, {"w": WEIGHT, "turns": np.int64(turns)}, ("n", 16))


def scan():
    """s += x_t W, relu of every s."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["xt", "w"], ["p"], "inner"),
            helper.make_node("Add", ["p", "s"], ["s2"]),
            helper.make_node("Relu", ["s2"], ["o"]),
        ],
        "body",
        [value("s", shape=[16]), value("xt", shape=[16])],
        [value("s2", shape=[16]), value("o", shape=[16])],
    )
    node = helper.make_node("Scan", ["zero", "x"], ["final", "y"], "scan", body=body,
                            num_scan_inputs=1)  # fmt: skip
    return nets.net([node], {"w": WEIGHT, "zero": np.zeros(16, np.float32)}, ("n", 16))


def alike():
    """Two branches that call their values alike, one with a loop inside."""

    def branch(name, factor, looped):
        weight = onnx.numpy_helper.from_array(WEIGHT * np.float32(factor), "w")
        product = helper.make_node("MatMul", ["x", "w"], ["p"], "product")
        if not looped:
            return helper.make_graph([product], name, [], [value("p")], [weight])
        body = loop().graph.node[0].attribute[0].g
        turns = onnx.numpy_helper.from_array(np.int64(2), "turns")
        again = helper.make_node("Loop", ["turns", "", "p"], ["q", "all"], "loop", body=body)
        return helper.make_graph([product, again], name, [], [value("q")], [weight, turns])

    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], "if", then_branch=branch("then", 1, True),
                         else_branch=branch("else", 100, False)),
    ]  # fmt: skip
    return nets.net(nodes, {"zero": np.float32(0)}, ("n", 16))


def both_signs(count=32):
    x = nets.random(count, 16)
    x[::2] = np.abs(x[::2])
    x[1::2] = -np.abs(x[1::2])
    return {"x": x}


def by_hand_loop(x, turns=3):
    inner = []
    for _ in range(turns):
        inner.append(x)
        x = np.tanh(x @ WEIGHT)
    return inner, x


@pytest.mark.parametrize("detail", list(Detail))
@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_loop_shows_every_turn(detail, batch_size):
    model, x = loop(), nets.random(32, 16)
    data = open_data({"x": x}, model)
    found = calibrate(model, data, tensors=["s", "final"], detail=detail, batch_size=batch_size)
    inner, final = by_hand_loop(x)
    assert found.tensors["s"].values == 3 * x.size
    assert found.tensors["s"].maximum == pytest.approx(max(each.max() for each in inner), rel=1e-5)
    assert found.tensors["final"].minimum == pytest.approx(final.min(), rel=1e-5)


def test_a_scan_shows_every_turn():
    model, x = scan(), nets.random(32, 16)
    found = calibrate(model, open_data({"x": x}, model), tensors=["xt", "s"], batch_size=32)
    running = np.concatenate([np.zeros((1, 16)), np.cumsum(x @ WEIGHT, axis=0)[:-1]])
    assert found.tensors["xt"].maximum == x.max()
    assert found.tensors["s"].maximum == pytest.approx(running.max(), rel=1e-4)


def test_names_that_two_branches_share_are_told_apart():
    model = alike()
    found = calibrate(model, open_data(both_signs(), model), batch_size=1)
    ends = {name: each.maximum for name, each in found.tensors.items()}
    small, large = sorted((ends["p"], ends["p_2"]))
    assert large > 20 * small
    assert {"s", "s2"} & ends.keys()
    one = Session(model).run({"x": both_signs()["x"][:1]})["y"]
    assert np.array_equal(
        Session(uniquely_named(model)).run({"x": both_signs()["x"][:1]})["y"], one
    )


def test_nothing_is_exposed_where_nothing_is_inside():
    model = nets.matmul(WEIGHT)
    assert expose(model, ["x", "y"]) == (model, {})
    assert uniquely_named(model) is model


@pytest.mark.parametrize(("make", "count"), [(loop, 2), (scan, 1), (alike, 3)])
def test_quantized_inside(make, count):
    model = make()
    data = {"x": nets.random(32, 16)} if make is not alike else both_signs()
    recipe = Recipe(rule=SEVEN_BITS)
    made = quantize_model(model, recipe, data, batch_size=1 if make is alike else 8)
    onnx.checker.check_model(made.model)
    assert [each.operator for each in made.account.done] == ["MatMul"] * count
    real = Session(model).run({"x": data["x"][:8]})["y"]
    other = Session(made.model).run({"x": data["x"][:8]})["y"]
    assert np.abs(real - other).max() < 0.07 * np.abs(real).max()


def test_integer_kernels_inside_a_branch(tmp_path):
    made = quantize_model(branches(), Recipe(), samples(64))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(
        made.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (node,) = [n for n in onnx.load(tmp_path / "optimized.onnx").graph.node if n.op_type == "If"]
    for branch in node.attribute:
        assert "MatMulIntegerToFloat" in [inner.op_type for inner in branch.g.node]


def test_weights_of_several_graphs_are_stored_once():
    made = quantize_model(loop(), Recipe(), {"x": nets.random(32, 16)}).model
    coded = [tensor for tensor in made.graph.initializer if tensor.data_type == TensorProto.INT8]
    assert len([tensor for tensor in coded if list(tensor.dims) == [16, 16]]) == 1


def test_ranges_saved_earlier_serve_inside(tmp_path):
    model = onnx.load(branches())
    data = open_data(samples(64), model)
    ranges = calibrate(model, data, observer=Observer())
    again = quantize_model(model, Recipe(), ranges=ranges)
    direct = quantize_model(model, Recipe(), samples(64))
    assert again.model.SerializeToString() == direct.model.SerializeToString()


def test_a_branch_that_reads_a_convolution_reads_its_codes():
    """What a branch reads in float would keep the convolution before it from running on codes."""

    def branch(name, operator):
        out = value(f"{name}_y")
        node = helper.make_node(operator, ["r"], [f"{name}_y"])
        return helper.make_graph([node], name, [], [out])

    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "zero"], ["positive"]),
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("If", ["positive"], ["y"], "if",
                         then_branch=branch("then", "Identity"), else_branch=branch("else", "Neg")),
    ]  # fmt: skip
    stored = {"w": nets.random(4, 3, 3, 3), "zero": np.zeros((), np.float32)}
    model = nets.net(nodes, stored, ("n", 3, 8, 8), 4)
    feeds = {"x": nets.random(8, 3, 8, 8, seed=3)}
    made = quantize_model(model, Recipe(), [feeds]).model
    ran = execute(made, feeds)
    assert [node.operator for node in ran.nodes if "Conv" in node.operator] == ["QLinearConv"]
    for sign in (1, -1):
        fed = {"x": sign * np.abs(feeds["x"])}
        real, other = (Session(each).run(fed)["y"] for each in (model, made))
        assert np.linalg.norm(other - real) < 0.05 * np.linalg.norm(real)
