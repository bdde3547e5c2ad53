"""Replay ends where it must, its entries add up, and each can be switched off."""

from dataclasses import replace

import numpy as np
import pytest
from tests.derivative.quantized import batch, distance, squared_distance, taken_apart

from foldmark.errors import DataMismatch, NoDerivative, NonFiniteValue
from foldmark.graphs.injection import inject
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
        "delta of x": np.full((3, 6), 0.5, np.float32),
        "delta of first": np.full((6, 16), 0.25, np.float32),
        "delta of y": np.full((3, 4), 2.0, np.float32),
    }
    amounts = np.array([site.name != "first" for site in injected.sites], np.float32)
    got = Session(injected.model).run({**feeds, **errors, "amounts": amounts})["y quantized"]
    moved = Session(graph.skeleton).run({"x": feeds["x"] + np.float32(0.5)})["y quantized"]
    np.testing.assert_allclose(got, moved + 2.0, rtol=1e-5)


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
