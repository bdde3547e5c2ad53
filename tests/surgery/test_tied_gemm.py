"""A Gemm that reads the embedding as its weight: stored once, whichever comes first."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.surgery import nets

from foldmark.proof.kernels import kernels_of
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import MethodName, Mode, Recipe
from foldmark.runtimes.onnxruntime import Session
from foldmark.runtimes.profile import execute

WORDS, WIDTH = 900, 32


def tied():
    """Tokens -> embeddings -> a layer -> scores of every word by the same table."""
    nodes = [
        helper.make_node("Cast", ["x"], ["ids"], "ids", to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "ids"], ["e"], "embed"),
        helper.make_node("MatMul", ["e", "w"], ["h"], "layer"),
        helper.make_node("Tanh", ["h"], ["t"], "tanh"),
    ]
    nodes.append(helper.make_node("Gemm", ["t", "table"], ["y"], "scores", transB=1))
    table = nets.random(WORDS, WIDTH) * np.geomspace(0.1, 1, WORDS)[:, None]
    stored = {"table": table.astype(np.float32), "w": nets.random(WIDTH, WIDTH, seed=1)}
    made = nets.net(nodes, stored, ("n",), 2)
    onnx.checker.check_model(made)
    return made


def tokens(seed=0, count=64):
    return {"x": np.random.default_rng(seed).integers(0, WORDS, count).astype(np.float32)}


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(mode=Mode.DYNAMIC),
        Recipe(methods=(MethodName.GPTQ,)),
        Recipe(mode=Mode.DYNAMIC, methods=(MethodName.OUTLIER_SPLIT,)),
        Recipe(mode=Mode.WEIGHT_ONLY),
    ],
    ids=lambda recipe: "-".join([recipe.mode.value, *(m.value for m in recipe.methods)]),
)
def test_the_table_is_stored_once(recipe):
    model = tied()
    made = quantize_model(model, recipe, tokens())
    large = [t for t in made.model.graph.initializer if np.prod(t.dims) * 2 >= WORDS * WIDTH]
    assert all(t.data_type != TensorProto.FLOAT for t in large)
    # Blocks have a layout of their own, so there the rows are a second copy.
    assert len(large) == (2 if recipe.mode is Mode.WEIGHT_ONLY else 1)
    assert [each.node for each in made.account.done if each.node == "scores"] == ["scores"]
    real, other = (Session(each).run(tokens(1))["y"] for each in (model, made.model))
    assert np.linalg.norm(other - real) < 0.04 * np.linalg.norm(real)
    onnx.checker.check_model(made.model)


@pytest.mark.parametrize("mode", [Mode.STATIC, Mode.DYNAMIC])
def test_the_product_runs_on_integers(mode):
    made = quantize_model(tied(), Recipe(mode=mode), tokens()).model
    assert kernels_of(made, execute(made, tokens(1), runs=1)).integer_share == 1


def test_smoothing_unties():
    """A factor that only the product needs: its weight is another one then."""
    model = tied()
    seen = tokens(count=4000)  # every word: smoothing leaves little room beyond what was seen
    made = quantize_model(model, Recipe(methods=(MethodName.SMOOTHQUANT,)), seen).model
    real, other = (Session(each).run(tokens(1))["y"] for each in (model, made))
    assert np.linalg.norm(other - real) < 0.04 * np.linalg.norm(real)
