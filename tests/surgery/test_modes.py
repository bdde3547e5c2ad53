"""Every mode against the float model, and its codes against ONNX Runtime's own quantizers."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.exact_sums import SEVEN_BITS
from tests.models.branches import branches, samples
from tests.models.digits import held_out, images, residual_network
from tests.surgery import nets

from foldmark.calibrate.observers import Method, Observer
from foldmark.errors import InvalidRecipe
from foldmark.proof.kernels import kernels_of
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import Form, Mode, Override, Recipe, TensorCodes
from foldmark.runtimes.onnxruntime import Session
from foldmark.runtimes.profile import execute
from foldmark.surgery.activations import ActivationCodes

STATIC, DYNAMIC = Recipe(), Recipe(mode=Mode.DYNAMIC)


def error(made, model, feeds):
    real, other = (Session(each).run(feeds)["y"] for each in (model, made))
    return np.abs(other - real).max() / np.abs(real).max()


@pytest.mark.parametrize(
    "recipe",
    [
        STATIC,
        DYNAMIC,
        Recipe(mode=Mode.WEIGHT_ONLY, block_size=16),
        Recipe(mode=Mode.WEIGHT_ONLY, weight_bits=4, block_size=16, symmetric=False),
        Recipe(activations=ActivationCodes.INT8),
        Recipe(activations=ActivationCodes.UINT16),
        Recipe(activations=ActivationCodes.INT16),
        Recipe(mode=Mode.FLOAT16),
    ],
    ids=lambda r: f"{r.mode.value}-{r.weight_bits}-{r.activations.value}",
)
def test_a_matrix_product_in_every_mode(recipe):
    model = nets.matmul(nets.random(64, 32))
    feeds = nets.samples(model)
    made = quantize_model(model, recipe, feeds)
    assert len(made.account.done) == 1
    assert error(made.model, model, feeds) < (0.12 if recipe.weight_bits == 4 else 0.02)
    if recipe.mode is not Mode.FLOAT16:
        onnx.checker.check_model(made.model)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("mode", [Mode.STATIC, Mode.DYNAMIC])
def test_codes_are_onnx_runtimes(mode, per_channel, tmp_path):
    """Codes, scales and zero points bit for bit, for products and convolutions."""
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static
    from tests.models.copies import Samples

    model = nets.matmul(nets.random(64, 32)) if mode is Mode.DYNAMIC else nets.conv()
    feeds = nets.samples(model)
    onnx.save(model, tmp_path / "m.onnx")
    if mode is Mode.DYNAMIC:
        quantize_dynamic(
            tmp_path / "m.onnx", tmp_path / "q.onnx", per_channel=per_channel,
            weight_type=QuantType.QInt8,
        )  # fmt: skip
    else:
        quantize_static(
            tmp_path / "m.onnx", tmp_path / "q.onnx", Samples(feeds), per_channel=per_channel,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
    theirs = onnx.load(tmp_path / "q.onnx")
    mine = quantize_model(model, Recipe(mode=mode, per_channel=per_channel), feeds).model
    for ending in ("w_quantized", "w_scale"):
        assert np.array_equal(nets.stored(mine, ending), nets.stored(theirs, ending))
    if mode is Mode.STATIC:
        for tensor in ("x", "y"):
            for part in ("scale", "zero_point"):
                ours = [t for t in mine.graph.initializer if t.name == f"{tensor}_{part}"]
                value, want = (
                    numpy_helper.to_array(ours[0]),
                    nets.stored(theirs, f"{tensor}_{part}"),
                )
                # ONNX Runtime calibrates an unoptimized graph: its y differs in the last bit.
                assert value == pytest.approx(want, rel=0 if tensor == "x" else 1e-6)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("inner", [64, 100])
def test_blocks_are_onnx_runtimes(bits, symmetric, inner):
    """Packed codes, scales and zero points, with blocks that divide and that do not."""
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        MatMulNBitsQuantizer,
    )

    model = nets.matmul(nets.random(inner, 48))
    config = DefaultWeightOnlyQuantConfig(
        block_size=32, is_symmetric=symmetric, bits=bits, accuracy_level=4
    )
    quantizer = MatMulNBitsQuantizer(nets.matmul(nets.random(inner, 48)), algo_config=config)
    quantizer.process()
    theirs = {t.name: numpy_helper.to_array(t) for t in quantizer.model.model.graph.initializer}
    recipe = Recipe(mode=Mode.WEIGHT_ONLY, weight_bits=bits, symmetric=symmetric)
    mine = quantize_model(model, recipe)
    by_shape = sorted(array.tobytes() for array in theirs.values())
    ours = sorted(numpy_helper.to_array(t).tobytes() for t in mine.model.graph.initializer)
    assert ours == by_shape
    assert any("padded" in note for note in mine.account.notes) == (inner == 100)


@pytest.mark.parametrize("mode", [Mode.STATIC, Mode.DYNAMIC])
@pytest.mark.parametrize("transposed", [False, True])
def test_channels_of_a_gemm_either_way_round(mode, transposed):
    """One scale per output, whatever axis that is: no column is lost."""
    model = nets.gemm(transposed, bias=nets.random(6, seed=3) * 1e-4)
    feeds = nets.samples(model)
    made = quantize_model(model, Recipe(mode=mode), feeds).model
    assert nets.stored(made, "w_scale").shape == (6,)
    real, other = (Session(each).run(feeds)["y"] for each in (model, made))
    columns = np.abs(other - real).max(0) / np.abs(real).max(0)
    assert columns.max() < 0.03


def test_one_scale_per_tensor_loses_the_small_columns():
    model = nets.gemm(False)
    feeds = nets.samples(model)
    made = quantize_model(model, Recipe(per_channel=False), feeds).model
    real, other = (Session(each).run(feeds)["y"] for each in (model, made))
    columns = np.linalg.norm(other - real, axis=0) / np.linalg.norm(real, axis=0)
    assert columns[0] < 0.02
    assert columns[-1] > 0.9


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 1.0), (1.0, 0.5), (0.5, 0.0)])
@pytest.mark.parametrize("mode", [Mode.STATIC, Mode.DYNAMIC])
def test_alpha_and_beta(mode, alpha, beta):
    model = nets.gemm(True, nets.random(16, 8), nets.random(8, seed=2), alpha=alpha, beta=beta)
    feeds = nets.samples(model)
    made = quantize_model(model, Recipe(mode=mode), feeds).model
    assert error(made, model, feeds) < 0.02


@pytest.mark.parametrize(
    ("inside", "outside", "group", "scales", "words"),
    [(3, 8, 1, 8, ""), (4, 8, 2, 1, "not expressible"), (4, 4, 4, 1, "one scale")],
)
def test_transposed_convolution(inside, outside, group, scales, words):
    model = nets.conv_transpose(inside, outside, group)
    feeds = nets.samples(model)
    made = quantize_model(model, STATIC, feeds)
    assert nets.stored(made.model, "w_scale").size == scales
    assert words in " ".join(made.account.notes)
    assert error(made.model, model, feeds) < 0.03


def test_grouped_and_depthwise_convolution():
    for group, shape in ((2, (6, 2, 3, 3)), (4, (4, 1, 3, 3))):
        model = nets.conv(weight=nets.random(*shape), group=group)
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = shape[1] * group
        feeds = nets.samples(model)
        made = quantize_model(model, STATIC, feeds).model
        assert nets.stored(made, "w_scale").size == shape[0]
        assert error(made, model, feeds) < 0.03


def test_a_bias_that_would_overflow_int32():
    """Weights near 1e-7 beside an ordinary bias: the weight's scale gives way, not the bias."""
    weight = (nets.random(2, 2, 1, 1) * 1e-7).astype(np.float32)
    model = nets.conv(weight=weight, bias=np.array([5, -4.5], np.float32))
    feeds = {"x": np.linspace(-63.5, 63.5, 2 * 36, dtype=np.float32).reshape(1, 2, 6, 6)}
    made = quantize_model(model, STATIC, feeds)
    assert np.abs(nets.stored(made.model, "b_quantized").astype(np.int64)).max() < 2**31 - 1
    assert any("overflow int32" in note for note in made.account.notes)
    real, other = (Session(each).run(feeds)["y"] for each in (model, made.model))
    assert np.abs(other - real).max() <= 0.03


