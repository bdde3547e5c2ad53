"""Mean slopes along a stretch: exact for one function, and few nodes for a network of them."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.derivative.convolutional import followed, larger_half, leaning, mobile, plain
from tests.derivative.quantized import batch, distance, squared_distance, taken_apart
from tests.graphs.networks import Network, draw

import foldmark
from foldmark.graphs.derivative.contests import with_winners
from foldmark.graphs.derivative.kinks import find_kinks
from foldmark.graphs.light import lighten, with_outputs
from foldmark.ledger.replay import Replay
from foldmark.runtimes.onnxruntime import Session

FUNCTIONS = [
    ("Relu", [], {}),
    ("LeakyRelu", [], {"alpha": 0.2}),
    ("LeakyRelu", [], {}),
    ("Abs", [], {}),
    ("HardSigmoid", [], {"alpha": 0.3, "beta": 0.4}),
    ("HardSwish", [], {}),
    ("Clip", [0.0, 1.5], {}),
    ("Clip", [-0.5], {}),
    ("Clip", ["", 0.75], {}),
    ("Max", [0.25], {}),
    ("Min", [0.25], {}),
    ("ThresholdedRelu", [], {"alpha": 0.6}),
    ("Shrink", [], {"lambd": 0.7, "bias": 0.2}),
]


def model_of(operator: str, numbers: list, attributes: dict) -> onnx.ModelProto:
    names = [f"n{i}" if number != "" else "" for i, number in enumerate(numbers)]
    constants = [
        numpy_helper.from_array(np.float32(number), name)
        for name, number in zip(names, numbers, strict=True)
        if name
    ]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", *names], ["y"], **attributes)],
        "one",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n"])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("operator", "numbers", "attributes"), FUNCTIONS)
def test_the_mean_slope_is_the_rise_over_the_run(
    operator: str, numbers: list, attributes: dict
) -> None:
    model = model_of(operator, numbers, attributes)
    kink = find_kinks(lighten(model))["y"]
    assert kink.argument == "x"
    grid = np.linspace(-5, 5, 41).astype(np.float32)
    low, high = (a.ravel() for a in np.meshgrid(grid, grid))
    apart = low != high
    low, high = low[apart], high[apart]
    run = Session(model)
    rise = run.run({"x": high})["y"].astype(np.float64) - run.run({"x": low})["y"]
    expected = rise / (high.astype(np.float64) - low)
    np.testing.assert_allclose(kink.mean_slope(low, high), expected, atol=3e-6)
    np.testing.assert_array_equal(kink.mean_slope(low, high), kink.mean_slope(high, low))


@pytest.mark.parametrize(("operator", "numbers", "attributes"), FUNCTIONS)
def test_where_nothing_moves_it_is_the_slope(
    operator: str, numbers: list, attributes: dict
) -> None:
    model = model_of(operator, numbers, attributes)
    kink = find_kinks(lighten(model))["y"]
    x = (np.linspace(-5, 5, 201) + 0.013).astype(np.float32)
    step = np.float32(2**-10)
    run = Session(model)
    rise = run.run({"x": x + step})["y"] - run.run({"x": x - step})["y"]
    np.testing.assert_allclose(kink.mean_slope(x, x), rise / (2 * step), atol=1e-3)
    corners = np.array([c.limit for c in kink.corners], np.float32)
    assert np.isfinite(kink.mean_slope(corners, corners)).all()


CONTESTS = [
    ("MaxPool", {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    ("GlobalMaxPool", {}),
    ("ReduceMax", {"axes": [-1, 1]}),
    ("ReduceMin", {"axes": [2], "keepdims": 0}),
]


@pytest.mark.parametrize(("operator", "attributes"), CONTESTS)
def test_shares_of_winners_make_the_rise_of_the_maximum(operator: str, attributes: dict) -> None:
    net = Network(17)
    net.input("x", ["n", 3, 6, 5])
    net.output(net.node(operator, ["x"], "y", **attributes))
    model = lighten(net.model())
    contest = find_kinks(model)["y"]
    run = Session(with_outputs(with_winners(model), contest.seen[1:]))
    feeds = [{"x": draw(2, 3, 6, 5, seed=seed)} for seed in (1, 2)]
    low, high = ({**each, **run.run(each)} for each in feeds)
    first, last, share = contest.means(low, high, {}).values()
    moved = (high["x"] - low["x"]).reshape(-1)
    rise = share * moved[first] + (1 - share) * moved[last]
    np.testing.assert_allclose(rise, (high["y"] - low["y"]).reshape(-1), atol=1e-5)
    assert ((share > 0) & (share < 1)).any()
    still = contest.means(low, low, {})
    np.testing.assert_array_equal(low["x"].reshape(-1)[first], low["y"].reshape(-1))
    assert np.isfinite(list(still.values())[2]).all()


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_shares_of_two_tensors_make_the_rise_of_the_larger(operator: str) -> None:
    net = Network(17)
    net.input("a", [4, 1, 5])
    net.input("b", [3, 5])
    net.output(net.node(operator, ["a", "b"], "y"))
    model = lighten(net.model())
    between = find_kinks(model)["y"]
    assert between.seen == ("a", "b")
    low, high = ({"a": draw(4, 1, 5, seed=s), "b": draw(3, 5, seed=s + 1)} for s in (1, 4))
    (share,) = between.means(low, high, {}).values()
    rise = share * (high["a"] - low["a"]) + (1 - share) * (high["b"] - low["b"])
    run = Session(model)
    np.testing.assert_allclose(rise, run.run(high)["y"] - run.run(low)["y"], atol=1e-5)


def test_it_is_the_same_block_by_block() -> None:
    kink = find_kinks(lighten(model_of("Clip", [0.0, 6.0], {})))["y"]
    low, high = 4 * draw(3, 20001), 4 * draw(3, 20001, seed=1)
    whole = kink.mean_slope(low, high)
    parts = [kink.mean_slope(a, b) for a, b in zip(low, high, strict=True)]
    np.testing.assert_array_equal(whole, np.stack(parts))
    assert 0 < whole.mean() < 1


def test_a_limit_that_is_not_a_stored_number_is_left_to_the_rules() -> None:
    net = Network(17)
    net.input("x", ["n"])
    net.input("top", [])
    net.constant("row", draw(4))
    net.constant("low", np.float32(1))
    net.constant("high", np.float32(-1))
    net.node("Clip", ["x", "", "top"], "a")
    net.node("Max", ["x", "row"], "b")
    net.node("PRelu", ["x", "a"], "c")
    net.node("MaxPool", ["x"], "f", kernel_shape=[2], storage_order=1)
    net.node("Clip", ["x", "low", "high"], "empty")
    net.node("Tanh", ["x"], "d")
    net.node("Clip", ["x"], "e")
    for name in ("a", "b", "c", "d", "e", "f", "empty"):
        net.output(name)
    found = find_kinks(lighten(net.model()))
    assert set(found) == {"e"}
    assert found["e"].mean_slope(draw(3), draw(3)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("operator", ["Relu", "HardSwish", "LeakyRelu", "Abs", "Selu"])
def test_few_nodes_integrate_a_path_with_kinks(operator: str) -> None:
    replay = Replay(taken_apart(operator))
    assert replay.has_kinks
    recording = replay.record(batch(12))
    inputs = {"aim": np.zeros((12, 4), np.float32)}
    ends = [distance(replay.outputs(recording, t), inputs["aim"]) for t in (0.0, 1.0)]
    for nodes, most in ((2, 4e-3), (4, 1e-3), (8, 2e-4)):
        integral = replay.integrate(recording, squared_distance, inputs, nodes=nodes)
        assert integral.total == pytest.approx(ends[1] - ends[0], rel=most)


NETWORKS = {
    "Clip": mobile,
    "PRelu": lambda: followed(leaning),
    "Selu": lambda: followed(plain("Selu")),
    "Elu": lambda: followed(plain("Elu", alpha=0.3)),
    "Shrink": lambda: followed(plain("Shrink", lambd=0.3, bias=0.3)),
    "MaxPool": lambda: followed(plain("MaxPool", kernel_shape=[3, 3], strides=[2, 2])),
    "Max": lambda: followed(larger_half),
    "ReduceMax": lambda: followed(plain("Tanh"), "max"),
    "ReduceMin": lambda: followed(plain("Tanh"), "min"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_closes_with_few_nodes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With slopes at points most take twice the runs, and leave five times as much unsigned."""
    runs = []
    add_nodes = Replay.add_nodes

    def counted(self, recording, metric, inputs, stretch, **options):
        runs.append(stretch.nodes)
        return add_nodes(self, recording, metric, inputs, stretch, **options)

    monkeypatch.setattr(Replay, "add_nodes", counted)
    data = {"image": draw(8, 3, 16, 16, seed=9)}
    report = foldmark.explain(*NETWORKS[name](), data, cures=False, batch_size=1)
    assert abs(report.closure.relative_error) <= 1e-4
    assert report.closure.unsigned <= 2.2e-4 * abs(report.closure.total)
    assert sum(runs) <= 25 * len(data["image"])


def test_progress_moves_within_a_sample() -> None:
    told: list[float] = []
    data = {"image": draw(2, 3, 16, 16, seed=9)}
    foldmark.explain(*mobile(), data, on_progress=told.append)
    assert told == sorted(set(told))
    assert told[-1] == 1.0
    steps = np.diff([0.0, *told])
    assert len(told) > 20
    assert steps.max() < 0.35
