"""What float16 can't hold is found from the float32 run and kept in float32."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.surgery import nets

from foldmark.formats.onnx_tensor import tensor_array
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import Mode, Recipe
from foldmark.runtimes.onnxruntime import Session

HALF = Recipe(mode=Mode.FLOAT16)


def layer_norm(epsilon):
    """Mean, variance, root: written out, as exporters do."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], "mean", axes=[-1]),
        helper.make_node("Sub", ["x", "m"], ["d"], "centre"),
        helper.make_node("Mul", ["d", "d"], ["s"], "square"),
        helper.make_node("ReduceMean", ["s"], ["v"], "variance", axes=[-1]),
        helper.make_node("Add", ["v", "e"], ["ve"], "epsilon"),
        helper.make_node("Sqrt", ["ve"], ["r"], "root"),
        helper.make_node("Div", ["d", "r"], ["y"], "divide"),
    ]
    return nets.net(nodes, {"e": np.float32(epsilon)}, ("n", 8))


@pytest.mark.parametrize("epsilon", [1e-12, 1e-8, 6e-8, 1e-5])
def test_epsilons_too_small_are_kept(epsilon):
    model = layer_norm(epsilon)
    made = quantize_model(model, HALF, {"x": nets.random(4, 8)})
    assert any(note.startswith("epsilon (Add) stays in float32") for note in made.account.notes)
    zeros = Session(made.model).run({"x": np.zeros((1, 8), np.float32)})["y"]
    assert (zeros == 0).all()


def test_an_epsilon_that_fits_is_not_named():
    made = quantize_model(layer_norm(1e-3), HALF, {"x": nets.random(4, 8)})
    assert made.account.notes == []


def test_squares_that_overflow_are_seen_in_the_float32_run():
    """ONNX Runtime's CPU would hide it: it computes much of a float16 model in float32."""
    model = layer_norm(1e-3)
    made = quantize_model(model, HALF, {"x": np.array([[300, -300] * 4], np.float32)})
    kept = [note.split(" ")[0] for note in made.account.notes]
    assert "square" in kept
    assert any("reaches 9e+04" in note for note in made.account.notes)


@pytest.mark.parametrize("mask", [-3.4028235e38, -65505.0])
def test_a_mask_beyond_float16(mask):
    nodes = [
        helper.make_node("Where", ["c", "x", "mask"], ["k"], "hide"),
        helper.make_node("Softmax", ["k"], ["p"], "soft"),
        helper.make_node("MatMul", ["p", "w"], ["y"], "product"),
    ]
    stored = {"mask": np.float32(mask), "c": np.zeros((1, 8), bool), "w": nets.random(8, 4)}
    model = nets.net(nodes, stored, ("n", 8))
    made = quantize_model(model, HALF, {"x": nets.random(2, 8)})
    assert np.isfinite(Session(made.model).run({"x": nets.random(2, 8)})["y"]).all()
    assert any("hide (Where)" in note for note in made.account.notes)


@pytest.mark.parametrize(
    ("mask", "stays"), [(-3.4028235e38, True), (-65504.0, True), (-1e4, False)]
)
def test_a_mask_that_leaves_float16_when_it_is_added(mask, stays):
    """-65504 itself fits; with a score of -36 it would be -infinity, and a row of it NaN."""
    nodes = [
        helper.make_node("Neg", ["x"], ["scores"], "scores"),
        helper.make_node("Add", ["scores", "mask"], ["k"], "hide"),
        helper.make_node("Softmax", ["k"], ["p"], "soft"),
        helper.make_node("MatMul", ["p", "w"], ["y"], "product"),
    ]
    stored = {"mask": np.full((1, 4), mask, np.float32), "w": nets.random(4, 4)}
    model, feeds = nets.net(nodes, stored, ("n", 4)), {"x": np.array([[16, 25, 17, 36]], "f")}
    made = quantize_model(model, HALF, feeds)
    assert any("hide (Add) stays" in note for note in made.account.notes) == stays
    real, half = (Session(each).run(feeds)["y"] for each in (model, made.model))
    assert np.abs(half - real).max() < 0.002


def test_without_data_that_is_said():
    made = quantize_model(layer_norm(1e-3), HALF)
    assert made.account.notes == ["no data: only constants and epsilons were checked, not values"]


def two_products(scale):
    """Two products of 80 x 80, the second weight `scale` times as large at one place."""
    second = nets.random(80, 80, seed=1)
    second[0, 0], second[1, 1] = scale, 1e-9
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "b"], ["y"], "second"),
    ]
    return nets.net(nodes, {"a": nets.random(80, 80), "b": second}, ("n", 80))


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_large_weights_become_what_the_converter_makes_of_small_ones(monkeypatch, scale):
    model = two_products(scale)
    made = quantize_model(model, HALF).model
    monkeypatch.setattr("foldmark.graphs.apart._SMALL_ELEMENTS", 1 << 30)
    inline = quantize_model(model, HALF).model
    stored = [{t.name: (t.data_type, tensor_array(t).tobytes()) for t in m.graph.initializer}
              for m in (made, inline)]  # fmt: skip
    assert sorted(stored[0].values()) == sorted(stored[1].values())
    x = {"x": nets.random(4, 80, seed=2)}
    assert np.array_equal(Session(made).run(x)["y"], Session(inline).run(x)["y"])
    kinds = {kind for kind, _ in stored[0].values()}
    assert (TensorProto.FLOAT in kinds) == (scale > 65504)
