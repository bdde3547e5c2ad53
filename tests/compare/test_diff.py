"""Two files of one model: aligned across names, layouts and formats, and told apart."""

import json
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

from foldmark.cli.main import run
from foldmark.compare.align import align, canonical_name
from foldmark.compare.diff import Diff, diff_artefacts
from foldmark.errors import ModelsDiffer, NothingQuantized
from foldmark.exact.rounding import Rounding
from foldmark.formats.opening import open_artefact
from foldmark.kernels.fold import quantize_array
from foldmark.rules import ONNXRUNTIME_WEIGHT_INT8

RNG = np.random.default_rng(20270)
WEIGHTS = {
    name: RNG.normal(0, 0.1, shape).astype(np.float32)
    for name, shape in (("a.weight", (64, 96)), ("b.weight", (64, 96)), ("c.weight", (32, 64)))
}


def int8_file(path: Path, weights: dict[str, np.ndarray], rule: object) -> Path:
    arrays = {}
    for name, array in weights.items():
        group = quantize_array(array, (1, array.shape[1]), rule)  # type: ignore[arg-type]
        arrays[name], arrays[f"{name}_scale"] = group.codes, group.scale
    save_file(arrays, path)
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    rule = ONNXRUNTIME_WEIGHT_INT8
    narrower = replace(rule, scale=replace(rule.scale, denominator=128))
    save_file(WEIGHTS, tmp_path / "float.safetensors")
    return (
        int8_file(tmp_path / "a.safetensors", WEIGHTS, rule),
        int8_file(tmp_path / "b.safetensors", WEIGHTS, narrower),
        tmp_path / "float.safetensors",
    )


def compared(*paths: Path) -> Diff:
    return diff_artefacts(*(open_artefact(path) for path in paths))


def test_the_decision_is_named(files: tuple[Path, Path, Path]) -> None:
    found = compared(*files)
    assert len(found.tensors) == 3
    named = [tensor for tensor in found.tensors if tensor.fields]
    assert named
    for tensor in named:
        assert [(f.field, f.left, f.right) for f in tensor.fields] == [("divisor", "127", "128")]
    codes = found.tensors[0].codes
    assert codes is not None
    assert codes.index is not None
    assert round(codes.left_exact) == codes.left  # type: ignore[arg-type]
    assert codes.weight == pytest.approx(float(WEIGHTS["a.weight"][codes.index]))


def test_the_same_file_differs_in_nothing(files: tuple[Path, Path, Path]) -> None:
    found = compared(files[0], files[0], files[2])
    assert all(t.distance == 0 and not t.fields for t in found.tensors)
    assert all(t.codes is not None and t.codes.count == 0 for t in found.tensors)


