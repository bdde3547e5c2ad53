"""An attention that ONNX Runtime runs as one operator, and that quantizing takes apart."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.surgery import nets

from foldmark.cli.main import run
from foldmark.proof.kernels import kernels_of
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import Mode, Recipe
from foldmark.recipes.save import save_model
from foldmark.runtimes.profile import execute

WIDTH, HEADS, TOKENS = 32, 4, 5


def layer():
    """The layer of a BERT as it was exported at opset 12, which ONNX Runtime knows and fuses."""
    size = WIDTH // HEADS
    stored = {
        "gain": np.ones(WIDTH, np.float32),
        "shift": np.zeros(WIDTH, np.float32),
        "split": np.array([0, 0, HEADS, size]),
        "merge": np.array([0, 0, WIDTH]),
        "root": np.float32(size**0.5),
        "one": np.float32(1),
        "far": np.float32(-10000),
    }
    nodes = []

    def node(operator, inputs, name, **attributes):
        nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def linear(x, name):
        stored[f"{name}.weight"] = nets.random(WIDTH, WIDTH, seed=len(stored)) / 6
        stored[f"{name}.bias"] = nets.random(WIDTH, seed=len(stored)) / 10
        return node("Add", [node("MatMul", [x, f"{name}.weight"], name), f"{name}.bias"], name * 2)

    def heads(name, order):
        split = node("Reshape", [linear("norm", name), "split"], f"{name}.split")
        return node("Transpose", [split], f"{name}.heads", perm=order)

    node("LayerNormalization", ["x", "gain", "shift"], "norm", axis=-1)
    query, key, value = heads("q", [0, 2, 1, 3]), heads("k", [0, 2, 3, 1]), heads("v", [0, 2, 1, 3])
    seen = node("Cast", [node("ReduceMax", ["x"], "top", axes=[2], keepdims=0)], "seen",
                to=TensorProto.INT64)  # fmt: skip
    wide = node("Unsqueeze", [node("Unsqueeze", [seen], "row", axes=[1])], "wide", axes=[2])
    unseen = node("Sub", ["one", node("Cast", [wide], "kept", to=TensorProto.FLOAT)], "unseen")
    mask = node("Mul", [unseen, "far"], "mask")
    scores = node("Div", [node("MatMul", [query, key], "scores"), "root"], "scaled")
    soft = node("Softmax", [node("Add", [scores, mask], "masked")], "soft", axis=3)
    mixed = node("Transpose", [node("MatMul", [soft, value], "mixed")], "back", perm=[0, 2, 1, 3])
    out = linear(node("Reshape", [mixed, "merge"], "merged"), "o")
    node("Add", [out, "norm"], "y")
    return nets.net(nodes, stored, ("n", TOKENS, WIDTH), 3, opset=12)


@pytest.mark.parametrize("mode", [Mode.STATIC, Mode.DYNAMIC, Mode.WEIGHT_ONLY])
def test_a_lost_attention_is_named(mode):
    real, feeds = layer(), {"x": nets.random(4, TOKENS, WIDTH)}
    in_float = execute(real, feeds)
    assert kernels_of(real, in_float, in_float).lost == ()
    made = quantize_model(real, Recipe(mode=mode), feeds).model
    lost = kernels_of(made, execute(made, feeds), in_float).lost
    assert [(e.operator, e.in_float, e.in_quantized) for e in lost] == [("Attention", 1, 0)]


def test_the_command_names_it(tmp_path, capsys):
    real, feeds = layer(), {"x": nets.random(4, TOKENS, WIDTH)}
    save_model(real, tmp_path / "m.onnx")
    save_model(quantize_model(real, Recipe(mode=Mode.DYNAMIC)).model, tmp_path / "q.onnx")
    np.savez(tmp_path / "d.npz", **feeds)
    model, made, data = (str(tmp_path / name) for name in ("m.onnx", "q.onnx", "d.npz"))
    times = ["--seconds", "0.1", "--batch-sizes", "4", "--threads", "1"]
    assert run(["verify", made, "--float", model, "--data", data, *times]) == 0
    assert "Fusions of the float model that are gone: Attention (1 -> 0)" in capsys.readouterr().out