def test_a_bias_of_shape_one_by_n():
    model = nets.gemm(False, nets.random(4, 3), nets.random(1, 3, seed=4))
    feeds = nets.samples(model)
    made = quantize_model(model, STATIC, feeds).model
    assert error(made, model, feeds) < 0.02


def test_a_channel_of_zeros():
    weight = nets.random(4, 3, 3, 3)
    weight[1] = 0
    model = nets.conv(weight=weight)
    made = quantize_model(model, STATIC, nets.samples(model)).model
    scale = nets.stored(made, "w_scale")
    assert np.isfinite(scale).all()
    assert (scale > 0).all()
    assert (Session(made).run(nets.samples(model))["y"][:, 1] == 0).all()


def test_an_old_opset_is_raised_though_weights_stay_in_their_file(tmp_path):
    model = nets.conv(11, weight=nets.random(64, 64, 5, 5))
    data = nets.samples(model)
    onnx.save(model, tmp_path / "m.onnx")
    made, whole = (
        quantize_model(tmp_path / "m.onnx", STATIC, data),
        quantize_model(model, STATIC, data),
    )
    assert any("opset raised" in note for note in made.account.notes)
    assert (
        Session(made.model).run(data)["y"].tobytes()
        == Session(whole.model).run(data)["y"].tobytes()
    )


