"""Batch normalizations go into the weights before them, whatever product that is."""

import numpy as np
import pytest
from onnx import helper
from tests.surgery import nets

from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import Mode, Recipe
from foldmark.runtimes.onnxruntime import Session
from foldmark.surgery.account import Account
from foldmark.surgery.editor import Editor
from foldmark.surgery.prepare import fold_batch_norms


def normalized(model, channels):
    """The model with a batch normalization of large and small factors behind it."""
    parts = {n: np.abs(nets.random(channels, seed=i)) + 0.1 for i, n in enumerate("gsmv")}
    parts["g"] *= np.geomspace(0.1, 10, channels)
    parts["s"] -= 0.5
    first = model.graph.node[0]
    first.output[0] = "c"
    norm = helper.make_node("BatchNormalization", ["c", *parts], ["y"], "norm", epsilon=1e-3)
    stored = {t.name: nets.numpy_helper.to_array(t) for t in model.graph.initializer} | parts
    stored = {name: array.astype(np.float32) for name, array in stored.items()}
    shape = [d.dim_value or "n" for d in model.graph.input[0].type.tensor_type.shape.dim]
    return nets.net([first, norm], stored, shape, len(shape))


MODELS = {
    "conv": (nets.conv(), 4),
    "conv with bias": (nets.conv(bias=nets.random(4)), 4),
    "depthwise": (nets.conv(weight=nets.random(6, 1, 3, 3), group=6), 6),
    "transposed": (nets.conv_transpose(3, 8, 1), 8),
    "transposed, grouped": (nets.conv_transpose(4, 8, 2), 8),
    "gemm": (nets.gemm(False, nets.random(8, 6), nets.random(6, seed=1)), 6),
    "gemm, transposed": (nets.gemm(True, nets.random(8, 6), nets.random(6, seed=1)), 6),
    "gemm, bias of rank two": (nets.gemm(True, nets.random(8, 6), nets.random(1, 6, seed=1)), 6),
    "gemm without bias": (nets.gemm(False, nets.random(8, 6)), 6),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_the_folded_model_computes_the_same(name):
    model, channels = MODELS[name]
    if name == "depthwise":
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 6
    model = normalized(model, channels)
    editor, account = Editor(model), Account()
    fold_batch_norms(editor, account)
    made = editor.finish()
    assert [node.op_type for node in made.graph.node] == [model.graph.node[0].op_type]
    feeds = nets.samples(model)
    real, other = (Session(each).run(feeds)["y"] for each in (model, made))
    assert np.abs(other - real).max() < 1e-5 * np.abs(real).max()
    assert account.notes == ["1 batch normalizations folded into the product before them"]


@pytest.mark.parametrize("mode", [Mode.STATIC, Mode.DYNAMIC])
def test_a_folded_gemm_is_quantized(mode):
    model = normalized(nets.gemm(False, nets.random(8, 6), nets.random(6, seed=1)), 6)
    feeds = nets.samples(model)
    made = quantize_model(model, Recipe(mode=mode), feeds)
    assert "BatchNormalization" not in {node.op_type for node in made.model.graph.node}
    real, other = (Session(each).run(feeds)["y"] for each in (model, made.model))
    assert np.linalg.norm(other - real) < 0.02 * np.linalg.norm(real)


def test_a_scaled_gemm_keeps_its_norm():
    model = normalized(nets.gemm(False, nets.random(8, 6), nets.random(6, seed=1), alpha=0.5), 6)
    editor, account = Editor(model), Account()
    fold_batch_norms(editor, account)
    assert account.notes == []
