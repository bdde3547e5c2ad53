"""Two files of one model: aligned across names, layouts and formats, and told apart."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import gguf
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file
from tests.compare.aligning import arranged

from foldmark.cli.main import run
from foldmark.compare import diff as diff_module
from foldmark.compare import sampling, searching
from foldmark.compare.align import align
from foldmark.compare.diff import Diff, diff_artefacts
from foldmark.compare.naming import canonical_name
from foldmark.errors import ModelsDiffer, NothingQuantized
from foldmark.exact.catalog import INT8
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import Rule, ZeroPointRule
from foldmark.formats.opening import open_artefact
from foldmark.kernels.fold import quantize_array
from foldmark.report.difference_text import render
from foldmark.rules import ONNXRUNTIME_MATMULNBITS_8_SYMMETRIC, ONNXRUNTIME_WEIGHT_INT8

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
        ("layers.0.fc.weight_DQ_Q4", "layers.0.fc"),
        ("layers.0.fc.weight_Q8", "layers.0.fc"),
    ],
)
def test_canonical_names(name: str, canonical: str) -> None:
    assert canonical_name(name) == canonical


def test_fused_rows(tmp_path: Path) -> None:
    parts = [RNG.normal(size=(16, 32)).astype(np.float32) for _ in range(3)]
    names = [f"layers.0.self_attn.{p}_proj.weight" for p in "qkv"]
    whole = {"layers.0.self_attn.qkv_proj.weight": np.concatenate(parts)}
    (evidence,) = arranged(tmp_path, whole, dict(zip(names, parts, strict=True)))
    assert evidence.startswith("made of")


@pytest.mark.parametrize("whole_is_left", [False, True])
@pytest.mark.parametrize("ggml", [False, True])
def test_fused_gate_and_up(tmp_path: Path, whole_is_left: bool, ggml: bool) -> None:
    parts = [RNG.normal(size=(24, 32)).astype(np.float32) for _ in range(2)]
    names = [f"model.layers.0.mlp.{p}_proj.weight" for p in ("gate", "up")]
    whole = {"layers.0.mlp.gate_up_proj.weight": np.concatenate(parts)}
    apart = dict(zip(names, parts, strict=True))
    if ggml:
        apart = {f"blk.0.ffn_{n}.weight": p for n, p in zip(("gate", "up"), parts, strict=True)}
    evidence = arranged(tmp_path, *((whole, apart) if whole_is_left else (apart, whole)))
    if whole_is_left:
        assert evidence == [f"made of {', '.join(map(repr, apart))} (cosine 1.0000)"]
    else:
        assert [each.split(" of ")[0] for each in evidence] == ["the first 24", "rows 24 to 47"]


def test_parts_of_a_fused_weight(tmp_path: Path) -> None:
    parts = [RNG.normal(size=(rows, 32)).astype(np.float32) for rows in (16, 8, 8)]
    names = [f"layers.0.self_attn.{p}_proj.weight" for p in "qkv"]
    whole = {"layers.0.self_attn.qkv_proj.weight": np.concatenate(parts)}
    evidence = arranged(tmp_path, dict(zip(names, parts, strict=True)), whole)
    assert {each.split(" of ")[0] for each in evidence} == {
        "the first 16",
        "rows 16 to 23",
        "rows 24 to 31",
    }
    assert all("'layers.0.self_attn.qkv_proj.weight' (cosine 1.0000)" in each for each in evidence)


@pytest.mark.parametrize("name", ["layers.1.mlp.experts.gate_proj", "blk.1.ffn_gate_exps"])
@pytest.mark.parametrize("whole_is_left", [False, True])
def test_experts(tmp_path: Path, name: str, whole_is_left: bool) -> None:
    experts = RNG.normal(size=(5, 24, 32)).astype(np.float32)
    whole = {f"{name}.weight": experts}
    names = [f"model.layers.1.block_sparse_moe.experts.{k}.w1.weight" for k in range(5)]
    parts = dict(zip(names, experts, strict=True))
    evidence = arranged(tmp_path, *((whole, parts) if whole_is_left else (parts, whole)))
    assert len(evidence) == (1 if whole_is_left else 5)
    assert evidence[0].startswith("made of 5 experts" if whole_is_left else "expert 0 of ")


def test_experts_of_other_weights_are_left_over(tmp_path: Path) -> None:
    whole = {"blk.1.ffn_gate_exps.weight": RNG.normal(size=(3, 24, 32)).astype(np.float32)}
    parts = {
        f"layers.1.mlp.experts.{k}.gate_proj.weight": RNG.normal(size=(24, 32)).astype(np.float32)
        for k in range(3)
    }
    save_file(whole, tmp_path / "l.safetensors")
    save_file(parts, tmp_path / "r.safetensors")
    sides = [open_artefact(tmp_path / f"{side}.safetensors").tensors for side in "lr"]
    found = align(*sides)
    assert (len(found.matches), len(found.left_over), len(found.right_over)) == (0, 1, 3)


@pytest.mark.parametrize("axis", [0, 1])
def test_padding_on_this_side(tmp_path: Path, axis: int) -> None:
    plain = RNG.normal(size=(40, 32)).astype(np.float32)
    padded = np.pad(plain, [(0, 8), (0, 0)] if axis == 0 else [(0, 0), (0, 8)])
    (evidence,) = arranged(tmp_path, {"embed.weight": padded}, {"embed.weight": plain})
    assert f"8 more {('rows', 'columns')[axis]} here" in evidence


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("form", ["plain", "rotary", "fused"])
def test_large_weights_are_aligned_by_samples(
    tmp_path: Path, form: str, transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same answers when no more than some rows or columns are ever read."""
    monkeypatch.setattr(sampling, "_WHOLE", 1 << 10)
    monkeypatch.setattr(sampling, "_ELEMENTS", 1 << 9)
    weights = [RNG.normal(size=(96, 64)).astype(np.float32) for _ in range(3)]
    names = [f"layers.0.self_attn.{p}_proj.weight" for p in "qkv"]
    right = dict(zip(names, weights, strict=True))
    left = dict(right)
    if form == "rotary":
        left[names[0]] = weights[0].reshape(6, 2, 8, 64).swapaxes(1, 2).reshape(96, 64)
    if form == "fused":
        left = {"layers.0.self_attn.qkv_proj.weight": np.concatenate(weights)}
    elif transposed and form == "plain":
        left = {f"t{k}": w.T for k, w in enumerate(weights)}
    evidence = arranged(tmp_path, left, right)
    expected = {"rotary": "rotary rows", "fused": "made of", "plain": "transposed"}[form]
    if form != "plain" or transposed:
        assert any(expected in words for words in evidence)


