"""Faults that people met with other quantizers: each kind comes out right here."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.surgery import nets

from foldmark.calibrate.calibration import calibrate
from foldmark.calibrate.observers import Method, Observer
from foldmark.errors import NothingQuantized, OperatorNotSupported
from foldmark.methods.gptq import Grid, gptq
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import Form, MethodName, Mode, Recipe
from foldmark.recipes.save import save_model
from foldmark.runtimes.batches import open_data
from foldmark.runtimes.onnxruntime import Session
from foldmark.surgery.activations import ActivationCodes

STATIC = Recipe()


def outputs(model, made, feeds):
    return (next(iter(Session(each).run(feeds).values())) for each in (model, made))


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_bias_beyond_int32_in_both_forms(form, per_channel):
    """Weights near 1e-7, bias 5: cut at int32's end the error would be 5.4."""
    weight = np.array([[1e-7, -0.9e-7], [0.8e-7, 0.5e-7]], np.float32).reshape(2, 2, 1, 1)
    model = nets.conv(weight=weight, bias=np.array([5, -4.5], np.float32))
    feeds = {"x": np.linspace(-63.5, 63.5, 72, dtype=np.float32).reshape(1, 2, 6, 6)}
    made = quantize_model(model, Recipe(form=form, per_channel=per_channel), feeds)
    codes = nets.stored(made.model, "b_quantized").astype(np.int64)
    assert np.abs(codes).max() < 2**31 - 1
    real, other = outputs(model, made.model, feeds)
    assert np.abs(other - real).max() < 0.03


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("method", [None, MethodName.BIAS_CORRECTION])
def test_a_gemm_bias_of_one_row(per_channel, method):
    model = nets.gemm(False, nets.random(4, 3), nets.random(1, 3, seed=4))
    feeds = nets.samples(model)
    methods = (method,) if method else ()
    made = quantize_model(model, Recipe(per_channel=per_channel, methods=methods), feeds).model
    real, other = outputs(model, made, feeds)
    assert np.linalg.norm(other - real) < 0.02 * np.linalg.norm(real)


@pytest.mark.parametrize(
    ("codes", "scale", "decibel"),
    [
        (ActivationCodes.UINT8, (8 + 0.2785) / 255, 50.0),
        (ActivationCodes.UINT16, 8.2785 / 65535, 95),
    ],
)
def test_one_sided_activations_use_all_their_codes(codes, scale, decibel):
    """SiLU is -0.28 .. 8: a mirrored range would spend half of its codes on nothing."""
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["g"], "gate"),
        helper.make_node("Mul", ["x", "g"], ["s"], "silu"),
        helper.make_node("MatMul", ["s", "w"], ["y"], "product"),
    ]
    model = nets.net(nodes, {"w": np.eye(1, dtype=np.float32)}, ("n", 1))
    feeds = {"x": np.linspace(-8, 8, 1001, dtype=np.float32)[:, None]}
    made = quantize_model(model, Recipe(activations=codes), feeds).model
    assert nets.stored(made, "s_scale") == pytest.approx(scale, rel=1e-3)
    real, other = outputs(model, made, feeds)
    noise = 10 * np.log10((real**2).sum() / ((other - real) ** 2).sum())
    assert noise > decibel - 1


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mode", [Mode.STATIC, Mode.DYNAMIC])
def test_columns_from_one_to_a_ten_thousandth(mode, transposed):
    """One scale for all loses the last three columns; one scale on the wrong axis, too."""
    model = nets.gemm(transposed)
    feeds = nets.samples(model)
    made = quantize_model(model, Recipe(mode=mode), feeds).model
    real, other = outputs(model, made, feeds)
    columns = np.linalg.norm(other - real, axis=0) / np.linalg.norm(real, axis=0)
    assert columns.max() < 0.02
    assert nets.stored(made, "w_scale").size == 6


