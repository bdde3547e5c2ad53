"""Places where a careless gradient is NaN: zero slopes times infinity, masks of minus infinity."""

import numpy as np
import pytest
from onnx import helper
from tests.derivative.checking import derive, model_of

from foldmark.graphs.derivative.facts import shapes_follow_data
from foldmark.runtimes.onnxruntime import Session

Feeds = dict[str, np.ndarray]


def gradients(nodes: list, feeds: Feeds, constants: Feeds | None = None) -> np.ndarray:
    model = model_of(nodes, feeds, constants=constants)
    _, derivative = derive(model, feeds, ["x"])
    return Session(derivative.model).run(feeds)[derivative.gradients["x"]]


@pytest.mark.parametrize(
    ("operator", "constants"),
    [
        ("Sqrt", {}),
        ("Pow", {"p": np.float32(0.5)}),
        ("Pow", {"p": np.float32(2)}),
        ("Pow", {"p": np.full(4, 0.5, np.float32)}),
        ("ReduceL2", {}),
        ("LpNormalization", {}),
    ],
)
def test_at_zero(operator: str, constants: Feeds) -> None:
    feeds = {"x": np.zeros((3, 4), np.float32)}
    feeds["x"][1] = [1, 4, 9, 2]
    if operator in ("ReduceL2", "LpNormalization"):
        nodes = [helper.make_node(operator, ["x"], ["y"], **_ALONG[operator])]
    else:
        nodes = [helper.make_node(operator, ["x", *constants], ["y"])]
    got = gradients(nodes, feeds, constants)
    assert np.isfinite(got).all()
    assert np.all(got[[0, 2]] == 0)
    assert np.any(got[1] != 0)


_ALONG = {"ReduceL2": {"keepdims": 0}, "LpNormalization": {"axis": 1}}


@pytest.mark.parametrize("mask", [-np.inf, -1e30, np.finfo(np.float32).min])
def test_masked_scores(mask: float) -> None:
    feeds = {"x": np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)}
    masked = np.zeros((3, 4), np.float32)
    masked[:, 2:] = mask
    nodes = [
        helper.make_node("Add", ["x", "m"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"]),
    ]
    got = gradients(nodes, feeds, {"m": masked})
    assert np.isfinite(got).all()
    assert np.all(got[:, 2:] == 0)
    assert np.all(got[:, :2] != 0)


def test_a_branch_that_is_not_taken_gives_no_nan() -> None:
    feeds = {"x": np.array([[-1.0, 2.0, 0.0, 4.0]], np.float32)}
    nodes = [
        helper.make_node("Greater", ["x", "half"], ["c"]),
        helper.make_node("Where", ["c", "x", "one"], ["safe"]),
        helper.make_node("Log", ["safe"], ["l"]),
        helper.make_node("Where", ["c", "l", "x"], ["y"]),
    ]
    got = gradients(nodes, feeds, {"half": np.float32(0.5), "one": np.float32(1)})
    assert np.isfinite(got).all()
    assert np.all(got != 0)


def test_shapes_that_follow_the_data_are_recognised() -> None:
    feeds = {"x": np.ones((2, 3), np.float32), "n": np.array([2, 3])}
    by_value = model_of([helper.make_node("Reshape", ["x", "n"], ["y"])], feeds)
    assert shapes_follow_data(by_value)
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Reshape", ["x", "s"], ["y"]),
    ]
    assert not shapes_follow_data(model_of(nodes, {"x": feeds["x"]}))
    assert shapes_follow_data(model_of([helper.make_node("NonZero", ["x"], ["y"])], feeds))