def test_ties_that_are_not_there_are_not_named(
    files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    rule = ONNXRUNTIME_WEIGHT_INT8
    away = replace(rule, affine=replace(rule.affine, rounding=Rounding.HALF_AWAY))
    other = int8_file(tmp_path / "away.safetensors", WEIGHTS, away)
    found = compared(files[0], other, files[2])
    assert not any(tensor.fields for tensor in found.tensors)


def test_against_onnx_without_names(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Transposed weights under names that say nothing are found by their content."""
    arrays, nodes = {}, []
    for place, (name, array) in enumerate(WEIGHTS.items()):
        group = quantize_array(array, (1, array.shape[1]), ONNXRUNTIME_WEIGHT_INT8)
        arrays[f"q{place}"] = np.ascontiguousarray(group.codes.T)
        arrays[f"s{place}"] = group.scale.reshape(-1)
        nodes.append(
            helper.make_node("DequantizeLinear", [f"q{place}", f"s{place}"], [name], axis=1)
        )
    graph = helper.make_graph(
        nodes,
        "g",
        [],
        [helper.make_tensor_value_info("a.weight", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    found = compared(path, files[0], files[2])
    assert len(found.tensors) == 3
    for tensor in found.tensors:
        assert tensor.distance == 0
        assert "transposed" in tensor.match.evidence
        assert tensor.codes is not None
        assert tensor.codes.count == 0


def test_gguf_names(tmp_path: Path) -> None:
    array = RNG.normal(0, 0.1, (64, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    packed = gguf.quantize(array, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.3.ffn_down.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    name = "model.layers.3.mlp.down_proj.weight"
    save_file({name: array}, tmp_path / "float.safetensors")
    left = open_artefact(tmp_path / "m.gguf").tensors
    right = open_artefact(tmp_path / "float.safetensors").tensors
    (match,) = align(left, right).matches
    assert match.evidence == f"named {name!r}"
    assert not align(left, right).left_over


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("blk.0.attn_q.weight", "layers.0.self_attn.q_proj"),
        ("model.layers.0.self_attn.q_proj.weight", "layers.0.self_attn.q_proj"),
        ("inner.embeddings.word_embeddings.weight_quantized", "embeddings.word_embeddings"),
        ("/encoder/layer.0/dense/weight", "encoder.layer.0.dense"),
        ("output.weight", "lm_head"),
    ],
)
def test_canonical_names(name: str, canonical: str) -> None:
    assert canonical_name(name) == canonical


def arranged(tmp_path: Path, left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> list:
    save_file({k: np.ascontiguousarray(v) for k, v in left.items()}, tmp_path / "l.safetensors")
    save_file({k: np.ascontiguousarray(v) for k, v in right.items()}, tmp_path / "r.safetensors")
    tensors = [open_artefact(tmp_path / f"{side}.safetensors").tensors for side in "lr"]
    alignment = align(*tensors, heads=4)
    assert not alignment.left_over
    for match in alignment.matches:
        np.testing.assert_array_equal(match.load_right(), left[match.left.name])
    return [match.evidence for match in alignment.matches]


def test_fused_rows(tmp_path: Path) -> None:
    parts = [RNG.normal(size=(16, 32)).astype(np.float32) for _ in range(3)]
    names = [f"layers.0.self_attn.{p}_proj.weight" for p in "qkv"]
    whole = {"layers.0.self_attn.qkv_proj.weight": np.concatenate(parts)}
    (evidence,) = arranged(tmp_path, whole, dict(zip(names, parts, strict=True)))
    assert evidence.startswith("made of")


def test_padded_rows(tmp_path: Path) -> None:
    table = RNG.normal(size=(40, 32)).astype(np.float32)
    padded = np.concatenate([table, np.zeros((24, 32), np.float32)])
    (evidence,) = arranged(tmp_path, {"embed.weight": table}, {"embed.weight": padded})
    assert "first 40 of 64 rows" in evidence


def test_rotary_rows(tmp_path: Path) -> None:
    plain = RNG.normal(size=(32, 48)).astype(np.float32)
    moved = plain.reshape(4, 2, 4, 48).swapaxes(1, 2).reshape(32, 48)
    name = "layers.0.self_attn.q_proj.weight"
    (evidence,) = arranged(tmp_path, {"blk.0.attn_q.weight": moved}, {name: plain})
    assert "rotary" in evidence


def test_square_weights_that_lie_transposed(tmp_path: Path) -> None:
    square = RNG.normal(size=(48, 48)).astype(np.float32)
    (evidence,) = arranged(tmp_path, {"w.weight": square.T}, {"w.weight": square})
    assert "transposed" in evidence


def test_files_that_have_nothing_in_common(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    other = {"z.weight": RNG.normal(size=(8, 8)).astype(np.float32)}
    path = int8_file(tmp_path / "z.safetensors", other, ONNXRUNTIME_WEIGHT_INT8)
    with pytest.raises(ModelsDiffer):
        compared(files[0], path)
    with pytest.raises(NothingQuantized):
        compared(files[2], files[2])


def test_the_command(files: tuple[Path, Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    a, b, original = map(str, files)
    assert run(["diff", a, b, "--float", original]) == 0
    out = capfd.readouterr().out
    said = " ".join(out.split())
    assert said.startswith("A and B differ in 3 of the 3 weights that both have. A divides the")
    assert "A divides the range by 127; B divides the range by 128." in said
    assert "ONNXRUNTIME_WEIGHT_INT8" in out
    assert "First code apart: a.weight[" in said
    assert len(out.splitlines()) <= 30
    assert max(map(len, out.splitlines())) <= 80
    assert run(["diff", a, b, "--float", original, "--json", "-"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["schema"] == "foldmark.diff/1"
    assert document["tensors"][0]["fields"][0]["field"] == "divisor"
    assert run(["diff", a, b]) == 0
    assert "--float" in capfd.readouterr().out
    assert run(["diff", a, a]) == 0
    assert "hold the same numbers" in capfd.readouterr().out