@pytest.mark.parametrize("opset", [10, 11, 12, 13])
def test_an_old_opset_is_raised_when_needed(opset):
    model = nets.conv(opset)
    made = quantize_model(model, STATIC, nets.samples(model))
    onnx.checker.check_model(made.model)
    assert error(made.model, model, nets.samples(model)) < 0.03
    assert any("opset raised" in note for note in made.account.notes) == (opset < 13)


@pytest.mark.parametrize("codes", list(ActivationCodes))
def test_a_softmax_has_its_known_range(codes):
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"], "soft"),
        helper.make_node("MatMul", ["p", "w"], ["y"], "product"),
    ]
    model = nets.net(nodes, {"w": nets.random(4, 3)}, ("n", 4))
    feeds = {"x": np.array([[8, 0, -8, 4]], np.float32)}
    made = quantize_model(model, Recipe(activations=codes), feeds).model
    steps = {"uint8": 255, "int8": 255, "uint16": 65535, "int16": 32767}[codes.value]
    assert nets.stored(made, "p_scale") == np.float32(1 / steps)
    assert nets.stored(made, "p_zero_point") == {"int8": -128}.get(codes.value, 0)


def kept(model, name):
    (found,) = [each for each in model.graph.initializer if each.name == name]
    return numpy_helper.to_array(found)


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("biased", [True, False])
def test_what_is_left_in_float_between_pairs_runs_in_float(operator, biased, form):
    """ONNX Runtime would give it 8-bit weights with one scale: channels of 1e-3 would be gone."""
    stored = {"w": nets.random(8, 3, 3, 3), "v": nets.random(8, 8, 3, 3, seed=1),
              "u": nets.random(4, 8, 1, 1, seed=2)}  # fmt: skip
    sizes = np.geomspace(1, 1e-3, 8).astype(np.float32)
    stored["v"] *= sizes.reshape((8, 1, 1, 1) if operator == "Conv" else (1, 8, 1, 1))
    inputs = ["r", "v"]
    if biased:
        stored["b"] = nets.random(8, seed=3) * sizes
        inputs.append("b")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "first"),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node(operator, inputs, ["d"], "middle"),
        helper.make_node("Relu", ["d"], ["e"], "after"),
        helper.make_node("Conv", ["e", "u"], ["y"], "last"),
    ]
    model = nets.net(nodes, stored, ("n", 3, 9, 9), 4)
    feeds = nets.samples(model)
    recipe = Recipe(form=form, overrides=(Override("^middle$", keep_float=True),))
    made = quantize_model(model, recipe, feeds).model
    onnx.checker.check_model(made)
    graph = execute(made, feeds).graph
    kinds = [node.op_type for node in graph.graph.node]
    assert kinds.count("QLinearConv") == 2
    assert {"Conv", "FusedConv", "ConvTranspose"} & set(kinds)
    # What is multiplied in float is the weight as it was.
    whole = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    assert any(np.array_equal(array, stored["v"]) for array in whole.values())
    if biased:
        step, codes = whole["b_step"], whole["b_codes"]
        assert np.abs(codes * np.float64(step) - stored["b"]).max() <= step
        assert step <= np.abs(stored["b"]).max() * 2.0**-30


