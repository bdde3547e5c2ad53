"""Mean slopes along a stretch: exact for one function, and few nodes for a network of them."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.derivative.quantized import batch, distance, squared_distance, taken_apart
from tests.graphs.networks import Network, draw

import foldmark
from foldmark.graphs.derivative.kinks import Kink, find_kinks
from foldmark.graphs.light import lighten
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


def test_it_is_the_same_block_by_block() -> None:
    kink: Kink = find_kinks(lighten(model_of("Clip", [0.0, 6.0], {})))["y"]
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
    net.node("Max", ["x", "a"], "c")
    net.node("Clip", ["x", "low", "high"], "empty")
    net.node("Tanh", ["x"], "d")
    net.node("Clip", ["x"], "e")
    for name in ("a", "b", "c", "d", "e", "empty"):
        net.output(name)
    found = find_kinks(lighten(net.model()))
    assert set(found) == {"e"}
    assert found["e"].mean_slope(draw(3), draw(3)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("operator", ["Relu", "HardSwish", "LeakyRelu", "Abs"])
def test_few_nodes_integrate_a_path_with_kinks(operator: str) -> None:
    replay = Replay(taken_apart(operator))
    assert replay.has_kinks
    recording = replay.record(batch(12))
    inputs = {"aim": np.zeros((12, 4), np.float32)}
    ends = [distance(replay.outputs(recording, t), inputs["aim"]) for t in (0.0, 1.0)]
    for nodes, most in ((2, 4e-3), (4, 1e-3), (8, 2e-4)):
        integral = replay.integrate(recording, squared_distance, inputs, nodes=nodes)
        assert integral.total == pytest.approx(ends[1] - ends[0], rel=most)


def small_mobile_net() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return a float network of the blocks of mobile networks, and its int8 copy."""
    models = []
    for is_quantized in (False, True):
        net = Network(17)
        x = net.input("image", ["n", 3, 16, 16])
        net.constant("zero", np.float32(0))
        net.constant("six", np.float32(6))
        channels = 3
        for i, (kernel, outer, group, stride) in enumerate(BLOCKS):
            w = draw(outer, channels // group, kernel, kernel, seed=i)
            w *= 1.6 * (channels // group * kernel * kernel) ** -0.5
            if is_quantized:
                scale = np.float32(np.abs(w).max() / 127)
                weight = net.stored(f"w{i}", np.rint(w / scale).astype(np.int8), scale)
                x = net.pair(x, np.float32(0.05), np.int8(-64 if i else 0))
            else:
                weight = net.constant(f"w{i}", w)
            bounds = {"strides": [stride] * 2, "pads": [kernel // 2] * 4, "group": group}
            x = net.node("Conv", [x, weight], f"conv{i}", **bounds)
            if i < len(BLOCKS) - 1:
                x = net.node("Clip", [x, "zero", "six"], f"clip{i}")
            channels = outer
        x = net.node("ReduceMean", [x], "logits", axes=[2, 3], keepdims=0)
        net.output(x, shape=["n", 10])
        models.append(net.model())
    return models[0], models[1]


# Kernel, channels out, groups, stride.
BLOCKS = [
    (3, 16, 1, 2),
    (3, 16, 16, 1),
    (1, 32, 1, 1),
    (3, 32, 32, 2),
    (1, 24, 1, 1),
    (1, 48, 1, 1),
    (3, 48, 48, 1),
    (1, 10, 1, 1),
]


def test_a_network_of_clips_closes_with_few_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With slopes at points it took hundreds of runs and did not close."""
    runs = []
    add_nodes = Replay.add_nodes

    def counted(self, recording, metric, inputs, stretch, **options):
        runs.append(stretch.nodes)
        return add_nodes(self, recording, metric, inputs, stretch, **options)

    monkeypatch.setattr(Replay, "add_nodes", counted)
    data = {"image": draw(8, 3, 16, 16, seed=9)}
    report = foldmark.explain(*small_mobile_net(), data, cures=False)
    assert abs(report.closure.relative_error) <= 1e-4
    assert report.cost.nodes <= 16
    assert sum(runs) <= 20 * len(data["image"])


def test_progress_moves_within_a_sample() -> None:
    told: list[float] = []
    data = {"image": draw(2, 3, 16, 16, seed=9)}
    foldmark.explain(*small_mobile_net(), data, on_progress=told.append)
    assert told == sorted(set(told))
    assert told[-1] == 1.0
    steps = np.diff([0.0, *told])
    assert len(told) > 20
    assert steps.max() < 0.35
