"""Rotations leave the float model as it is, and say by name where they can't be put."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.surgery import nets

from foldmark.calibrate.calibration import calibrate
from foldmark.errors import InvalidRecipe
from foldmark.methods.hadamard import rotation
from foldmark.proof.quality import measure_quality
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import MethodName, Mode, Recipe
from foldmark.recipes.rotating import rotate
from foldmark.runtimes.batches import open_data
from foldmark.runtimes.onnxruntime import Session
from foldmark.surgery.account import Account
from foldmark.surgery.editor import Editor
from foldmark.surgery.streams import find_streams

WIDTH, HEADS, INNER, WORDS = 24, 2, 48, 40


class Transformer:
    """One block that normalizes before (or after) its layers; x holds token numbers as floats."""

    def __init__(self, norm="LayerNormalization", after=False, seed=0):
        self.random = np.random.default_rng(seed)
        self.nodes, self.stored, self.norm_kind = [], {}, norm
        table = self.random.standard_normal((WORDS, WIDTH)) * 0.3
        table[:, 5] += 8  # one large channel in the residual
        self.stored["table"] = table.astype(np.float32)
        self.stored["places"] = (self.random.standard_normal((6, WIDTH)) * 0.2).astype(np.float32)
        self.node("Cast", ["x"], "ids", to=TensorProto.INT64)
        self.node("Gather", ["table", "ids"], "words")
        stream = self.node("Add", ["words", "places"], "embedded")
        if after:
            stream = self.norm(self.node("Add", [stream, self.attention(stream)], "a1"), "n1")
            stream = self.norm(self.node("Add", [stream, self.mlp(stream)], "a2"), "n2")
        else:
            mixed = self.attention(self.norm(stream, "n1"))
            stream = self.node("Add", [stream, mixed], "a1")
            stream = self.node("Add", [self.mlp(self.norm(stream, "n2")), stream], "a2")
            stream = self.norm(stream, "n3")
        pooled = self.node("ReduceMean", [stream], "pooled", axes=[1], keepdims=0)
        self.weight("head", WIDTH, 5)
        self.stored["head_bias"] = nets.random(5, seed=9)
        self.node("Gemm", [pooled, "head", "head_bias"], "y")

    def node(self, kind, inputs, output, **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [output], f"/{output}", **attributes))
        return output

    def weight(self, name, inner, outer):
        made = self.random.standard_normal((inner, outer)) / np.sqrt(inner)
        if inner == WIDTH and name != "o":
            made[3] /= 30  # as in trained networks: what is large is read with small weights
        self.stored[name] = made.astype(np.float32)
        return name

    def linear(self, x, name, inner, outer):
        self.stored[f"{name}_bias"] = (self.random.standard_normal(outer) * 0.1).astype(np.float32)
        product = self.node("MatMul", [x, self.weight(name, inner, outer)], f"{name}_product")
        return self.node("Add", [f"{name}_bias", product], f"{name}_out")

    def norm(self, x, name):
        scale = np.abs(self.random.standard_normal(WIDTH)) + 0.5
        scale[3] *= 30  # a large channel after the norm, too
        self.stored[f"{name}_scale"] = scale.astype(np.float32)
        inputs = [x, f"{name}_scale"]
        if self.norm_kind == "LayerNormalization":
            self.stored[f"{name}_shift"] = self.random.standard_normal(WIDTH).astype(np.float32)
            inputs.append(f"{name}_shift")
        return self.node(self.norm_kind, inputs, name, axis=-1, epsilon=1e-5)

    def attention(self, x):
        parts = {}
        for name in "qkv":
            flat = self.linear(x, name, WIDTH, WIDTH)
            self.stored["split"] = np.array([0, 0, HEADS, -1])
            split = self.node("Reshape", [flat, "split"], f"{name}_split")
            perm = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
            parts[name] = self.node("Transpose", [split], f"{name}_heads", perm=perm)
        scores = self.node("MatMul", [parts["q"], parts["k"]], "scores")
        soft = self.node("Softmax", [scores], "soft", axis=-1)
        mixed = self.node("MatMul", [soft, parts["v"]], "mixed")
        back = self.node("Transpose", [mixed], "mixed_back", perm=[0, 2, 1, 3])
        self.stored["merge"] = np.array([0, 0, WIDTH])
        merged = self.node("Reshape", [back, "merge"], "merged")
        return self.linear(merged, "o", WIDTH, WIDTH)

    def mlp(self, x):
        hidden = self.linear(x, "up", WIDTH, INNER)
        return self.linear(self.node("Tanh", [hidden], "tanh"), "down", INNER, WIDTH)

    def model(self):
        made = nets.net(self.nodes, self.stored, ("n", 6), opset=17)
        if self.norm_kind == "RMSNormalization":
            made.opset_import[0].version = 23
            made.ir_version = 11
            self.stored["axes"] = np.array([1])
            for node in made.graph.node:
                if node.op_type == "ReduceMean":
                    del node.attribute[:]
                    node.attribute.append(helper.make_attribute("keepdims", 0))
                    node.input.append("axes")
            made.graph.initializer.append(numpy_helper.from_array(np.array([1]), "axes"))
        return made


def tokens(count=32, seed=0):
    random = np.random.default_rng(seed)
    return {"x": random.integers(0, WORDS, (count, 6)).astype(np.float32)}


def largest_channel(model, feeds, tensor):
    """How far the largest channel of a tensor stands out of the typical one."""
    values = np.abs(Session(model, taps=[tensor]).run(feeds)[tensor])
    top = values.reshape(-1, values.shape[-1]).max(0)
    return top.max() / np.median(top)


@pytest.mark.parametrize("norm", ["LayerNormalization", "RMSNormalization"])
def test_the_float_model_computes_the_same(norm):
    model, account = Transformer(norm).model(), Account()
    made = rotate(model, tokens(4), account)
    (line,) = account.methods
    assert "2 streams rotated (1 of 12 channels, 1 of 24 channels), 3 normalizations folded" in line
    feeds = tokens(64, seed=1)
    real, other = (Session(each).run(feeds)["y"] for each in (model, made))
    assert np.abs(other - real).max() < 1e-5 * np.abs(real).max()
    for tensor, share in (("a1", 0.9), ("n1", 0.5)):
        before, after = (largest_channel(each, feeds, tensor) for each in (model, made))
        assert after < share * before
    assert [n.op_type for n in made.graph.node] == [n.op_type for n in model.graph.node]


@pytest.mark.parametrize("norm", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("mode", [Mode.STATIC, Mode.DYNAMIC])
def test_the_quantized_model_comes_nearer(mode, norm):
    model = Transformer(norm).model()
    found = {}
    for methods in ((), (MethodName.HADAMARD,)):
        made = quantize_model(model, Recipe(mode=mode, methods=methods), tokens(64))
        data = open_data(tokens(64, seed=1), model)
        quality = measure_quality(Session(model), Session(made.model), data)
        found[methods] = quality.outputs[0].relative
    assert found[MethodName.HADAMARD,] < 0.7 * found[()]


def test_after_adding_only_the_values_can_be_rotated():
    model, account = Transformer(after=True).model(), Account()
    made = rotate(model, tokens(4), account)
    assert "1 streams rotated (1 of 12 channels); float" in account.methods[0]
    reasons = " ".join(account.notes)
    assert "normalizes after adding" in reasons
    assert "Tanh treats single channels" in reasons
    assert "Softmax" in reasons
    feeds = tokens(64, seed=1)
    real, other = (Session(each).run(feeds)["y"] for each in (model, made))
    assert np.abs(other - real).max() < 1e-5 * np.abs(real).max()


@pytest.mark.parametrize("transposed", [False, True])
def test_two_layers_without_a_function_between(transposed):
    """The new weights are W1 Q and Q^T W2, with Q from the matrix's definition."""
    first, second = nets.random(10, 16, seed=1), nets.random(16, 4, seed=2)
    stored = {"w1": first, "b1": nets.random(16, seed=3), "b2": nets.random(4, seed=4)}
    stored["w2"] = second.T.copy() if transposed else second
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "first"),
        helper.make_node("Gemm", ["h", "w2", "b2"], ["y"], "second", transB=int(transposed)),
    ]
    model, account = nets.net(nodes, stored, ("n", 10)), Account()
    made = rotate(model, nets.samples(model), account)
    Q = rotation(16, 0)
    assert nets.stored(made, "w1_rotated") == pytest.approx(first @ Q, abs=1e-6)
    assert nets.stored(made, "b1_rotated") == pytest.approx(stored["b1"] @ Q, abs=1e-6)
    mine = nets.stored(made, "w2_rotated")
    assert (mine.T if transposed else mine) == pytest.approx(Q.T @ second, abs=1e-6)
    assert np.array_equal(nets.stored(made, "b2"), stored["b2"])


