"""Outlier columns in float and int8 rows, against the paper's definition and bitsandbytes."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.surgery import nets

from foldmark.errors import InvalidRecipe, NoData
from foldmark.methods.outliers import outlier_columns, row_codes, split_product
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import MethodName, Mode, Recipe
from foldmark.recipes.recipe_file import parse_recipe, recipe_text
from foldmark.runtimes.onnxruntime import Session

SPLIT = Recipe(mode=Mode.DYNAMIC, methods=(MethodName.OUTLIER_SPLIT,))


def inputs(rows=40, inner=64, seed=0):
    X = nets.random(rows, inner, seed=seed)
    X[:, [3, 17]] *= 20
    X[5] *= 0.01
    return X


def gemm(transposed=False, **attributes):
    weight = nets.random(64, 24, seed=2)
    return weight, nets.gemm(transposed, weight, nets.random(24, seed=3), **attributes)


@pytest.mark.parametrize("transposed", [False, True])
def test_the_graph_computes_the_papers_product(transposed):
    weight, model = gemm(transposed)
    X = inputs()
    made = quantize_model(model, SPLIT, {"x": X})
    columns = outlier_columns(np.abs(X).max(0))
    assert columns.tolist() == [3, 17]
    mine = Session(made.model).run({"x": X})["y"]
    want = split_product(X, weight, columns) + nets.random(24, seed=3)
    assert mine == pytest.approx(want, rel=1e-5, abs=1e-4)
    assert "2 of 64 columns stay in float, in 1 of 1 inputs" in made.account.methods[0]
    assert (
        made.account.done[0].how == "int8 per channel, int8 rows at run time, some columns in float"
    )
    onnx.checker.check_model(made.model)


def test_codes_are_those_of_bitsandbytes():
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("bitsandbytes").functional
    X = inputs()
    half = torch.from_numpy(X).to(torch.float16)
    columns = outlier_columns(np.abs(half.numpy()).max(0))
    assert functional.int8_vectorwise_quant(half, threshold=6.0)[2].tolist() == columns.tolist()
    # Of the rest alone: they let small values of the outlier columns set a row's scale, too.
    rest = np.setdiff1d(np.arange(64), columns)
    theirs, tops, _ = functional.int8_vectorwise_quant(half[:, rest].contiguous())
    codes, scale = row_codes(half.numpy()[:, rest].astype(np.float32))
    assert tops.numpy() == pytest.approx(scale[:, 0] * 127, rel=1e-6)
    gap = codes.astype(np.int32) - theirs.numpy()
    assert np.abs(gap).max() <= 1  # theirs are made in float16: halves go either way
    assert (gap == 0).mean() > 0.98


def test_it_is_nearer_than_one_scale_for_all():
    weight, model = gemm()
    X, others = inputs(), inputs(seed=7)
    real = others @ weight + nets.random(24, seed=3)
    errors = []
    for recipe in (replace(SPLIT, methods=()), SPLIT, replace(SPLIT, outlier_threshold=1e9)):
        made = quantize_model(model, recipe, {"x": X}).model
        # Rows without outliers of their own suffer from those of others.
        errors.append(np.linalg.norm((Session(made).run({"x": others})["y"] - real)[5]))
    assert errors[1] < 0.1 * errors[0]
    assert errors[2] < 0.3 * errors[0]  # scales per row help already


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
def test_several_readers_quantize_once(opset):
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], "one"),
        helper.make_node("MatMul", ["x", "w2"], ["b"], "two"),
        helper.make_node("Add", ["a", "b"], ["y"], "sum"),
    ]
    stored = {"w1": nets.random(64, 8), "w2": nets.random(64, 8, seed=1)}
    model = nets.net(nodes, stored, ("n", 64), opset=opset)
    X = inputs()
    made = quantize_model(model, SPLIT, {"x": X}).model
    kinds = [node.op_type for node in made.graph.node]
    assert kinds.count("QuantizeLinear") == 1
    assert kinds.count("MatMulInteger") == 2
    real, other = (Session(each).run({"x": X})["y"] for each in (model, made))
    assert np.linalg.norm(other - real) < 0.01 * np.linalg.norm(real)


def test_a_row_of_zeros():
    _, model = gemm()
    X = inputs()
    X[3] = 0
    made = quantize_model(model, SPLIT, {"x": X}).model
    real, other = (Session(each).run({"x": X})["y"] for each in (model, made))
    assert np.array_equal(other[3], real[3])


def test_alpha_reaches_the_kept_columns():
    _, model = gemm(alpha=0.5)
    X = inputs()
    made = quantize_model(model, SPLIT, {"x": X}).model
    real, other = (Session(each).run({"x": X})["y"] for each in (model, made))
    assert np.linalg.norm(other - real) < 0.01 * np.linalg.norm(real)


def test_with_smoothing_and_gptq():
    _, model = gemm()
    X = inputs(200)
    methods = (MethodName.SMOOTHQUANT, MethodName.OUTLIER_SPLIT, MethodName.GPTQ)
    made = quantize_model(model, replace(SPLIT, methods=methods), {"x": X})
    assert {line.split(":")[0] for line in made.account.methods} == {m.value for m in methods}
    real, other = (Session(each).run({"x": X})["y"] for each in (model, made.model))
    assert np.linalg.norm(other - real) < 0.01 * np.linalg.norm(real)


def test_what_does_not_go():
    with pytest.raises(NoData, match="outlier-split needs data"):
        quantize_model(gemm()[1], SPLIT)
    with pytest.raises(InvalidRecipe, match="no place in static"):
        replace(SPLIT, mode=Mode.STATIC)
    with pytest.raises(InvalidRecipe, match="bias-correction and outlier-split"):
        replace(SPLIT, methods=(MethodName.BIAS_CORRECTION, MethodName.OUTLIER_SPLIT))


def test_the_threshold_is_in_the_recipe():
    recipe = replace(SPLIT, outlier_threshold=3.5)
    assert parse_recipe(recipe_text(recipe), "r") == recipe