def test_samples_say_what_all_numbers_say(
    files: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compared(*files)
    monkeypatch.setattr(diff_module, "_FULL", 0)
    monkeypatch.setattr(sampling, "_WHOLE", 0)
    monkeypatch.setattr(sampling, "_ELEMENTS", 1 << 10)
    monkeypatch.setattr(searching, "_HEAD", 1 << 11)
    some = compared(*files)
    assert [t.match.left.name for t in some.tensors] == [t.match.left.name for t in whole.tensors]
    for one, other in zip(some.tensors, whole.tensors, strict=True):
        assert one.sampled is not None
        assert one.sampled < one.match.left.elements
        assert one.distance == pytest.approx(other.distance, rel=0.25)
        assert one.left_error == pytest.approx(other.left_error, rel=0.25)
        assert one.codes is not None
        assert one.codes.index is not None
        name, place = one.match.left.name, one.codes.index
        assert one.codes.weight == pytest.approx(float(WEIGHTS[name][place]))
        assert round(one.codes.left_exact) == one.codes.left  # type: ignore[arg-type]
    named = [t.fields for t in some.tensors if t.fields]
    assert named
    assert all(
        [(f.field, f.left, f.right) for f in n] == [("divisor", "127", "128")] for n in named
    )
    fewest = min(t.sampled for t in some.tensors if t.sampled is not None)
    said = " ".join(render(some, None, everything=False).split())
    assert f"Of 3 of the 3 weights samples were compared, {fewest:,} numbers of each" in said
    assert "samples were compared" not in render(whole, None, everything=False)


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


def test_vectors_before_the_weights_do_not_speak_for_them(tmp_path: Path) -> None:
    exact = {f"{n}.bias": RNG.normal(size=64).astype(np.float32) for n in "abc"}
    exact |= {f"{n}.weight": RNG.normal(size=(64, 96)).astype(np.float32) for n in "xyz"}
    save_file(exact, tmp_path / "f.safetensors")
    for name, steps in (("l", 127), ("r", 128)):
        arrays = {}
        for key, array in exact.items():
            # biases alike in both, weights by two rules
            limit = np.abs(array).max(axis=-1, keepdims=True)
            scale = limit / np.float32(steps if array.ndim > 1 else 127)
            arrays[key] = np.clip(np.rint(array / scale), -127, 127).astype(np.int8)
            arrays[f"{key}_scale"] = scale
        save_file(arrays, tmp_path / f"{name}.safetensors")
    found = compared(*(tmp_path / f"{name}.safetensors" for name in "lrf"))
    searched = {t.match.left.name for t in found.tensors if t.left is not None}
    assert searched == {"a.bias", "b.bias", "x.weight", "y.weight"}
    named = {f.field for t in found.tensors for f in t.fields}
    assert "divisor" in named
    assert "A: int8 per axis 0; scale absmax / 127 " in render(found, None, everything=False)


def test_weights_that_one_side_leaves_in_float_are_counted(
    files: tuple[Path, Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mixed, exact = load_file(files[0]), load_file(files[2])
    for name in ("a.weight", "a.weight_scale"):
        del mixed[name]
    save_file(mixed | {"a.weight": exact["a.weight"]}, tmp_path / "mixed.safetensors")
    pair = [str(tmp_path / "mixed.safetensors"), str(files[0])]
    assert run(["diff", *pair, "--float", str(files[2])]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "A leaves weights in float that the other quantizes." in said
    assert "left in float float quantized 1 of 3" in said


@pytest.mark.parametrize("decoder", ["DequantizeLinear", "MatMulInteger", "Cast, Mul"])
def test_weights_that_an_exporter_named_are_called_by_their_module(
    decoder: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    codes = RNG.integers(-127, 128, (64, 32)).astype(np.int8)
    value = "val_118"
    if decoder == "DequantizeLinear":
        nodes = [helper.make_node(decoder, [value, "s", "z"], ["w"])]
        nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"], name="/layer.3/ff/MatMul"))
    elif decoder == "MatMulInteger":
        nodes = [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
            helper.make_node(
                decoder, ["q", value, "qz", "z"], ["i"], name="/layer.3/ff/MatMul_quant"
            ),
            helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["qs", "s"], ["both"]),
            helper.make_node("Mul", ["f", "both"], ["y"]),
        ]
    else:
        nodes = [
            helper.make_node("Cast", ["codes"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["f", "s"], [value]),
            helper.make_node("MatMul", ["x", value], ["y"], name="/layer.3/ff/MatMul"),
        ]
    stored = {
        "codes" if decoder == "Cast, Mul" else value: codes,
        "s": np.float32(0.01),
        "z": np.int8(0),
    }
    paths = []
    for name in ("a", "b"):
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 32])],
            [numpy_helper.from_array(np.asarray(array), key) for key, array in stored.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
        model.ir_version = 10
        paths.append(str(tmp_path / f"{name}.onnx"))
        onnx.save(model, paths[-1])
        codes[3, 5] += np.int8(1) if codes[3, 5] < 127 else np.int8(-1)
    assert run(["inspect", paths[0]]) == 0
    out = capfd.readouterr().out
    assert "\nlayer.3/ff " in out
    assert f"\n  named {value} in the file\n" in out
    assert run(["diff", *paths]) == 0
    out = capfd.readouterr().out
    assert "First code apart: layer.3/ff[3, 5], " in out
    assert run(["diff", *paths, "--json", "-"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert [each["module"] for each in document["tensors"]] == ["layer.3/ff"]


def test_files_that_have_nothing_in_common(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    other = {"z.weight": RNG.normal(size=(8, 8)).astype(np.float32)}
    path = int8_file(tmp_path / "z.safetensors", other, ONNXRUNTIME_WEIGHT_INT8)
    with pytest.raises(ModelsDiffer):
        compared(files[0], path)
    with pytest.raises(NothingQuantized):
        compared(files[2], files[2])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [0.0, np.nan, np.inf])
def test_numbers_that_are_none_are_said_plainly(
    files: tuple[Path, Path, Path], tmp_path: Path, scale: float, capfd: pytest.CaptureFixture[str]
) -> None:
    arrays = load_file(files[0])
    for name in arrays:
        if name.endswith("_scale"):
            arrays[name][:] = scale
    save_file(arrays, tmp_path / "odd.safetensors")
    odd, plain, original = (str(p) for p in (tmp_path / "odd.safetensors", files[1], files[2]))
    assert run(["diff", odd, plain, "--float", original]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("A and B differ in 3 of the 3 weights that both have")
    assert not err


def test_a_float_model_of_something_else_is_said(
    files: tuple[Path, Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_file({"x.weight": np.ones((3, 3), np.float32)}, tmp_path / "other.safetensors")
    other = str(tmp_path / "other.safetensors")
    assert run(["diff", str(files[0]), str(files[1]), "--float", other]) == 0
    assert "the float model holds none of them" in " ".join(capfd.readouterr().out.split())


def test_weights_that_the_float_model_holds_quantized_have_no_original(
    files: tuple[Path, Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["diff", str(files[0]), str(files[1]), "--float", str(files[0])]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "the float model holds none of them as floats" in out
    assert "Not in the float model as floats: a.weight, " in out


def test_the_verdict_speaks_of_the_form_that_most_weights_have(tmp_path: Path) -> None:
    """One table per tensor comes first in both files; five matrices follow, of which two are
    searched."""
    table = {"embed.weight": RNG.normal(0, 0.1, (64, 96)).astype(np.float32)}
    matrices = {f"l{k}.weight": RNG.normal(0, 0.1, (32, 64)).astype(np.float32) for k in range(5)}
    rule = ONNXRUNTIME_WEIGHT_INT8
    halves = replace(rule, scale=replace(rule.scale, denominator=Fraction(255, 2)))
    paths = []
    for name, each in (("a", rule), ("b", halves)):
        arrays: dict[str, np.ndarray] = {}
        for key, w in (table | matrices).items():
            block = w.shape if key in table and name == "b" else (1, w.shape[1])
            group = quantize_array(w, block, rule if key in table else each)
            arrays |= {key: group.codes, f"{key}_scale": group.scale}
        paths.append(tmp_path / f"{name}.safetensors")
        save_file(arrays, paths[-1])
    save_file(table | matrices, tmp_path / "f.safetensors")
    text = render(compared(*paths, tmp_path / "f.safetensors"), None, everything=False)
    said = " ".join(text.split())
    assert said.startswith(
        "A and B differ in 6 of the 6 weights that both have. In 5 of them A divides the range by "
        "127; B divides the range by 127.5. First"
    )
    assert "divisor 127 127.5 5 of 6" in said
    assert "block shape per axis 0 per tensor 1 of 6" in said
    assert "(3 weights searched; the others count with their form)" in said
    assert "(--all: all)" in text
    assert max(map(len, text.splitlines())) <= 80


def nbits(path: Path, w: np.ndarray, rule: Rule, *, across: bool) -> Path:
    """Write what two forms of one tool hold: groups along the inputs, with or without z = 8."""
    group = quantize_array(w, (1, 32), rule)
    codes, scale = (np.asarray(a.T if across else a) for a in (group.codes, group.scale))
    arrays = {"a.weight": codes.copy(), "a.weight_scale": scale.copy()}
    if codes.dtype == np.uint8:
        arrays["a.weight_zero_point"] = np.full(scale.shape, 128, np.uint8)
    save_file(arrays, path)
    return path


def test_a_zero_point_added_before_rounding_is_told_from_none(tmp_path: Path) -> None:
    """The same blocks, transposed: no other block shape, but sums that meet a half."""
    w = np.round(RNG.normal(0, 40, (16, 64))).astype(np.float32)
    w[:, ::32] = -128.0  # a scale of one
    w[:, 5] = np.nextafter(np.float32(0.5), np.float32(0))  # a half once 128 is added
    plain = replace(
        ONNXRUNTIME_MATMULNBITS_8_SYMMETRIC,
        affine=replace(ONNXRUNTIME_MATMULNBITS_8_SYMMETRIC.affine, codes=INT8),
        zero_point=ZeroPointRule(),
    )
    one = nbits(tmp_path / "a.safetensors", w, ONNXRUNTIME_MATMULNBITS_8_SYMMETRIC, across=False)
    other = nbits(tmp_path / "b.safetensors", w, plain, across=True)
    save_file({"a.weight": w}, tmp_path / "f.safetensors")
    (tensor,) = compared(one, other, tmp_path / "f.safetensors").tensors
    assert [field.field for field in tensor.fields] == ["order"]
    assert tensor.codes is not None
    assert tensor.codes.count == 16


def test_the_weights_that_differ_are_searched(tmp_path: Path) -> None:
    """Three alike come first; a rule is searched on two."""
    weights = {f"l{k}.weight": RNG.normal(0, 0.1, (32, 64)).astype(np.float32) for k in range(4)}
    rule = ONNXRUNTIME_WEIGHT_INT8
    one = int8_file(tmp_path / "a.safetensors", weights, rule)
    narrower = replace(rule, scale=replace(rule.scale, denominator=128))
    odd = int8_file(tmp_path / "odd.safetensors", {"l3.weight": weights["l3.weight"]}, narrower)
    save_file(load_file(one) | load_file(odd), tmp_path / "b.safetensors")
    save_file(weights, tmp_path / "f.safetensors")
    found = compared(one, tmp_path / "b.safetensors", tmp_path / "f.safetensors")
    assert [field.field for field in found.tensors[3].fields] == ["divisor"]
    said = " ".join(render(found, None, everything=False).split())
    assert said.startswith("A and B differ in 1 of the 4 weights that both have. A divides the")


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
    (rule,) = document["rules"]["left"]
    assert rule["granularity"] == "per axis 0"
    assert "ONNXRUNTIME_WEIGHT_INT8" in rule["consistent_with"]
    assert rule["weights"] == [3, 3]
    assert run(["diff", a, b]) == 0
    assert "--float" in capfd.readouterr().out
    assert run(["diff", a, a]) == 0
    assert "hold the same numbers" in capfd.readouterr().out


def test_a_weight_of_zeros_is_known_by_name_however_it_lies(tmp_path: Path) -> None:
    """Nothing in it tells a transposition: a layer that was pruned away, in an ONNX file."""
    zeros = np.zeros((8, 32), np.float32)
    (evidence,) = arranged(tmp_path, {"l.weight": zeros}, {"l.weight": zeros.T})
    assert evidence == "same name, transposed (both all zero)"


def test_constant_weights_are_told_apart_by_their_size(tmp_path: Path) -> None:
    """The gains of normalizations that were never trained all point in one direction."""
    names = {"first": 0.5, "second": 1.0, "third": 0.25}
    left = {name: np.full(512, size, np.float32) for name, size in names.items()}
    right = {f"g{size}": np.full(512, size, np.float32) for size in sorted(names.values())}
    assert [evidence.split("'")[1] for evidence in arranged(tmp_path, left, right)] == [
        f"g{size}" for size in names.values()
    ]
