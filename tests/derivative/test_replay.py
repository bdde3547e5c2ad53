"""Replay ends where it must, its entries add up, and each can be switched off."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.derivative.quantized import (
    ENCODING,
    batch,
    distance,
    squared_distance,
    taken_apart,
    weights,
)

from foldmark.errors import DataMismatch, NoDerivative, NonFiniteValue
from foldmark.graphs.emitter import Emitter
from foldmark.graphs.injection import inject
from foldmark.graphs.sites import QuantizedGraph, Site, SiteKind
from foldmark.ledger.replay import Replay
from foldmark.runtimes.onnxruntime import Session


@pytest.fixture(scope="module")
def replay() -> Replay:
    return Replay(taken_apart())


def aim(samples: int) -> np.ndarray:
    return np.random.default_rng(9).standard_normal((samples, 4)).astype(np.float32)


def test_the_ends_of_the_path(replay: Replay) -> None:
    feeds = batch(12)
    recording = replay.record(feeds)
    quantized = Session(replay.graph.simulated).run(feeds)["y quantized"]
    exact = Session(replay.graph.skeleton).run(feeds)["y quantized"]
    change = np.abs(quantized - exact).max()
    assert change > 0.05
    end = replay.outputs(recording, 1.0)["y quantized"]
    assert np.abs(end - quantized).max() < 1e-5 * change
    assert np.abs(replay.outputs(recording, 0.0)["y quantized"] - exact).max() < 1e-5 * change
    np.testing.assert_array_equal(recording.simulated["y quantized"], quantized)


def test_entries_close_to_the_measured_change(replay: Replay) -> None:
    feeds = batch(12)
    recording = replay.record(feeds)
    change = distance(replay.outputs(recording, 1.0), aim(12)) - distance(
        replay.outputs(recording, 0.0), aim(12)
    )
    errors = []
    for nodes in (1, 2, 4):
        integral = replay.integrate(recording, squared_distance, {"aim": aim(12)}, nodes=nodes)
        errors.append(abs(integral.total / change - 1))
    assert errors[0] > errors[1]
    assert errors[-1] < 1e-5
    assert set(integral.entries) == {site.name for site in replay.sites}
    for name, gradient in integral.gradients.items():
        assert gradient.shape == recording.delta[name].shape
        product = np.sum(gradient.astype(np.float64) * recording.delta[name])
        assert integral.entries[name] == pytest.approx(product, rel=1e-9, abs=1e-12)


def test_a_gradient_is_the_slope_of_its_site(replay: Replay) -> None:
    recording = replay.record(batch(12))
    integral = replay.integrate(recording, squared_distance, {"aim": aim(12)}, nodes=1)
    for site in replay.sites:
        step = 0.02

        def at(amount: float, site=site, step=step) -> float:
            delta = {site.name: recording.delta[site.name] * np.float32(1 + 2 * amount * step)}
            return distance(replay.outputs(recording, 0.5, instead=delta), aim(12))

        slope = (at(1) - at(-1)) / (2 * step)
        assert slope == pytest.approx(integral.entries[site.name], rel=2e-2, abs=2e-3)


def test_switches(replay: Replay) -> None:
    recording = replay.record(batch(5))
    names = [site.name for site in replay.sites]
    exact = replay.outputs(recording, 0.0)["y quantized"]
    full = replay.outputs(recording, 1.0)["y quantized"]
    np.testing.assert_array_equal(
        replay.outputs(recording, 1.0, without=names)["y quantized"], exact
    )
    np.testing.assert_array_equal(replay.outputs(recording, 1.0, only=names)["y quantized"], full)
    alone = replay.outputs(recording, 1.0, only=["y"])["y quantized"]
    np.testing.assert_array_equal(alone, exact + recording.delta["y"])
    zero = {"y": np.zeros_like(recording.delta["y"])}
    np.testing.assert_array_equal(
        replay.outputs(recording, 1.0, instead=zero)["y quantized"],
        replay.outputs(recording, 1.0, without=["y"])["y quantized"],
    )
    with pytest.raises(DataMismatch, match="no such site"):
        replay.outputs(recording, 1.0, without=["nothing"])


def test_batches_of_other_sizes_follow_each_other(replay: Replay) -> None:
    for samples in (12, 1, 3, 12):
        feeds = batch(samples, seed=samples)
        recording = replay.record(feeds)
        change = distance(replay.outputs(recording, 1.0), aim(samples)) - distance(
            replay.outputs(recording, 0.0), aim(samples)
        )
        integral = replay.integrate(recording, squared_distance, {"aim": aim(samples)}, nodes=6)
        assert integral.total == pytest.approx(change, rel=1e-4)


def test_values_before_and_errors_are_those_of_the_quantized_run(replay: Replay) -> None:
    feeds = batch(4)
    recording = replay.record(feeds)
    taps = [name for site in replay.sites for name in (site.before, site.after)]
    seen = Session(replay.graph.simulated, taps=taps).run(feeds)
    for site in replay.sites:
        if site.before in seen:
            np.testing.assert_allclose(recording.before[site.name], seen[site.before], atol=1e-6)
            error = seen[site.after] - seen[site.before]
            np.testing.assert_allclose(recording.delta[site.name], error, atol=1e-6)


def test_an_input_a_constant_and_an_output_take_errors() -> None:
    graph = taken_apart()
    sites = tuple(
        replace(site, tensor={"x": "x", "first": "first", "y": "y quantized"}[site.name])
        for site in graph.sites
        if site.name in ("x", "first", "y")
    )
    injected = inject(graph.skeleton, sites)
    feeds = batch(3)
    errors = {
        "errors of x": np.full((3, 6), 0.5, np.float32),
        "first with errors": weights()["first"],
        "errors of y": np.full((3, 4), 2.0, np.float32),
    }
    amount = np.ones((), np.float32)
    got = Session(injected.model).run({**feeds, **errors, "amount": amount})["y quantized"]
    moved = Session(graph.skeleton).run({"x": feeds["x"] + np.float32(0.5)})["y quantized"]
    np.testing.assert_allclose(got, moved + 2.0, rtol=1e-5)


def twice_in_a_row() -> QuantizedGraph:
    """Return y = 2 x, x quantized coarsely and then more coarsely, its shape read besides."""

    def network(pairs: bool) -> onnx.ModelProto:
        nodes, constants = [], [numpy_helper.from_array(np.float32(2), "two")]
        for name, after, step in (("x", "once", 0.5), ("once", "twice", 0.7)):
            if pairs:
                constants.append(numpy_helper.from_array(np.float32(step), f"{name} step"))
                for kind, source, result in (
                    ("QuantizeLinear", name, f"{name} codes"),
                    ("DequantizeLinear", f"{name} codes", after),
                ):
                    nodes.append(helper.make_node(kind, [source, f"{name} step"], [result]))
            else:
                nodes.append(helper.make_node("Identity", [name], [after]))
        nodes.append(helper.make_node("Mul", ["twice", "two"], ["y quantized"]))
        nodes.append(helper.make_node("Shape", ["once"], ["shape"]))
        dtype = TensorProto.FLOAT
        graph = helper.make_graph(
            nodes,
            "network",
            [helper.make_tensor_value_info("x", dtype, ["n", 6])],
            [
                helper.make_tensor_value_info("y quantized", dtype, ["n", 6]),
                helper.make_tensor_value_info("shape", TensorProto.INT64, [2]),
            ],
            constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    sites = tuple(
        Site(f"{name} as {after}", SiteKind.ACTIVATION, "", "", after, name, after, ENCODING)
        for name, after in (("x", "once"), ("once", "twice"))
    )
    return QuantizedGraph(network(True), network(True), network(False), sites, ())


def test_sites_with_nothing_between_them_share_a_place() -> None:
    graph = twice_in_a_row()
    first, second = (site.name for site in graph.sites)
    assert [place.sites for place in inject(graph.skeleton, graph.sites).places] == [
        (first, second)
    ]
    replay = Replay(graph)
    recordings = [replay.record(batch(4, seed)) for seed in (0, 1)]
    for recording in (*recordings, recordings[0]):
        x, delta = recording.feeds["x"], recording.delta
        both = delta[first] + delta[second]
        half = np.float32(0.5)
        for switches, added in (
            ({}, both),
            ({"without": [first]}, delta[second]),
            ({"only": [first]}, delta[first]),
            ({"without": [first, second]}, np.zeros_like(x)),
            ({"instead": {first: delta[second]}}, 2 * delta[second]),
        ):
            got = replay.outputs(recording, 0.5, **switches)["y quantized"]
            np.testing.assert_allclose(got, 2 * (x + half * added), rtol=1e-6)
        integral = replay.integrate(recording, whole_sum, {}, nodes=2)
        for name in (first, second):
            expected = 2 * delta[name].sum(dtype=np.float64)
            assert integral.entries[name] == pytest.approx(expected, rel=1e-5, abs=1e-5)


def whole_sum(emitter: Emitter) -> str:
    """Append sum y."""
    return emitter.reduce_sum("y quantized", [0, 1])


def test_a_shape_is_read_before_errors() -> None:
    graph = twice_in_a_row()
    sites = [replace(site, tensor="once") for site in graph.sites]
    graph.skeleton.graph.node[2].input[0] = "once"
    model = inject(graph.skeleton, sites).model.model
    made = {name: node for node in model.graph.node for name in node.output}
    assert made[made["shape"].input[0]].op_type == "Identity"
    assert made[made["y quantized"].input[0]].op_type == "Add"


def test_an_operator_without_derivative_is_named() -> None:
    replay = Replay(taken_apart("Hardmax"))
    recording = replay.record(batch(3))
    with pytest.raises(NoDerivative) as caught:
        replay.integrate(recording, squared_distance, {"aim": aim(3)}, nodes=1)
    assert "Hardmax" in str(caught.value)
    assert "the tail" in str(caught.value)


def test_nan_in_the_run_is_named_by_site_and_index(replay: Replay) -> None:
    feeds = batch(3)
    feeds["x"][1, 2] = np.nan
    with pytest.raises(NonFiniteValue) as caught:
        replay.record(feeds)
    assert "'x'" in str(caught.value)
    assert "[1, 2]" in str(caught.value)
