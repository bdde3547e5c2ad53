"""The command and the three claims together."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from tests.models.branches import branches, branches_int8, samples
from tests.models.minilm import _package, _safetensors, published_int8
from tests.models.store import built
from tests.proof import small
from tests.surgery import nets

from foldmark.cli.main import run
from foldmark.cli.verify_text import markdown, text, wrapped
from foldmark.proof.document import proof_document
from foldmark.proof.kernels import Executor
from foldmark.proof.sentences import integer_sentence, signed_sentence, verdict
from foldmark.proof.verify import verify
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import Form, Recipe
from foldmark.runtimes.machine import Machine
from foldmark.surgery.activations import ActivationCodes


@pytest.fixture
def files(tmp_path):
    np.savez(tmp_path / "d.npz", **small.samples(32))
    for name, build in (
        ("float", small.float_matmul), ("dynamic", small.dynamic_matmul),
        ("decoded", small.cast_decoded_matmul), ("conv", lambda: small.conv(quantized=False)),
    ):  # fmt: skip
        small.saved(build(), tmp_path / f"{name}.onnx")
    return tmp_path


def arguments(files, copy, *more):
    return [
        "verify", str(files / f"{copy}.onnx"), "--float", str(files / "float.onnx"),
        "--data", str(files / "d.npz"), "--seconds", "0.1", "--threads", "1", *more,
    ]  # fmt: skip


def test_text_fits_and_gives_the_three_claims(files, capsys):
    assert run(arguments(files, "dynamic")) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    first = out.split("\n\n")[0]
    assert "smaller" in first
    assert "batch 1" in first
    assert "same best class" in first
    assert "Every multiply-accumulate with a weight ran on integers." in out


def test_json(files, capsys):
    assert run(arguments(files, "decoded", "--json", "-", "--batch-sizes", "4")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "foldmark.verify/1"
    assert sum(line["bytes"] for line in found["size"]["lines"]) == found["size"]["bytes"]
    assert found["kernels"]["integer_share"] == 0
    assert [speed["samples"] for speed in found["speed"]] == [4]
    assert found["data"]["samples"] == 32


def test_weights_beside_the_model_are_part_of_its_size(files, capsys):
    path = files / "float.onnx"
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert run(arguments(files, "dynamic", "--json", "-", "--batch-sizes", "4")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["size"]["float_bytes"] == path.stat().st_size + (files / "w.bin").stat().st_size


def test_markdown(files, capsys):
    assert run(arguments(files, "dynamic", "--markdown")) == 0
    out = capsys.readouterr().out
    assert out.startswith("**")
    assert "| integer kernel | 1 | 100.0 % |" in out


@pytest.mark.parametrize(
    ("copy", "demand", "result"),
    [
        ("decoded", ["--require-integer"], (1, "0.0 %")),
        ("dynamic", ["--require-integer"], (0, "")),
        ("dynamic", ["--min-speedup", "1000"], (1, "not fast enough")),
        ("dynamic", ["--max-drop", "0.9"], (0, "")),
        ("dynamic", ["--max-drop", "-0.1"], (1, "top-1 disagreement")),
    ],
)
def test_demands(files, capsys, copy, demand, result):
    code, words = result
    assert run(arguments(files, copy, *demand)) == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("replace", "words"),
    [
        (("float.onnx", "conv.onnx"), "wrong rank"),
        (("d.npz", "missing.npz"), "no such file"),
        (("dynamic.onnx", "missing.onnx"), "no such file"),
    ],
)
def test_bad_input_is_one_line(files, capsys, replace, words):
    spelled = [each.replace(*replace) for each in arguments(files, "dynamic")]
    assert run(spelled) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert words in err


def test_no_data_says_what_is_needed(files, capsys):
    assert run(arguments(files, "dynamic")[:4]) == 2
    assert "x float32" in capsys.readouterr().err


def test_other_inputs_are_named(files, capsys):
    other = small.float_matmul()
    other.graph.input[0].name = "z"
    other.graph.node[0].input[0] = "z"
    small.saved(other, files / "dynamic.onnx")
    assert run(arguments(files, "dynamic")) == 2
    assert "different inputs" in capsys.readouterr().err


def published_float():
    """The float twin of the published int8 file: its graph with the original weights."""

    def write(path):
        model = onnx.load(published_int8())
        stored = {t.name: t for t in model.graph.initializer}
        original = [
            w for w in _safetensors(_package() / "model.safetensors").values() if w.ndim == 2
        ]
        kept, weights = [], []
        for node in model.graph.node:
            if node.op_type == "Cast" and node.input[0] in stored:
                continue
            if node.op_type != "Mul" or node.input[0].removesuffix("_f") != node.output[0]:
                kept.append(node)
                continue
            scale = onnx.numpy_helper.to_array(stored[node.input[1]])
            codes = onnx.numpy_helper.to_array(stored[f"{node.output[0]}_q"])
            decoded = codes * scale
            fits = [w for w in (*original, *(w.T for w in original)) if w.shape == decoded.shape]
            nearest = min(fits, key=lambda w: np.abs(w[:64] - decoded[:64]).mean())
            weights.append(onnx.numpy_helper.from_array(nearest.copy(), node.output[0]))
        del model.graph.node[:]
        model.graph.node.extend(kept)
        model.graph.initializer.extend(weights)
        used = {name for node in kept for name in node.input}
        left = [t for t in model.graph.initializer if t.name in used]
        del model.graph.initializer[:]
        model.graph.initializer.extend(left)
        onnx.save(model, path)

    return built("published-float.onnx", write)


def published_dynamic():
    from onnxruntime.quantization import QuantType, quantize_dynamic

    return built(
        "published-dynamic.onnx",
        lambda path: quantize_dynamic(published_float(), path, weight_type=QuantType.QInt8),
    )


@pytest.mark.parametrize(
    ("copy", "share", "sentence"),
    [
        (published_int8, 0.0, "No multiply-accumulate of the weights ran on integers"),
        (published_dynamic, 1.0, "Every multiply-accumulate with a weight ran on integers"),
    ],
)
def test_published_minilm(copy, share, sentence):
    """A quarter of the bytes, yet every product in float; the dynamic copy really is integer."""
    random = np.random.default_rng(0)
    ids = random.integers(1000, 20000, (4, 16))
    data = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }
    proof = verify(copy(), published_float(), data, batch_sizes=[4], seconds=0.1)
    assert proof.kernels.integer_share == share
    assert integer_sentence(proof).startswith(sentence)
    assert proof.float_size.total / proof.size.total > 3.9
    shares = {each.executor: each.operators for each in proof.kernels.shares}
    assert shares[Executor.INTEGER if share else Executor.FLOAT_DECODED] == 36
    if share == 0:
        assert "3.94 times smaller" in verdict(proof)
    assert proof_document(proof)["schema"] == "foldmark.verify/1"


def test_bodies_of_control_flow_are_seen():
    """Their products are assigned too; rewriting gives values of both bodies the same name."""
    proof = verify(branches_int8(), branches(), samples(16), seconds=0.05, threads=1)
    operators = {each.operator for each in proof.kernels.products}
    assert sum(each.operators for each in proof.kernels.shares) == 3  # two outside, one branch ran
    assert operators <= {"MatMul", "MatMulIntegerToFloat", "QLinearMatMul", "FusedMatMul"}
    assert 0 < proof.kernels.integer_share < 1


def test_kernels_that_x86_has_not_fast_are_said_there(tmp_path):
    real, data = nets.conv(), nets.samples(nets.conv(), 8)
    recipe = Recipe(form=Form.QOPERATOR, activations=ActivationCodes.INT8)
    onnx.save(real, tmp_path / "m.onnx")
    onnx.save(quantize_model(real, recipe, data).model, tmp_path / "q.onnx")
    proof = verify(tmp_path / "q.onnx", tmp_path / "m.onnx", data, batch_sizes=[8], seconds=0.1)
    on = {name: Machine("any", (name,), None) for name in ("AVX2 without VNNI", "Arm I8MM")}
    said = {name: signed_sentence(replace(proof, machine=each)) for name, each in on.items()}
    assert said["Arm I8MM"] == ""
    assert said["AVX2 without VNNI"].startswith("1 integer kernel (conv_quant")
    assert "multiplied int8 activations" in said["AVX2 without VNNI"]
    assert len(proof_document(proof)["kernels"]["signed"]) == 1
    x86 = replace(proof, machine=on["AVX2 without VNNI"])
    for printed in (text(x86), markdown(x86)):
        assert "".join(said["AVX2 without VNNI"].split()) in "".join(printed.split())


def test_pairs_are_scored_and_drawn_together(files, tmp_path, capsys):
    """A score over pairs of rows, on labels that are not whole numbers."""
    random = np.random.default_rng(0)
    np.savez(files / "d.npz", **small.samples(32), labels=random.random(32))
    (tmp_path / "score.py").write_text(
        "import numpy as np\n"
        "def likeness(outputs, labels):\n"
        "    rows = outputs['y']\n"
        "    assert (np.diff(labels)[::2] != 0).all()\n"
        "    assert len(rows) == 32\n"
        "    return float(np.corrcoef((rows[::2] * rows[1::2]).sum(1), labels[::2])[0, 1])\n"
    )
    score = ["--score", f"{tmp_path / 'score.py'}:likeness", "--together", "2"]
    assert run(arguments(files, "dynamic", *score)) == 0
    assert "likeness" in capsys.readouterr().out
    assert run(arguments(files, "dynamic", *score[:-1], "3")) == 2
    assert "multiple of 3" in capsys.readouterr().err
    assert run(arguments(files, "dynamic")) == 2  # no score: labels must be classes
    assert "one integer per sample" in capsys.readouterr().err


def test_a_long_reason_goes_on_under_its_words():
    reason = "ONNX Runtime's CPU has no integer kernel for InstanceNormalization"
    lines = wrapped(f"Quantized, yet run in float\n   12 InstanceNormalization: {reason}").split(
        "\n"
    )
    assert [len(line) <= 80 for line in lines] == [True] * 3
    assert lines[2].startswith(" " * 6) and not lines[2].startswith(" " * 7)