def test_convolutions_that_follow_each_other():
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["h"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["h", "w2"], ["y"], "second", pads=[1, 1, 1, 1]),
    ]
    stored = {
        "w1": nets.random(8, 3, 3, 3), "b1": nets.random(8, seed=1),
        "w2": nets.random(4, 8, 3, 3, seed=2),
    }  # fmt: skip
    model = nets.net(nodes, stored, ("n", 3, 9, 9), 4)
    feeds = nets.samples(model)
    shapes = {"x": (1, 3, 9, 9), "h": (1, 8, 9, 9), "y": (1, 4, 9, 9)}
    streams, _ = find_streams(Editor(model), shapes)
    assert streams == []  # convolutions alone are no seed: their activations are few
    real, other = (Session(m).run(feeds)["y"] for m in (model, rotate(model, feeds, Account())))
    assert np.array_equal(other, real)


@pytest.mark.parametrize(
    ("between", "words"),
    [("Relu", "Relu treats single channels"), ("Softmax", "Softmax treats single channels")],
)
def test_functions_between_are_named(between, words):
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], "first"),
        helper.make_node(between, ["h"], ["r"], "function"),
        helper.make_node("MatMul", ["r", "w2"], ["y"], "second"),
    ]
    model = nets.net(nodes, {"w1": nets.random(8, 16), "w2": nets.random(16, 4)}, ("n", 8))
    account = Account()
    rotate(model, nets.samples(model), account)
    assert account.methods == ["hadamard: no stream allows a rotation"]
    assert any(words in note for note in account.notes)


