"""What the samples settle: intervals are narrow where all agree, wide where one decides."""

import numpy as np
import onnx
import pytest
from tests.graphs.networks import Network, draw

import foldmark
from foldmark.ledger.entries import Entry
from foldmark.ledger.findings import Findings

STEP = np.float32(0.05)


def two_branches() -> tuple[onnx.ModelProto, ...]:
    """Return a float model, and a copy in which two activations are rounded.

    x is off by a fifth of a step in every sample, y by half a step in one alone.
    """
    net, plain = Network(), Network()
    rounded = {net: [net.pair(name, STEP, np.uint8(128)) for name in "xy"], plain: ["x", "y"]}
    for each in (net, plain):
        for name in "xy":
            each.input(name, ["n", 8])
        each.node("Concat", rounded[each], "z", axis=1)
        each.output("z")
    return plain.model(), net.model()


def data(samples: int, lone: float) -> dict[str, np.ndarray]:
    steps = np.sign(draw(samples, 8)) * (1 + np.arange(samples * 8).reshape(samples, 8) % 20)
    x = (steps + 0.2) * STEP
    y = steps * STEP
    y[samples // 2] += lone * STEP
    return {"x": x.astype(np.float32), "y": y.astype(np.float32)}


def explained(samples: int = 24, lone: float = 0.0, **asked) -> tuple[Findings, dict[str, Entry]]:
    report = foldmark.explain(*two_branches(), data(samples, lone), metric="mse", **asked)
    assert sum(e.amount for e in report.entries) == pytest.approx(report.closure.sites, rel=1e-9)
    return report, {entry.site.name: entry for entry in report.entries}


def width(entry: Entry) -> float:
    assert entry.interval is not None
    low, high = entry.interval
    return (high - low) / abs(entry.amount)


def test_what_all_samples_agree_on_is_narrow():
    report, by_name = explained()
    assert report.entries[0].site.name == "x"
    assert width(by_name["x"]) < 0.5
    assert report.first_holds == 1
    assert "do not settle" not in str(report)


def test_what_one_sample_carries_is_wide_and_doubted():
    _, by_name = explained(lone=0.49)
    low, high = by_name["y"].interval
    assert low <= 1e-9  # without that sample there is nothing
    assert high > 1.9 * by_name["y"].amount
    assert width(by_name["y"]) > 4 * width(by_name["x"])


def test_a_first_place_that_one_sample_decides_is_said():
    report, _ = explained(samples=5, lone=0.49)
    assert report.entries[0].site.name == "y"
    assert report.first_holds < 0.9
    assert "do not settle the ranking" in " ".join(str(report).split())


@pytest.mark.parametrize("size", [None, 2, 3])
def test_each_sample_is_drawn_by_itself_in_whatever_batch(size):
    """A lone sample is in the interval as what it is."""
    _, alone = explained(samples=8, lone=0.49, batch_size=1)
    _, shared = explained(samples=8, lone=0.49, batch_size=size)
    for name in ("x", "y"):
        assert alone[name].amount == pytest.approx(shared[name].amount, rel=1e-4)
        assert alone[name].interval == pytest.approx(shared[name].interval, rel=1e-3, abs=1e-9)


def test_where_samples_see_each_other_batches_are_drawn():
    def seen(model: onnx.ModelProto) -> onnx.ModelProto:
        nodes = model.graph.node
        mean = onnx.helper.make_node("ReduceMean", ["z"], ["mean"], axes=[0])
        apart = onnx.helper.make_node("Sub", ["z", "mean"], ["apart"])
        nodes.extend([mean, apart])
        model.graph.output[0].name = "apart"
        return model

    models = [seen(model) for model in two_branches()]
    arrays = data(8, 0.49)
    two, four = (
        foldmark.explain(*models, arrays, metric="mse", batch_size=size, cures=False)
        for size in (2, 4)
    )
    assert all(entry.interval is not None for entry in two.entries)
    assert all(entry.interval is None for entry in four.entries)  # two batches say nothing


@pytest.mark.parametrize("samples", [3, 200])
def test_the_number_of_batches_follows_the_samples(samples):
    report, _ = explained(samples=samples, cures=False)
    assert (report.first_holds is None) == (samples < 4)
