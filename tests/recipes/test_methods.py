"""Methods inside a recipe: the float model computes the same, the quantized one is nearer."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper
from tests.surgery import nets

from foldmark.errors import InvalidRecipe, NoData
from foldmark.proof.quality import measure_quality
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import MethodName, Mode, Recipe
from foldmark.runtimes.batches import open_data
from foldmark.runtimes.onnxruntime import Session

WEIGHTS = Recipe(mode=Mode.WEIGHT_ONLY, weight_bits=4, block_size=16, symmetric=False)


def two_layers():
    """x is read by two products; each has a bias; three channels of x are very large."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h1"], "left"),
        helper.make_node("Add", ["h1", "b1"], ["a1"], "left_bias"),
        helper.make_node("Gemm", ["x", "w2", "b2"], ["a2"], "right", transB=1),
        helper.make_node("Mul", ["a1", "a2"], ["m"], "join"),
        helper.make_node("Tanh", ["m"], ["t"], "squash"),
        helper.make_node("MatMul", ["t", "w3"], ["y"], "last"),
    ]
    stored = {
        "w1": nets.random(48, 32, seed=1), "b1": nets.random(32, seed=2),
        "w2": nets.random(32, 48, seed=3), "b2": nets.random(32, seed=4),
        "w3": nets.random(32, 8, seed=5),
    }  # fmt: skip
    return nets.net(nodes, stored, ("n", 48))


def samples(seed=9):
    random = np.random.default_rng(seed)
    mixing = np.random.default_rng(1).standard_normal((48, 48)).astype(np.float32) / 7
    x = random.standard_normal((256, 48)).astype(np.float32) @ mixing + 0.3
    x[:, [3, 9]] *= 30
    return {"x": (x / 20).astype(np.float32)}


def distance(recipe):
    model = two_layers()
    made = quantize_model(model, recipe, samples())
    data = open_data(samples(seed=11), model)
    quality = measure_quality(Session(model), Session(made.model), data)
    return quality.outputs[0].relative, made


@pytest.mark.parametrize(
    ("recipe", "method", "gain"),
    [
        (Recipe(), MethodName.SMOOTHQUANT, 0.6),
        (Recipe(mode=Mode.DYNAMIC), MethodName.SMOOTHQUANT, 0.6),
        (WEIGHTS, MethodName.GPTQ, 0.9),
        (WEIGHTS, MethodName.AWQ, 0.9),
        (Recipe(mode=Mode.DYNAMIC), MethodName.GPTQ, 1.05),
        (Recipe(mode=Mode.DYNAMIC), MethodName.MSE_CLIPPING, 1.05),
        (Recipe(), MethodName.BIAS_CORRECTION, 1.05),
    ],
)
def test_a_method_brings_the_output_nearer(recipe, method, gain):
    plain, _ = distance(recipe)
    better, made = distance(replace(recipe, methods=(method,)))
    assert better < gain * plain
    assert any(line.startswith(method.value) for line in made.account.methods)


def test_methods_together():
    methods = (MethodName.SMOOTHQUANT, MethodName.GPTQ, MethodName.BIAS_CORRECTION)
    plain, _ = distance(Recipe())
    better, made = distance(Recipe(methods=methods))
    assert better < 0.6 * plain
    named = {line.split(":")[0] for line in made.account.methods}
    assert named == {method.value for method in methods}


def test_bias_correction_of_one_scale_per_tensor():
    """Three very coarse weights: most of the error is a shift of the mean, and it goes."""
    weight = nets.random(64, 6)
    weight[0, 0] = 40
    model = nets.gemm(False, weight, nets.random(6, seed=1))
    feeds = {"x": nets.random(400, 64, seed=2) + 2}
    shifts = []
    for methods in ((), (MethodName.BIAS_CORRECTION,)):
        recipe = Recipe(mode=Mode.DYNAMIC, per_channel=False, methods=methods)
        made = quantize_model(model, recipe, feeds)
        real, other = (Session(each).run(feeds)["y"] for each in (model, made.model))
        shifts.append(np.abs((other - real).mean(0)).max())
    assert shifts[1] < 0.3 * shifts[0]


def test_dead_inputs_are_named():
    feeds = samples()
    feeds["x"][:, 5] = 0
    recipe = replace(WEIGHTS, methods=(MethodName.GPTQ,))
    made = quantize_model(two_layers(), recipe, feeds)
    assert any("dead inputs: 5" in note for note in made.account.notes)


def test_channels_that_keep_their_factor_are_named():
    feeds = samples()
    feeds["x"][:, 5] = 0
    made = quantize_model(two_layers(), Recipe(methods=(MethodName.SMOOTHQUANT,)), feeds)
    assert any("1 channels of x keep factor 1" in note for note in made.account.notes)


def test_methods_need_data():
    with pytest.raises(NoData, match="gptq needs data"):
        quantize_model(two_layers(), replace(WEIGHTS, methods=(MethodName.GPTQ,)))


def test_a_method_in_the_wrong_mode():
    with pytest.raises(InvalidRecipe, match="awq has no place in static"):
        Recipe(methods=(MethodName.AWQ,))