@pytest.mark.parametrize("wide", [ActivationCodes.UINT16, ActivationCodes.INT16])
@pytest.mark.parametrize("form", list(Form))
def test_one_activation_with_codes_of_its_own(wide, form):
    """It alone has 16 bits, over its whole range whatever the observer; the opset is raised."""
    model = nets.joined()
    feeds = nets.samples(model)
    observer = Observer(Method.PERCENTILE, percentile=90.0)
    recipe = Recipe(form=form, observer=observer, codes=(TensorCodes("t", wide),))
    made = quantize_model(model, recipe, feeds)
    onnx.checker.check_model(made.model)
    opset = next(each.version for each in made.model.opset_import if each.domain == "")
    assert opset == 21
    zeros = {name: kept(made.model, f"{name}_zero_point").dtype.name for name in ("a", "b", "t")}
    assert zeros == {"a": "uint8", "b": "uint8", "t": wide.value}
    shown = onnx.ModelProto.FromString(model.SerializeToString())
    shown.graph.output.append(helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, None))
    seen = Session(shown).run(feeds)["t"]
    ends = (0.0, np.abs(seen).max()) if wide.signed else (seen.min(), seen.max())
    steps = 32767 if wide.signed else 65535
    assert kept(made.model, "t_scale") == pytest.approx((ends[1] - ends[0]) / steps, 1e-6)
    named = [note for note in made.account.notes if f"no integer kernel for {wide.value}" in note]
    assert [note.partition(":")[0] for note in named] == [f"{n}/conv" for n in nets.BRANCHES]
    # Where observers see it all, the joined tensor's coarse codes were the whole error.
    whole, usual = (
        quantize_model(model, Recipe(codes=codes), feeds).model
        for codes in ((TensorCodes("t", wide),), ())
    )
    assert error(whole, model, feeds) < 0.1 * error(usual, model, feeds)


def test_a_tensor_without_codes_of_its_own_can_be_given_none():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("MaxPool", ["c"], ["p"], "pool", kernel_shape=[2, 2]),
        helper.make_node("Conv", ["p", "v"], ["y"], "next"),
    ]
    stored = {"w": nets.random(4, 3, 3, 3), "v": nets.random(4, 4, 1, 1, seed=1)}
    model = nets.net(nodes, stored, ("n", 3, 8, 8), 4)
    for tensor, words in (("p", "'c', whose codes it has"), ("w", "one of c, x, y, ...")):
        recipe = Recipe(codes=(TensorCodes(tensor, ActivationCodes.UINT16),))
        with pytest.raises(InvalidRecipe, match=words):
            quantize_model(model, recipe, nets.samples(model))
    # What only hands codes on has those of what it reads.
    recipe = Recipe(codes=(TensorCodes("c", ActivationCodes.UINT16),))
    made = quantize_model(model, recipe, nets.samples(model)).model
    for name in "cp":
        assert kept(made, f"{name}_zero_point").dtype == np.uint16
        assert kept(made, f"{name}_scale") == kept(made, "c_scale")


@pytest.mark.sessions_as_they_are
def test_shared_weights_are_stored_once():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "w"], ["y"], "second"),
    ]
    model = nets.net(nodes, {"w": nets.random(16, 16)}, ("n", 16))
    integer = [Recipe(mode=mode, rule=SEVEN_BITS) for mode in (Mode.STATIC, Mode.DYNAMIC)]
    for recipe in (*integer, Recipe(mode=Mode.WEIGHT_ONLY, block_size=16)):
        made = quantize_model(model, recipe, nets.samples(model)).model
        sizes = [t.dims for t in made.graph.initializer if np.prod(t.dims) >= 256]
        assert len(sizes) == 1
        assert error(made, model, nets.samples(model)) < 0.05


