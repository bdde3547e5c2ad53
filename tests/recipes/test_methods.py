"""Methods inside a recipe: the float model computes the same, the quantized one is nearer."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.exact_sums import SEVEN_BITS
from tests.models.digits import images, residual_network
from tests.surgery import nets

from foldmark.errors import InvalidRecipe, NoData
from foldmark.methods.adaround import adaround, output_error
from foldmark.proof.quality import measure_quality
from foldmark.recipes.evidence import observe_layers
from foldmark.recipes.moving import chosen_products
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import MethodName, Mode, Override, Recipe, Rounding
from foldmark.runtimes.batches import open_data
from foldmark.runtimes.onnxruntime import Session
from foldmark.surgery.activations import ActivationCodes
from foldmark.surgery.choice import Choice, Selection
from foldmark.surgery.editor import Editor

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
        (WEIGHTS, MethodName.ADAROUND, 0.97),
        (Recipe(), MethodName.ADAROUND, 1.05),
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


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_adaround_on_trained_layers(bits):
    """The paper's claim on every layer of a trained network, convolutions by their patches."""
    model = onnx.load(residual_network())
    products = chosen_products(Editor(model), Selection(Choice(("Conv", "Gemm"))))
    seen = observe_layers(model, products, open_data({"image": images()[0][:200]}, model), 50)
    assert len(products) == 7
    for each in products:
        values = each.values()
        W, H = values.reshape(1, len(values), -1), seen.moment(each)
        top = (1 << (bits - 1)) - 1
        scale = np.abs(W).max(2, keepdims=True) / top
        found = adaround(W, H, scale, (-top - 1, top))
        assert found.error < (0.8 if W.shape[2] > 20 else 1) * found.nearest_error


@pytest.mark.parametrize("method", [MethodName.ADAROUND, MethodName.GPTQ])
def test_rounding_of_convolutions(method):
    """Grouped, depthwise and plain convolutions by their patches; each output comes nearer."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b"], ["c1"], "plain", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c1", "w2"], ["c2"], "depthwise", group=16, strides=[2, 2]),
        helper.make_node("Conv", ["c2", "w3"], ["y"], "grouped", group=4),
    ]
    stored = {
        "w1": nets.random(16, 8, 3, 3, seed=1), "b": nets.random(16, seed=4),
        "w2": nets.random(16, 1, 3, 3, seed=2), "w3": nets.random(8, 4, 3, 3, seed=3),
    }  # fmt: skip
    model = nets.net(nodes, stored, ("n", 8, 14, 14), 4)
    smooth = nets.random(20, 8, 1, 1) + 0.2 * nets.random(20, 8, 14, 14, seed=1)
    seen = observe_layers(
        model,
        chosen_products(Editor(model), Selection(Choice(("Conv",)))),
        open_data({"x": smooth}, model),
        4,
    )
    assert {name: H.shape for name, H in seen.windows.items()} == {
        "plain": (1, 72, 72), "depthwise": (16, 9, 9), "grouped": (4, 36, 36)
    }  # fmt: skip
    made = quantize_model(model, Recipe(methods=(method,)), {"x": smooth})
    assert len(made.account.done) == 3
    for name, kept in (("w1", "plain"), ("w2", "depthwise"), ("w3", "grouped")):
        W, H = stored[name], seen.windows[kept]
        scale = nets.stored(made.model, f"{name}_scale").reshape(-1, 1, 1, 1)
        codes = nets.stored(made.model, f"{name}_quantized")
        errors = [
            output_error(gap.reshape(*H.shape[:1], -1, H.shape[1]), H).sum()
            for gap in (codes * scale - W, np.rint(W / scale) * scale - W)
        ]
        assert errors[0] < 0.9 * errors[1]


@pytest.mark.parametrize("method", [MethodName.MSE_CLIPPING, MethodName.GPTQ, MethodName.ADAROUND])
def test_no_method_leaves_seven_bits(method):
    """Wider codes would be better ones, and saturate where pairs are added in 16 bits."""
    weight = nets.random(64, 16)
    weight[0] *= 4  # what clipping gives away
    model = nets.matmul(weight)
    recipe = Recipe(rule=SEVEN_BITS, methods=(method,))
    made = quantize_model(model, recipe, nets.samples(model)).model
    codes = nets.stored(made, "w_quantized").astype(int)
    assert np.abs(codes).max() == 64
    plain = quantize_model(model, replace(recipe, methods=()), nets.samples(model)).model
    assert not np.array_equal(codes, nets.stored(plain, "w_quantized"))


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


@pytest.mark.parametrize("group", [1, 2, 6])
def test_bias_correction_of_grouped_convolutions(group):
    """Inputs far from zero, coarse weights: the mean of every output channel comes back."""
    weight = nets.random(6, 6 // group, 3, 3)
    weight[:, 0, 0, 0] = 60 * np.sign(weight[:, 0, 0, 0])
    model = nets.conv(weight=weight, bias=nets.random(6, seed=1), group=group)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 6
    feeds = {"x": nets.random(64, 6, 8, 8, seed=2) + np.arange(1, 7)[:, None, None]}
    feeds["x"] = feeds["x"].astype(np.float32)
    shifts = []
    for methods in ((), (MethodName.BIAS_CORRECTION,)):
        recipe = Recipe(activations=ActivationCodes.UINT16, methods=methods)
        made = quantize_model(model, recipe, feeds)
        real, other = (Session(each).run(feeds)["y"] for each in (model, made.model))
        shifts.append(np.abs((other - real).mean((0, 2, 3))).max())
    assert shifts[1] < 0.2 * shifts[0]


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


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(mode=Mode.DYNAMIC), WEIGHTS])
def test_rules_say_how_single_weights_are_rounded(recipe):
    """Codes of each weight are those of the method that its rule names."""
    rules = (Override("left", rounding=Rounding.GPTQ), Override("last", rounding=Rounding.ADAROUND))
    ending = "blocks" if recipe.mode is Mode.WEIGHT_ONLY else "quantized"
    codes = {}
    for name, changes in {
        "mixed": {"overrides": rules},
        "nearest": {},
        "gptq": {"methods": (MethodName.GPTQ,)},
        "adaround": {"methods": (MethodName.ADAROUND,)},
    }.items():
        made = quantize_model(two_layers(), replace(recipe, **changes), samples())
        codes[name] = {w: nets.stored(made.model, f"{w}_{ending}") for w in ("w1", "w2", "w3")}
    for weight, method in (("w1", "gptq"), ("w2", "nearest"), ("w3", "adaround")):
        assert np.array_equal(codes["mixed"][weight], codes[method][weight])
        assert method == "nearest" or not np.array_equal(
            codes[method][weight], codes["nearest"][weight]
        )


def test_two_methods_for_the_codes():
    with pytest.raises(InvalidRecipe, match="gptq and adaround both choose the codes"):
        Recipe(methods=(MethodName.GPTQ, MethodName.ADAROUND))


def test_a_method_in_the_wrong_mode():
    with pytest.raises(InvalidRecipe, match="awq has no place in static"):
        Recipe(methods=(MethodName.AWQ,))
