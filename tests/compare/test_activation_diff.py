"""What `foldmark diff` says of activations without data: the scales that two files store."""

import json
from pathlib import Path

import numpy as np
import onnx
import openvino as ov
import pytest
from ai_edge_litert.interpreter import Interpreter
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
from openvino import opset13 as ops
from safetensors.numpy import save_file
from tests.formats.tflite_models import quantized_result

from foldmark.cli.main import run
from foldmark.compare.activation_diff import ActivationDiff, compare_activations
from foldmark.formats.activations import StoredActivation
from foldmark.formats.opening import open_artefact

RNG = np.random.default_rng(20280)


def float_model(path: Path) -> Path:
    """Write two layers with a Relu and a sum between."""
    stored = {
        "w": RNG.normal(size=(16, 24)),
        "v": RNG.normal(size=(24, 8)),
        "b": RNG.normal(size=24),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["first"], "first"),
        helper.make_node("Add", ["first", "b"], ["sum"], "sum"),
        helper.make_node("Sigmoid", ["sum"], ["sigmoid"], "sigmoid"),
        helper.make_node("MatMul", ["sigmoid", "v"], ["y"], "second"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


class Samples(CalibrationDataReader):
    def __init__(self, size: float) -> None:
        numbers = np.random.default_rng(1).normal(0, size, (16, 16)).astype(np.float32)
        self.left = iter([{"x": numbers}])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.left, None)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return float_model(tmp_path / "f.onnx")


def static(model: Path, name: str, size: float, form: QuantFormat = QuantFormat.QDQ) -> Path:
    path = model.parent / f"{name}.onnx"
    quantize_static(model, path, Samples(size), quant_format=form)
    return path


def compared(one: Path, other: Path) -> ActivationDiff:
    return compare_activations(open_artefact(one), open_artefact(other))


def test_two_forms_of_one_calibration_agree(model: Path) -> None:
    """QDQ and QOperator files hold the same scales, under the same names of float values."""
    qdq = static(model, "a", 1.0)
    found = compared(qdq, static(model, "b", 1.0, QuantFormat.QOperator))
    held = {
        t.name.replace("_QuantizeLinear_Input", ""): numpy_helper.to_array(t)
        for t in onnx.load(qdq).graph.initializer
    }
    assert {pair.left.name for pair in found.compared} >= {"x", "sum", "sigmoid", "y"}
    assert not found.apart
    for pair in found.compared:
        assert pair.left.scale == held[f"{pair.left.name}_scale"]
        zero = 0 if pair.left.zero_point is None else pair.left.zero_point
        assert zero == held[f"{pair.left.name}_zero_point"]