def test_tables_are_stored_as_rows_of_codes():
    table = (nets.random(600, 40) * np.geomspace(1e-3, 1, 600)[:, None]).astype(np.float32)
    nodes = [
        helper.make_node("ArgMax", ["x"], ["i"], "best", axis=1, keepdims=0),
        helper.make_node("Gather", ["table", "i"], ["h"], "rows"),
        helper.make_node("MatMul", ["h", "w"], ["y"], "product"),
    ]
    model = nets.net(nodes, {"table": table, "w": nets.random(40, 8)}, ("n", 600))
    feeds = nets.samples(model)
    made = quantize_model(model, DYNAMIC)
    assert [each.operator for each in made.account.done] == ["Gather", "MatMul"]
    for row in feeds["x"]:
        assert error(made.model, model, {"x": row[None]}) < 0.05
    assert made.model.ByteSize() < model.ByteSize() / 3


def test_branches():
    """Dynamic reaches into both branches of an If; static too."""
    model = onnx.load(branches())
    feeds = samples(4)
    made = quantize_model(model, DYNAMIC)
    inner = [
        node.op_type
        for node in made.model.graph.node
        if node.op_type == "If"
        for attribute in node.attribute
        for node in attribute.g.node
    ]
    assert "MatMulInteger" in inner
    real, other = (next(iter(Session(m).run(feeds).values())) for m in (model, made.model))
    assert np.abs(other - real).max() < 0.05 * np.abs(real).max()
    whole = quantize_model(model, STATIC, samples(64))
    assert len(whole.account.done) == 4
    other = next(iter(Session(whole.model).run(samples(64)).values()))
    real = next(iter(Session(model).run(samples(64)).values()))
    assert np.abs(other - real).max() < 0.05 * np.abs(real).max()


def test_a_network_of_convolutions_runs_on_integers():
    model = onnx.load(residual_network())
    made = quantize_model(model, STATIC, {"image": images()[0][:64]})
    data = held_out(200)
    feeds = {"image": data["image"]}
    found = kernels_of(made.model, execute(made.model, feeds, runs=1))
    assert found.integer_share == 1
    real, other = (
        next(iter(Session(m).run(feeds).values())).argmax(1) for m in (model, made.model)
    )
    assert (other == data["labels"]).mean() >= (real == data["labels"]).mean() - 0.02


def test_batch_norms_are_folded():
    parts = {n: np.abs(nets.random(4, seed=i)) + 0.5 for i, n in enumerate("gbmv")}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["y"], "norm"),
    ]
    model = nets.net(nodes, {"w": nets.random(4, 3, 3, 3)} | parts, ("n", 3, 8, 8), 4)
    feeds = nets.samples(model)
    made = quantize_model(model, STATIC, feeds)
    assert "BatchNormalization" not in {node.op_type for node in made.model.graph.node}
    assert error(made.model, model, feeds) < 0.03


def test_a_slow_integer_convolution_is_refused_before():
    model = nets.conv()
    nodes = [*model.graph.node, helper.make_node("Flatten", ["y"], ["f"], "flat")]
    nodes.append(helper.make_node("MatMul", ["f", "w2"], ["z"], "product"))
    stored = {"w": nets.random(4, 3, 3, 3), "w2": nets.random(144, 4)}
    model = nets.net(nodes, stored, ("n", 3, 8, 8))
    model.graph.output[0].name = "z"
    made = quantize_model(model, DYNAMIC)
    assert [each.operator for each in made.account.left] == ["Conv"]
    assert "static" in made.account.left[0].reason


def test_rules_name_single_operators():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "layer1/product"),
        helper.make_node("MatMul", ["h", "v"], ["k"], "layer2/product"),
        helper.make_node("MatMul", ["k", "u"], ["y"], "layer3/product"),
    ]
    stored = {name: nets.random(16, 16, seed=i) for i, name in enumerate("wvu")}
    model = nets.net(nodes, stored, ("n", 16))
    recipe = Recipe(
        mode=Mode.DYNAMIC,
        overrides=(
            Override("layer1", keep_float=True),
            Override("layer2", per_channel=False),
            Override("layer3", rule="TORCHAO_INT8_WITHOUT_CLIPPING"),
        ),
    )
    made = quantize_model(model, recipe)
    assert [each.node for each in made.account.left] == ["layer1/product"]
    assert nets.stored(made.model, "v_scale").shape == ()
    assert nets.stored(made.model, "u_scale").shape == (16,)


