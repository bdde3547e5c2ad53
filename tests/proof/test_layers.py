"""OpenVINO as the second runtime: what it executed, and the command with it."""

import json
import sys

import numpy as np
import onnx
import pytest
from tests.models.branches import branches, branches_int8, samples
from tests.models.copies import Copy, quantized
from tests.models.digits import held_out, images, residual_network
from tests.proof import small

from foldmark.cli.main import run
from foldmark.errors import CheckFailed, FileUnreadable, MissingExtra, NotSupported
from foldmark.proof.kernels import Executor
from foldmark.proof.layers import kernels_of_layers
from foldmark.proof.sentences import integer_sentence
from foldmark.proof.verify import Demands, check, verify
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe_file import BUILT_IN
from foldmark.runtimes.onnxruntime import Session
from foldmark.runtimes.openvino import OpenVinoSession, executed_layers
from foldmark.runtimes.runtime import Runtime


def kernels(built, tmp_path, feeds=None):
    path = small.saved(built, tmp_path / "m.onnx")
    return kernels_of_layers(built, executed_layers(path, feeds or small.samples(), threads=1))


@pytest.mark.parametrize(
    ("build", "executor"),
    [
        (small.float_matmul, Executor.FLOAT),
        (small.qdq_matmul, Executor.INTEGER),
        (small.cast_decoded_matmul, Executor.FLOAT_UNPACKED),
        # It opens DynamicQuantizeLinear and MatMulInteger into float arithmetic.
        (small.dynamic_matmul, Executor.FLOAT_DEQUANTIZED),
    ],
)
def test_who_multiplied(build, executor, tmp_path):
    found = kernels(build(), tmp_path)
    (product,) = found.products
    assert (product.executor, product.macs) == (executor, 8 * small.INNER * small.OUTER)
    assert product.weight_values == small.INNER * small.OUTER
    assert bool(found.unfused) is (executor not in (Executor.INTEGER, Executor.FLOAT))


@pytest.mark.parametrize("group", [1, 2])
def test_convolution_macs(group, tmp_path):
    built = small.conv(quantized=False)
    built.graph.node[0].attribute.append(onnx.helper.make_attribute("group", group))
    weight = onnx.numpy_helper.to_array(built.graph.initializer[0])[:, : 4 // group]
    built.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.ascontiguousarray(weight), "w")
    )
    found = kernels(built, tmp_path, small.samples(2, (4, 8, 8)))
    (product,) = found.products
    assert product.macs == 2 * 8 * 64 * 9 * 4 // group


@pytest.mark.parametrize("turned", ["", "transA", "transB"])
def test_macs_of_two_activations(turned, tmp_path):
    nodes = [
        onnx.helper.make_node("Transpose", ["x"], ["t"], "turn", perm=[1, 0]),
        onnx.helper.make_node("Gemm", ["x", "t"], ["y"], "product"),
    ]
    if turned:
        nodes = [
            onnx.helper.make_node("Relu", ["x"], ["t"], "relu"),
            onnx.helper.make_node("Gemm", ["x", "t"], ["y"], "product", **{turned: 1}),
        ]
    found = kernels(small.model(nodes, {}, shape=("n", small.INNER)), tmp_path)
    (product,) = found.products
    assert product.executor is Executor.FLOAT_ACTIVATIONS
    inner, outer = (8, small.INNER) if turned == "transA" else (small.INNER, 8)
    assert product.macs == outer * outer * inner


def test_bodies_of_control_flow_are_not_claimed():
    """Its executed graph hides what is inside an If: said, and never counted as integer."""
    proof = verify(
        branches_int8(), branches(), samples(16), seconds=0.05, runtime=Runtime.OPENVINO, threads=1
    )
    assert proof.kernels.hidden
    assert "not shown by the runtime" in integer_sentence(proof)
    with pytest.raises(CheckFailed, match="control flow"):
        check(proof, Demands(require_integer=True))


def test_the_three_claims_of_a_network(tmp_path):
    calibration = {"image": images()[0][:64]}
    ours = tmp_path / "ours.onnx"
    onnx.save(quantize_model(residual_network(), BUILT_IN["static"], calibration).model, ours)
    openvino = {"runtime": Runtime.OPENVINO, "threads": 1, "seconds": 0.05}
    proof = verify(ours, residual_network(), held_out(64), **openvino)
    assert proof.runtime.startswith("OpenVINO")
    assert proof.quality.score.quantized_score > 0.9
    assert proof.float_size.total > 2 * proof.size.total
    assert proof.kernels.integer_share > 0.99
    theirs = quantized(residual_network(), Copy.QOPERATOR, calibration)
    with pytest.raises(NotSupported, match="QGemm"):  # an operator of ONNX Runtime's own
        verify(theirs, residual_network(), held_out(64), **openvino)


def test_the_float_reference_is_float32():
    """Held to float32, its answers are those of ONNX Runtime within rounding."""
    feeds = {"image": held_out(16)["image"]}
    ours = OpenVinoSession(residual_network(), threads=1).run(feeds)["logits"]
    theirs = Session(residual_network()).run(feeds)["logits"]
    np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())


def test_results_are_copies(tmp_path):
    path = small.saved(small.float_matmul(), tmp_path / "m.onnx")
    session = OpenVinoSession(path, threads=1)
    first = session.run(small.samples())["y"]
    kept = first.copy()
    session.run(small.samples(seed=5))
    assert np.array_equal(first, kept)


def test_refusals_are_one_line(tmp_path):
    with pytest.raises(FileUnreadable):
        OpenVinoSession(tmp_path / "none.onnx")
    path = small.saved(small.float_matmul(), tmp_path / "m.onnx")
    with pytest.raises(NotSupported) as error:
        OpenVinoSession(path).run({"x": np.zeros((2, 3), np.float32)})
    assert "\n" not in error.value.sentence()
    unknown = small.model([onnx.helper.make_node("Foo", ["x"], ["y"], "n", domain="my.own")], {})
    unknown.opset_import.append(onnx.helper.make_opsetid("my.own", 1))
    with pytest.raises(NotSupported) as error:
        OpenVinoSession(small.saved(unknown, tmp_path / "u.onnx"))
    assert "Foo" in error.value.sentence()


@pytest.fixture
def files(tmp_path):
    np.savez(tmp_path / "d.npz", **small.samples(32))
    small.saved(small.float_matmul(), tmp_path / "float.onnx")
    small.saved(small.qdq_matmul(), tmp_path / "q.onnx")
    return tmp_path


def command(files, *more):
    return run(
        [
            "verify", str(files / "q.onnx"), "--float", str(files / "float.onnx"), "--data",
            str(files / "d.npz"), "--seconds", "0.1", "--threads", "1", "--runtime", "openvino",
            *more,
        ]
    )  # fmt: skip


def test_command(files, capsys):
    assert command(files, "--require-integer", "--json", str(files / "p.json")) == 0
    out = capsys.readouterr().out
    assert "OpenVINO 2" in out
    assert "Every multiply-accumulate with a weight ran on integers." in out
    assert max(map(len, out.splitlines())) <= 80
    found = json.loads((files / "p.json").read_text())
    assert found["machine"]["runtime"].startswith("OpenVINO")
    assert found["kernels"]["hidden"] == []


def test_command_without_the_package(files, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert command(files) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "openvino is not installed" in err
    with pytest.raises(MissingExtra):
        OpenVinoSession(files / "float.onnx")