@pytest.mark.parametrize(("opset", "least"), [(10, 13), (11, 13), (12, 13), (13, 13)])
@pytest.mark.parametrize("form", list(Form))
def test_what_is_written_loads_at_every_opset(opset, least, form, tmp_path):
    model = nets.conv(opset)
    made = quantize_model(model, Recipe(form=form), nets.samples(model))
    save_model(made.model, tmp_path / "q.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "q.onnx"))
    versions = {each.domain: each.version for each in made.model.opset_import}
    assert versions[""] >= least


def test_integer_convolutions_with_ranges_at_run_time_are_named_before():
    with pytest.raises(NothingQuantized, match=r"slower than float.*use static"):
        quantize_model(nets.conv(), Recipe(mode=Mode.DYNAMIC))


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("codes", [ActivationCodes.UINT8, ActivationCodes.INT8])
def test_operators_on_int8_activations_are_called_slow(form, codes):
    """Pairs of int8 codes become uint8 when the model loads; operators on codes stay."""
    model = nets.conv()
    made = quantize_model(model, Recipe(form=form, activations=codes), nets.samples(model))
    slow = form is Form.QOPERATOR and codes is ActivationCodes.INT8
    said = any("1 operators multiply int8 activations" in note for note in made.account.notes)
    assert said == slow


def test_a_file_that_does_not_load_names_the_node_and_is_not_written(tmp_path):
    """ONNX Runtime multiplies int8 activations by int8 weights, not by uint8 ones."""
    stored = {
        "w": np.ones((4, 4), np.uint8),
        "one": np.float32(1),
        "signed": np.int8(0),
        "unsigned": np.uint8(0),
    }
    first = helper.make_node("QuantizeLinear", ["x", "one", "signed"], ["q"], "codes")
    inputs = ["q", "one", "signed", "w", "one", "unsigned", "one", "signed"]
    product = helper.make_node("QLinearMatMul", inputs, ["p"], "layer3/product")
    last = helper.make_node("DequantizeLinear", ["p", "one", "signed"], ["y"], "back")
    model = nets.net([first, product, last], stored, ("n", 4))
    words = r"layer3/product.*no CPU kernel for QLinearMatMul"
    with pytest.raises(OperatorNotSupported, match=words):
        save_model(model, tmp_path / "q.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("mode", [Mode.STATIC, Mode.DYNAMIC, Mode.WEIGHT_ONLY, Mode.FLOAT16])
def test_models_that_no_protobuf_holds(mode, opset, tmp_path, monkeypatch):
    """Weights beside the float model and beside the result: it computes what a small one does."""
    model = nets.matmul(nets.random(256, 256))
    model.opset_import[0].version = opset
    feeds, recipe = nets.samples(model), Recipe(mode=mode)
    small = quantize_model(model, recipe, feeds).model
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0
    )
    monkeypatch.setattr("foldmark.formats.onnx_writer._INLINE", 1000)
    made = quantize_model(tmp_path / "m.onnx", recipe, feeds).model
    save_model(made, tmp_path / "q.onnx")
    assert (tmp_path / "q.onnx").stat().st_size < 10_000
    assert (tmp_path / "q.onnx.data").stat().st_size >= 256 * 128
    written, whole = (Session(each).run(feeds)["y"] for each in (tmp_path / "q.onnx", small))
    assert written.tobytes() == whole.tobytes()


def grid(w):
    top = np.abs(w).max(1, keepdims=True) / 7
    return Grid(top, np.zeros_like(top), -8, 7)


def test_gptq_with_a_dead_column_or_too_few_tokens():
    W = nets.random(5, 4).astype(np.float64)
    X = nets.random(64, 4, seed=1).astype(np.float64)
    X[:, 2] = 0
    assert gptq(W, 2 * X.T @ X / 64, grid).dead == (2,)
    W, X = nets.random(5, 16).astype(np.float64), nets.random(10, 16, seed=1).astype(np.float64)
    found = gptq(W, 2 * X.T @ X / 10, grid, damping=0.0)
    assert found.damping > 0
    assert np.isfinite(found.loss)


@pytest.mark.parametrize("mode", [Mode.STATIC, Mode.DYNAMIC])
def test_channels_without_input_or_weight_keep_their_factor(mode):
    weight = nets.random(4, 3)
    weight[2] = 0
    model = nets.matmul(weight)
    X = nets.random(50, 4, seed=1) * np.array([1, 0, 2, 0.5], np.float32)
    recipe = Recipe(mode=mode, methods=(MethodName.SMOOTHQUANT,))
    made = quantize_model(model, recipe, {"x": X})
    for tensor in made.model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            assert np.isfinite(numpy_helper.to_array(tensor)).all()
    blocks = Recipe(mode=Mode.WEIGHT_ONLY, block_size=16, methods=(MethodName.AWQ,))
    for each in (recipe, blocks):
        real, other = outputs(model, quantize_model(model, each, {"x": X}).model, {"x": X})
        assert np.isfinite(other).all()
        assert np.linalg.norm(other - real) < 0.3 * np.linalg.norm(real)


@pytest.mark.parametrize(
    ("inner", "block", "rest", "fits"),
    [(4304, 128, 80, 16), (8640, 128, 64, 64), (768, 256, 0, 256), (100, 32, 4, 4)],
)
def test_blocks_that_do_not_divide_are_padded_and_named(inner, block, rest, fits):
    model = nets.matmul(nets.random(inner, 8))
    recipe = Recipe(mode=Mode.WEIGHT_ONLY, block_size=block, weight_bits=4)
    made = quantize_model(model, recipe)
    said = " ".join(made.account.notes)
    assert (f"the last block has {rest} and is padded (blocks of {fits} would divide)" in said) == (
        rest > 0
    )
    real, other = outputs(model, made.model, nets.samples(model))
    assert np.linalg.norm(other - real) < 0.15 * np.linalg.norm(real)


@pytest.mark.parametrize("method", [Method.PERCENTILE, Method.ENTROPY, Method.MSE])
def test_histograms_of_any_length_in_any_order(method):
    """Sequences of 2, 5 and 3, one near zero, one far: the same bytes whichever comes first."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    model = nets.net([node], {"w": nets.random(4, 4)}, ("n", "s", 4), 3)
    sizes = ((2, 0.001), (5, 10), (3, 1))
    batches = [
        {"x": nets.random(1, length, 4, seed=length) * np.float32(size)} for length, size in sizes
    ]
    recipe = Recipe(observer=Observer(method))
    made = {
        quantize_model(model, recipe, [batches[i] for i in order]).model.SerializeToString()
        for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2))
    }
    assert len(made) == 1


def test_ranges_that_float16_could_not_hold_the_width_of():
    """From -54800 to 54800 is wider than float16's largest number."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    stored = {"w": (nets.random(5, 4) / 1024).astype(np.float16)}
    model = nets.net([node], stored, ("n", 5))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    feeds = {"x": np.array([[54800, -54800, 1, 2, 3]], np.float16)}
    for method in (Method.MIN_MAX, Method.PERCENTILE, Method.ENTROPY):
        made = calibrate(model, open_data([feeds], model), observer=Observer(method), tensors=["x"])
        found = made.ranges(Observer(method))["x"]
        assert (found.low, found.high) == pytest.approx((-54800, 54800), rel=0.01)
