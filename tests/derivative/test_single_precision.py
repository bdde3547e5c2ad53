"""Where float32 graphs take another way than float64 ones: the same gradients, in fewer passes."""

import math

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from tests.derivative.checking import derive, model_of

from foldmark.graphs.light import with_outputs
from foldmark.runtimes.onnxruntime import Optimization, Session

Arrays = dict[str, NDArray[np.generic]]


def gradients(nodes: list[onnx.NodeProto], feeds: Arrays, names: list[str], **rest) -> Arrays:
    """Return the gradients, and the first output under its own name."""
    model = model_of(nodes, feeds, **rest)
    weighed, derivative = derive(model, feeds, names)
    found = Session(derivative.model).run(feeds)
    results = {name: found[derivative.gradients[name]] for name in names}
    return results | {"y": Session(weighed).run(feeds)["y"]}


def operators(nodes: list[onnx.NodeProto], feeds: Arrays, names: list[str], **rest) -> list[str]:
    _, derivative = derive(model_of(nodes, feeds, **rest), feeds, names)
    return [node.op_type for node in derivative.model.model.graph.node]


def wide(feeds: Arrays) -> Arrays:
    return {name: array.astype(np.float64) for name, array in feeds.items()}


@pytest.mark.parametrize("names", [["x"], ["s"], ["x", "s", "b"]])
def test_layer_norm_of_rows(names: list[str]) -> None:
    draw = np.random.default_rng(3)
    x = draw.standard_normal((3, 5, 48)).astype(np.float32)
    x[0] += 30  # a mean far from zero
    x[1, :, 7] *= 60  # one huge channel
    s, b = draw.standard_normal((2, 48)).astype(np.float32)
    feeds: Arrays = {"x": x, "s": s, "b": b}
    nodes = [helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"], epsilon=1e-5)]
    assert "ReduceMean" not in operators(nodes, feeds, names)
    narrow, exact = gradients(nodes, feeds, names), gradients(nodes, wide(feeds), names)
    for name in names:
        size = np.abs(exact[name]).max()
        assert np.abs(narrow[name] - exact[name]).max() < 2e-5 * size


def slope(
    x: NDArray[np.generic], root: float, one: float, half: float, besides: float = 0
) -> NDArray[np.float64]:
    """Return the slope of half x (one + erf(x / root)) + besides erf(x / root), weighed."""
    wide_x = x.astype(np.float64)
    error = np.array([math.erf(value / root) for value in wide_x])
    bell = 2 / math.sqrt(math.pi) / root * np.exp(-((wide_x / root) ** 2))
    weights = np.random.default_rng(7).standard_normal(x.shape).astype(np.float32)
    return weights * (half * (one + error + wide_x * bell) + besides * bell)


@pytest.mark.parametrize("order", ["sum last", "half last", "half first"])
@pytest.mark.parametrize("divided", [True, False])
def test_gelu_written_out(order: str, divided: bool) -> None:
    root = math.sqrt(2) if divided else math.sqrt(0.5)
    nodes = [
        helper.make_node("Div" if divided else "Mul", ["x", "root"], ["z"]),
        helper.make_node("Erf", ["z"], ["e"]),
        helper.make_node("Add", ["one", "e"], ["p"]),
        *{
            "sum last": [
                helper.make_node("Mul", ["half", "x"], ["h"]),
                helper.make_node("Mul", ["h", "p"], ["y"]),
            ],
            "half last": [
                helper.make_node("Mul", ["x", "p"], ["h"]),
                helper.make_node("Mul", ["h", "half"], ["y"]),
            ],
            "half first": [
                helper.make_node("Mul", ["p", "half"], ["h"]),
                helper.make_node("Mul", ["h", "x"], ["y"]),
            ],
        }[order],
    ]
    x = np.concatenate([np.linspace(-15, 15, 1201), [-1e4, 1e4, 0, -0.0]]).astype(np.float32)

    given = {"root": root, "one": 1.0, "half": 0.5}
    constants: Arrays = {name: np.array(value, np.float32) for name, value in given.items()}
    got = gradients(nodes, {"x": x}, ["x"], constants=constants)["x"]
    np.testing.assert_allclose(got, slope(x, math.sqrt(2), 1, 0.5), rtol=1e-4, atol=3e-6)
    used = operators(nodes, {"x": x}, ["x"], constants=constants)
    assert used.count("HardSigmoid") == 1
    assert used.count("Mul") + used.count("Div") <= 8


def test_what_is_nearly_a_gelu_stays() -> None:
    for one, half, read in ((2.0, 0.5, False), (1.0, 0.25, False), (1.0, 0.5, True)):
        constants: Arrays = {
            name: np.array(value, np.float32)
            for name, value in {"root": 1.5, "one": one, "half": half}.items()
        }
        nodes = [
            helper.make_node("Div", ["x", "root"], ["z"]),
            helper.make_node("Erf", ["z"], ["e"]),
            helper.make_node("Add", ["e", "one"], ["p"]),
            helper.make_node("Mul", ["x", "p"], ["h"]),
            helper.make_node("Mul", ["h", "half"], ["m"]),
            helper.make_node("Add", ["m", "p" if read else "half"], ["y"]),
        ]
        feeds: Arrays = {"x": np.linspace(-4, 4, 64, dtype=np.float32)}
        got = gradients(nodes, feeds, ["x"], constants=constants)["x"]
        exact = slope(feeds["x"], 1.5, one, half, besides=1 if read else 0)
        np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5)
        assert "HardSigmoid" not in operators(nodes, feeds, ["x"], constants=constants)


def test_the_shortened_gelu_gives_the_same_bits() -> None:
    feeds: Arrays = {"x": np.random.default_rng(1).standard_normal(4096).astype(np.float32) * 4}
    constants: Arrays = {
        name: np.array(value, np.float32)
        for name, value in {"root": math.sqrt(2), "one": 1.0, "half": 0.5}.items()
    }
    nodes = [
        helper.make_node("Div", ["x", "root"], ["z"]),
        helper.make_node("Erf", ["z"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["p"]),
        helper.make_node("Mul", ["x", "p"], ["h"]),
        helper.make_node("Mul", ["h", "half"], ["m"]),
        helper.make_node("Identity", ["m"], ["y"]),
    ]
    _, derivative = derive(model_of(nodes, feeds, constants=constants), feeds, ["x"])
    shortened = Session(with_outputs(derivative.model, ["m"]), optimization=Optimization.OFF)
    plain = Session(model_of(nodes, feeds, constants=constants), optimization=Optimization.OFF)
    np.testing.assert_array_equal(shortened.run(feeds)["m"], plain.run(feeds)["y"])
