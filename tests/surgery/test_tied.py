"""An output layer tied to the embedding: quantized on both sides, stored once."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.surgery import nets

from foldmark.proof.kernels import Executor, kernels_of
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import Mode, Recipe
from foldmark.report.explain import explain
from foldmark.runtimes.onnxruntime import Session
from foldmark.runtimes.profile import execute

ROWS, WIDTH = 600, 64


def tied(order=(1, 0)):
    """Ids to embeddings, a layer, and logits by the embedding's transpose."""
    nodes = [
        helper.make_node("Gather", ["e", "x"], ["h"], "embed"),
        helper.make_node("MatMul", ["h", "w"], ["k"], "layer"),
        helper.make_node("Tanh", ["k"], ["t"]),
        helper.make_node("Transpose", ["e"], ["e_t"], "turn", perm=order),
        helper.make_node("MatMul", ["t", "e_t"], ["y"], "logits"),
    ]
    stored = {"e": nets.random(ROWS, WIDTH), "w": nets.random(WIDTH, WIDTH, seed=1) / 8}
    model = nets.net(nodes, stored, ("n", 6), 3)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    return model


def ids(count=16):
    return {"x": np.random.default_rng(0).integers(0, ROWS, (count, 6))}


@pytest.mark.parametrize("mode", [Mode.STATIC, Mode.DYNAMIC])
def test_both_sides_are_quantized_and_stored_once(mode):
    model = tied()
    made = quantize_model(model, Recipe(mode=mode), ids())
    onnx.checker.check_model(made.model)
    assert sorted(each.operator for each in made.account.done) == ["Gather", "MatMul", "MatMul"]
    stored = made.model.graph.initializer
    large = [t for t in stored if np.prod(t.dims) == ROWS * WIDTH]
    assert [(t.data_type, list(t.dims)) for t in large] == [(TensorProto.INT8, [ROWS, WIDTH])]
    real, other = (Session(m).run(ids())["y"] for m in (model, made.model))
    assert np.abs(real - other).max() < 0.06 * np.abs(real).max()


def test_the_turned_codes_are_multiplied_as_integers():
    made = quantize_model(tied(), Recipe(), ids()).model
    found = kernels_of(made, execute(made, ids()))
    assert [each.executor for each in found.products] == [Executor.INTEGER] * 2


def test_the_account_reads_turned_codes(tmp_path):
    onnx.save(tied(), tmp_path / "m.onnx")
    onnx.save(quantize_model(tied(), Recipe(), ids()).model, tmp_path / "q.onnx")
    account = explain(tmp_path / "m.onnx", tmp_path / "q.onnx", ids(), cures=False)
    assert abs(account.closure.relative_error) < 0.05


def test_weight_only_takes_the_turned_matrix():
    made = quantize_model(tied(), Recipe(mode=Mode.WEIGHT_ONLY, block_size=32))
    assert [each.node for each in made.account.done] == ["embed", "layer", "logits"]


def test_what_is_not_quantized_stays_a_transpose():
    made = quantize_model(tied(), Recipe(mode=Mode.DYNAMIC, exclude=("logits",)))
    assert [node.op_type for node in made.model.graph.node].count("Transpose") == 1
    stored = [t for t in made.model.graph.initializer if np.prod(t.dims) == ROWS * WIDTH]
    assert sorted(t.data_type for t in stored) == [TensorProto.FLOAT, TensorProto.INT8]


@pytest.mark.parametrize("mode", list(Mode))
def test_a_product_takes_its_weight_from_a_constant_node(mode):
    """Such a weight is quantized like another one, and its floats do not stay behind."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "v"], ["y"], "second"),
    ]
    stored = {name: nets.random(64, 64, seed=at) / 8 for at, name in enumerate("wv")}
    usual = nets.net(nodes, stored, ("n", 64), 2)
    constants = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in usual.graph.initializer
    ]
    other = nets.net([*constants, *nodes], {}, ("n", 64), 2)
    data, names = {"x": nets.random(16, 64, seed=5)}, ["first", "second"]
    one, two = (quantize_model(model, Recipe(mode=mode), data) for model in (usual, other))
    for each in (one, two):
        assert [done.node for done in each.account.done if done.operator == "MatMul"] == names
    assert two.model.ByteSize() < 1.1 * one.model.ByteSize()
    first, second = (Session(each.model).run(data)["y"] for each in (one, two))
    np.testing.assert_array_equal(first, second)
