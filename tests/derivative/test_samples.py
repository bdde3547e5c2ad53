"""Entries sample by sample out of a batch are those of each sample in a batch of its own."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from tests.derivative.convolutional import mobile as mobile_pair
from tests.derivative.quantized import batch, squared_distance, taken_apart
from tests.graphs.networks import Network, draw

from foldmark.graphs.emitter import Emitter
from foldmark.graphs.reading.read import read_quantized
from foldmark.ledger.replay import Replay
from foldmark.ledger.stretch import Stretch

Feeds = dict[str, np.ndarray]
STEP = np.float32(0.04)


def language_like() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return a network with a table of rows, one of places, a tied weight, gains and a Gemm."""
    models = []
    for is_quantized in (False, True):
        net = Network(17)
        net.input("ids", ["n", 5], onnx.TensorProto.INT64)
        net.constant("places", np.arange(5))

        def weight(name: str, array: np.ndarray, net=net, store=is_quantized) -> str:
            if not store:
                return net.constant(name, array)
            return net.stored(name, np.rint(array / STEP).astype(np.int8), STEP)

        def pair(x: str, net=net, store=is_quantized) -> str:
            return net.pair(x, STEP, np.int8(3)) if store else x

        table = weight("table", draw(11, 8))
        words = net.node("Gather", [table, "ids"], "words")
        places = net.node("Gather", [weight("place", draw(7, 8, seed=1)), "places"], "where")
        both = pair(net.node("Add", [words, places], "both"))
        scaled = net.node("Mul", [both, weight("gain", draw(8, seed=2))], "scaled")
        moved = net.node("Sub", [scaled, weight("shift", draw(8, seed=3))], "moved")
        hidden = net.node("MatMul", [pair(moved), weight("first", draw(8, 8, seed=4))], "hidden")
        bent = net.node("Relu", [hidden], "bent")
        turned = net.node("Transpose", [table], "turned", perm=[1, 0])
        scores = net.node("MatMul", [pair(bent), turned], "scores")
        pooled = pair(net.node("ReduceMean", [scores], "pooled", axes=[1], keepdims=0))
        last, bias = weight("last", draw(4, 11, seed=5)), weight("bias", draw(4, seed=6))
        net.output(net.node("Gemm", [pooled, last, bias], "y", transB=1, beta=0.5))
        models.append(net.model())
    return models[0], models[1]


def norm_of(name: str) -> Callable[[Emitter], str]:
    """Return what appends the sum of an output's squares."""

    def append(emitter: Emitter) -> str:
        return emitter.reduce_sum(emitter.multiply(name, name), [0, 1])

    return append


def mobile() -> tuple[Replay, Feeds, Callable[[Emitter], str]]:
    exact, quantized = mobile_pair()
    return (
        Replay(read_quantized(quantized, exact)),
        {"image": draw(5, 3, 16, 16)},
        norm_of("logits"),
    )


def language() -> tuple[Replay, Feeds, Callable[[Emitter], str]]:
    exact, quantized = language_like()
    ids = np.random.default_rng(3).integers(0, 11, (5, 5))
    return Replay(read_quantized(quantized, exact)), {"ids": ids}, norm_of("y")


def dense() -> tuple[Replay, Feeds, Callable[[Emitter], str]]:
    return Replay(taken_apart()), batch(5), norm_of("y quantized")


@pytest.mark.parametrize("make", [mobile, language, dense])
def test_parts_are_the_entries_of_samples_alone(make) -> None:
    replay, feeds, metric = make()
    recording = replay.record(feeds)
    apart = replay.apart(feeds, 5)
    assert apart is not None
    whole = replay.add_nodes(recording, metric, {}, Stretch(3), apart=apart)
    assert set(whole.parts) == {site.name for site in replay.sites}
    for name, entry in whole.entries.items():
        assert whole.parts[name].sum() == pytest.approx(entry, rel=1e-9, abs=1e-12)
    for sample in range(5):
        one = replay.record({name: array[sample : sample + 1] for name, array in feeds.items()})
        alone = replay.integrate(one, metric, {}, nodes=3).entries
        size = max(map(abs, alone.values()))
        for name, entry in alone.items():
            assert abs(whole.parts[name][sample] - entry) < 2e-5 * size, name


def network(mix: Callable[[Network, str], str], shape: list) -> Replay:
    """Return the replay of y = mix(x) W with x and W quantized."""
    models = []
    for is_quantized in (False, True):
        net = Network(17)
        net.input("x", shape)
        x, w = "x", draw(6, 4)
        if is_quantized:
            weight = net.stored("w", np.rint(w / STEP).astype(np.int8), STEP)
            x = net.pair("x", STEP, np.int8(0))
        else:
            weight = net.constant("w", w)
        net.constant("rows", np.array([-1, 6]))
        net.output(net.node("MatMul", [mix(net, x), weight], "y"))
        models.append(net.model())
    return Replay(read_quantized(models[1], models[0]))


def test_samples_that_can_not_be_told_apart() -> None:
    def mean(net: Network, x: str) -> str:
        return net.node("Sub", [x, net.node("ReduceMean", [x], "m", axes=[0])], "apart")

    def rows(net: Network, x: str) -> str:
        return net.node("Reshape", [x, "rows"], "flat")

    def same(_: Network, x: str) -> str:
        return x

    flat, deep = {"x": draw(3, 6)}, {"x": draw(3, 2, 6)}
    assert network(same, ["n", 6]).apart(flat, 3) is not None
    assert network(same, ["n", 6]).apart({"x": draw(1, 6)}, 1) is None
    assert network(mean, ["n", 6]).apart(flat, 3) is None  # samples that see each other
    assert network(rows, ["n", 2, 6]).apart(deep, 3) is None  # outputs without their axis
    assert network(same, [3, 6]).apart(flat, 3) is None  # a model of three samples, no fewer


def test_a_weight_that_does_not_enter_linearly_leaves_samples_together() -> None:
    models = []
    for is_quantized in (False, True):
        net = Network(17)
        net.input("x", ["n", 6])
        w = draw(6, 4)
        stored = net.stored("w", np.rint(w / STEP).astype(np.int8), STEP) if is_quantized else ""
        bent = net.node("Tanh", [stored or net.constant("w", w)], "bent")
        net.output(net.node("MatMul", ["x", bent], "y"))
        models.append(net.model())
    replay = Replay(read_quantized(models[1], models[0]))
    assert replay.apart({"x": draw(3, 6)}, 3) is None


def test_squared_distance_is_split_as_well() -> None:
    """The metric may read further inputs, whose first axis counts samples too."""
    replay, feeds, _ = dense()
    recording = replay.record(feeds)
    aim = {"aim": draw(5, 4)}
    whole = replay.add_nodes(
        recording, squared_distance, aim, Stretch(2), apart=replay.apart(feeds, 5)
    )
    one = replay.record({"x": feeds["x"][4:]})
    alone = replay.integrate(one, squared_distance, {"aim": aim["aim"][4:]}, nodes=2)
    for name, entry in alone.entries.items():
        assert whole.parts[name][4] == pytest.approx(entry, rel=1e-3, abs=1e-5)