def test_another_calibration_is_told_without_data(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [str(static(model, "a", 1.0)), str(static(model, "b", 3.0))]
    assert run(["diff", *paths]) == 0
    out = capfd.readouterr().out
    said = " ".join(out.split())
    assert said.startswith("A and B hold the same numbers in all of the 3 weights that both have.")
    assert "The activations have other scales or zero points in 5 of 5." in said
    assert "Activations: 5 static int8 in both. Of 5 scales that both store 5 differ; " in said
    assert "nothing was run. What they cost shows with --data." in said
    assert said.count(" static ") == 1
    assert max(map(len, out.splitlines())) <= 80
    rows = [line for line in out.splitlines() if line.startswith("  x ")]
    assert rows, out
    assert run(["diff", *paths, "--json", "-"]) == 0
    activations = json.loads(capfd.readouterr().out)["activations"]
    assert activations["left"] == {"static int8": 5}
    assert (activations["compared"], len(activations["differ"])) == (5, 5)
    assert {each["left"]["name"] for each in activations["differ"]} >= {"x", "sum", "y"}
    assert run(["diff", paths[0], paths[0]]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "The 5 scales and zero points that both store agree; nothing was run." in said
    assert "have other scales" not in said


def test_the_farthest_apart_comes_first(model: Path) -> None:
    found = compared(static(model, "a", 1.0), static(model, "b", 3.0))
    ratios = [pair.ratio for pair in found.apart]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > 0.5
    assert found.apart[0].left.name in ("x", "first", "sum")


def test_dynamic_against_static(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from onnxruntime.quantization import quantize_dynamic

    dynamic = model.parent / "d.onnx"
    quantize_dynamic(model, dynamic)
    assert run(["diff", str(dynamic), str(static(model, "a", 1.0))]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "A quantizes activations as 2 dynamic uint8; B as 5 static int8." in said
    assert "Only weights were compared: no scale of an activation is stored in both." in said
    assert run(["diff", str(dynamic), str(dynamic)]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "Activations: 2 dynamic uint8 in both. Only weights were compared" in said


def test_rows_of_a_table_are_no_activations(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["rows"]),
        helper.make_node("DequantizeLinear", ["rows", "s", "z"], ["y"]),
    ]
    stored = {"table": np.ones((9, 4), np.uint8), "s": np.float32(0.5), "z": np.uint8(3)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m")
    assert open_artefact(tmp_path / "m").activations == ()


def test_weights_alone_have_no_activations(
    tmp_path: Path, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arrays = {"l.weight": np.ones((8, 8), np.int8), "l.weight_scale": np.ones((8, 1), np.float32)}
    save_file(arrays, tmp_path / "a.safetensors")
    assert run(["diff", *[str(tmp_path / "a.safetensors")] * 2]) == 0
    assert "ctivation" not in capfd.readouterr().out


def named(path: Path) -> dict[str, StoredActivation]:
    return {each.name: each for each in open_artefact(path).activations}


def test_scales_beside_compressed_weights(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arrays = {
        "l.weight": np.ones((8, 8), np.int8),
        "l.weight_scale": np.ones((8, 1), np.float32),
        "l.input_scale": np.array([0.25], np.float32),
        "l.input_zero_point": np.array([-3], np.int8),
        "attn.k_scale": np.array([0.5], np.float32),
        "other_scale": np.ones((8, 1), np.float32),
    }
    save_file(arrays, tmp_path / "a.safetensors")
    found = named(tmp_path / "a.safetensors")
    assert set(found) == {"l.input", "attn.k"}
    each = found["l.input"]
    assert (each.number_format, each.scale, each.zero_point) == ("int8", 0.25, -3)
    save_file(arrays | {"l.input_scale": np.array([0.75], np.float32)}, tmp_path / "b.safetensors")
    assert run(["diff", *(str(tmp_path / f"{name}.safetensors") for name in "ab")]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "The activations have other scales or zero points in 1 of 2." in said
    assert "l.input 0.25, -3 0.75, -3" in said
    assert "--data" not in said
    stated = {"input_activations": {"num_bits": 8, "type": "float", "dynamic": True}}
    settings = {"config_groups": {"group_0": stated | {"targets": ["Linear"]}}}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": settings}))
    dynamic = named(tmp_path / "b.safetensors")["inputs of Linear"]
    assert (dynamic.number_format, dynamic.is_dynamic) == ("float8", True)


def test_what_litert_reads(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(quantized_result(0.125, -7))
    (found,) = open_artefact(path).activations
    details = Interpreter(model_path=str(path)).get_tensor_details()[1]
    assert (found.name, found.number_format) == (details["name"], "int8")
    assert details["quantization_parameters"]["scales"] == found.scale
    assert details["quantization_parameters"]["zero_points"] == found.zero_point


def test_the_grid_of_openvino(tmp_path: Path) -> None:
    """The grid that is read rounds as OpenVINO does."""
    x = ops.parameter([-1, 64], np.float32, name="x")
    ends = [ops.constant(np.array(end, np.float32)) for end in (-1.0, 3.0)]
    y = ops.fake_quantize(x, *ends, *ends, 256)
    path = tmp_path / "m.xml"
    ov.save_model(ov.Model([y], [x]), path, compress_to_fp16=False)
    (found,) = open_artefact(path).activations
    assert found.name == "x"
    assert found.scale == np.float32(4) / np.float32(255)
    assert found.zero_point == 64
    values = np.linspace(-0.9, 2.9, 64, dtype=np.float32).reshape(1, 64)
    theirs = ov.Core().compile_model(path, "CPU")(values)[0]
    assert found.scale is not None
    np.testing.assert_array_equal(
        np.rint((theirs - theirs.min()) / found.scale),
        np.rint((values - theirs.min()) / found.scale),
    )


def test_one_value_with_two_scales(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", f"s{k}", "z"], [f"q{k}"]) for k in range(2)
    ] + [helper.make_node("DequantizeLinear", [f"q{k}", f"s{k}", "z"], [f"y{k}"]) for k in range(2)]
    stored = {"s0": np.float32(0.1), "s1": np.float32(0.2), "z": np.uint8(5)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT, ["n"]) for k in range(2)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in stored.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m")
    found = named(tmp_path / "m")
    assert {
        name: float(each.scale[0]) for name, each in found.items() if each.scale is not None
    } == {
        "x": pytest.approx(0.1),
        "x #2": pytest.approx(0.2),
    }