def test_what_is_read_elsewhere_stays():
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["y"], "first"),
        helper.make_node("MatMul", ["y", "w2"], ["z"], "second"),
    ]
    model = nets.net(nodes, {"w1": nets.random(8, 16), "w2": nets.random(16, 4)}, ("n", 8))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [None, 4]))
    account = Account()
    rotate(model, nets.samples(model), account)
    assert any("y is an output of the model" in note for note in account.notes)


def test_ranges_from_before_are_refused():
    model = Transformer().model()
    before = calibrate(model, open_data(tokens(8), model))
    with pytest.raises(InvalidRecipe, match="a rotation changes the ranges"):
        quantize_model(model, Recipe(methods=(MethodName.HADAMARD,)), tokens(8), ranges=before)


def test_it_works_beside_other_methods():
    model = Transformer().model()
    methods = (MethodName.HADAMARD, MethodName.GPTQ, MethodName.BIAS_CORRECTION)
    made = quantize_model(model, Recipe(methods=methods), tokens(64))
    assert [line.split(":")[0] for line in made.account.methods] == [
        "hadamard", "gptq", "bias-correction"
    ]  # fmt: skip
    blocks = replace(Recipe(mode=Mode.WEIGHT_ONLY, block_size=16), methods=methods[:1])
    onnx.checker.check_model(quantize_model(model, blocks, tokens(16)).model)