@pytest.mark.sessions_as_they_are
@pytest.mark.parametrize("codes", [ActivationCodes.UINT8, ActivationCodes.INT8])
def test_operators_on_codes_mean_what_the_pairs_mean(codes):
    """The two forms give the same codes for every convolution of a network."""
    model = onnx.load(residual_network())
    feeds = {"image": images()[0][:64]}
    pairs, operators = (
        quantize_model(model, Recipe(form=form, activations=codes), feeds)
        for form in (Form.QDQ, Form.QOPERATOR)
    )
    kinds = [node.op_type for node in operators.model.graph.node]
    assert kinds.count("QLinearConv") == 6
    assert "Conv" not in kinds
    onnx.checker.check_model(operators.model)
    held = {"image": held_out(100)["image"]}
    first, second = (
        next(iter(Session(each.model).run(held).values())) for each in (pairs, operators)
    )
    # uint8 pairs fuse to the same kernels; signed ones may be moved to unsigned codes.
    assert np.abs(second - first).max() <= 0.02 * np.abs(first).max()


def test_a_clip_that_codes_do_not_make_stays():
    """A Clip narrower than the range of its codes is not thrown away."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Clip", ["c", "low", "high"], ["k"], "clip"),
        helper.make_node("Conv", ["k", "v"], ["y"], "next"),
    ]
    stored = {
        "w": nets.random(4, 3, 3, 3), "v": nets.random(4, 4, 1, 1, seed=1),
        "low": np.float32(-0.7), "high": np.float32(0.3),
    }  # fmt: skip
    model = nets.net(nodes, stored, ("n", 3, 8, 8), 4)
    feeds = nets.samples(model)
    for form in Form:
        made = quantize_model(model, Recipe(form=form), feeds).model
        real, other = (Session(each).run(feeds)["y"] for each in (model, made))
        assert np.linalg.norm(other - real) < 0.04 * np.linalg.norm(real)


@pytest.mark.parametrize(
    ("pads", "value", "folded"),
    [([0, 0, 1, 2, 0, 0, 2, 1], 0.0, True), ([0, 1, 1, 1, 0, 1, 1, 1], 0.0, False),
     ([0, 0, 1, 1, 0, 0, 1, 1], 0.5, False)],
)  # fmt: skip
def test_zero_padding_is_folded(pads, value, folded):
    channels = 3 + pads[1] + pads[5]
    nodes = [
        helper.make_node("Pad", ["x", "pads", "value"], ["p"], "pad"),
        helper.make_node("Conv", ["p", "w"], ["y"], "conv", pads=[1, 0, 1, 0]),
    ]
    stored = {
        "pads": np.array(pads), "value": np.float32(value),
        "w": nets.random(4, channels, 3, 3),
    }  # fmt: skip
    model = nets.net(nodes, stored, ("n", 3, 8, 8), 4)
    feeds = nets.samples(model)
    made = quantize_model(model, STATIC, feeds)
    assert ("Pad" not in {node.op_type for node in made.model.graph.node}) == folded
    assert error(made.model, model, feeds) < 0.03


def test_padding_computed_from_constants_is_folded():
    """Exporters write the pads as a small computation."""
    nodes = [
        helper.make_node("Reshape", ["raw", "shape"], ["r"], "r"),
        helper.make_node("Transpose", ["r"], ["t"], "t", perm=[1, 0]),
        helper.make_node("Reshape", ["t", "flat"], ["pads"], "f"),
        helper.make_node("Pad", ["x", "pads"], ["p"], "pad"),
        helper.make_node("Conv", ["p", "w"], ["y"], "conv"),
    ]
    stored = {
        "raw": np.array([0, 0, 0, 0, 1, 2, 1, 0]), "shape": np.array([4, 2]),
        "flat": np.array([-1]), "w": nets.random(4, 3, 3, 3),
    }  # fmt: skip
    model = nets.net(nodes, stored, ("n", 3, 8, 8), 4)
    feeds = nets.samples(model)
    made = quantize_model(model, STATIC, feeds)
    assert "Pad" not in {node.op_type for node in made.model.graph.node}
    assert error(made.model, model, feeds) < 0.03
