"""What people get wrong when they verify or tune: one line each, exit code 2, nothing written."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.proof import small

from foldmark.cli.main import run
from foldmark.runtimes.onnxruntime import Session

SCRIPT = """
def bad(outputs, labels):
    raise ValueError("no")

def nothing(outputs, labels):
    return float("nan")

def text(outputs, labels):
    return "a"

def none():
    return 1

def rows(outputs, labels):
    return outputs["y"]

def samples():
    raise RuntimeError("boom")
    yield

number = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    real = small.float_matmul()
    for name, built in (
        ("f", real), ("q", small.qdq_matmul()), ("c", small.conv()), ("wn", _with_nan(real)),
        ("out", _other_output()),
    ):  # fmt: skip
        small.saved(built, folder / f"{name}.onnx")
    x, y = small.samples(32)["x"], np.arange(32) % 4
    holed = x.copy()
    holed[0, 3] = np.nan
    for name, arrays in {
        "d": {"x": x}, "nan": {"x": holed}, "wrong": {"z": x}, "f64": {"x": x.astype(float)},
        "rank": {"x": x[0]}, "shape": {"x": x[:, :5]}, "empty": {"x": x[:0]},
        "objects": {"x": np.array([{}] * 3, dtype=object)},
    }.items():  # fmt: skip
        np.savez(folder / f"{name}.npz", **arrays)
    for name, labels in {
        "y": y, "y9": y[:9], "halves": y / 2, "letters": np.array(list("ab")), "large": y + 1000,
    }.items():  # fmt: skip
        np.save(folder / f"{name}.npy", labels)
    (folder / "junk.onnx").write_bytes(b"junk" * 50)
    (folder / "zero.onnx").write_bytes(b"")
    (folder / "cut.onnx").write_bytes((folder / "q.onnx").read_bytes()[:900])
    (folder / "junk.npz").write_bytes(b"PK\3\4junk")
    (folder / "s.py").write_text(SCRIPT)
    (folder / "syntax.py").write_text("def f(:\n")
    (folder / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    (folder / "dir").mkdir()
    return folder


def _with_nan(model):
    made = onnx.ModelProto()
    made.CopyFrom(model)
    weight = onnx.numpy_helper.to_array(made.graph.initializer[0]).copy()
    weight[0, 0] = np.nan
    made.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    return made


def _other_output():
    made = small.float_matmul()
    made.graph.output[0].name = made.graph.node[0].output[0] = "other"
    return made


VERIFY = {"model": "q.onnx", "--float": "f.onnx", "--data": "d.npz"}
TUNE = {"model": "f.onnx", "-o": "t.onnx", "--data": "d.npz", "--max-drop": "0.1"}


def said(folder: Path, command: str, given: dict[str, str], monkeypatch, capsys) -> str:
    """Run a command in the folder; return its one line."""
    monkeypatch.chdir(folder)
    words = [command, given["model"], "--threads", "1"]
    words += ["--seconds", "0.1"] if command == "verify" else []
    for option, value in given.items():
        if option != "model":
            words += [option, value]
    before = {path.name for path in folder.iterdir()}
    assert run(words) == 2
    err = capsys.readouterr().err.strip()
    assert {path.name for path in folder.iterdir()} - before <= {"t.onnx.trials"}
    # A climb says before how far it may go; what is wrong is one line.
    lines = err.splitlines()
    assert [line.startswith("foldmark: ") for line in lines].count(True) == 1
    assert not any(line.startswith("Usage:") for line in lines)
    return lines[-1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "no.onnx"}, "no such file"),
        ({"model": "junk.onnx"}, "not an ONNX model"),
        ({"model": "zero.onnx"}, "empty"),
        ({"model": "cut.onnx"}, "cut short"),
        ({"model": "dir"}, "directory"),
        ({"model": "out.onnx"}, "lacks the output 'y'"),
        ({"--float": "no.onnx"}, "no such file"),
        ({"--float": "wn.onnx"}, "the float model gives NaN"),
        ({"--data": "no.npz"}, "no such file"),
        ({"--data": "nan.npz"}, "nan at (0, 3)"),
        ({"--data": "wrong.npz"}, "no array named 'x'"),
        ({"--data": "f64.npz"}, ".astype('float32')"),
        ({"--data": "rank.npz"}, "wrong rank"),
        ({"--data": "shape.npz"}, "wrong size"),
        ({"--data": "empty.npz"}, "no samples"),
        ({"--data": "objects.npz"}, "plain arrays"),
        ({"--data": "junk.npz"}, "plain arrays"),
        ({"--data": "dir"}, "no .npz"),
        ({"--data": "random:0"}, "how many"),
        ({"--data": "random:x"}, "how many"),
        ({"--data": "s.py:samples"}, "boom"),
        ({"--data": "s.py:nobody"}, "no function 'nobody'"),
        ({"--data": "syntax.py:f"}, "SyntaxError"),
        ({"--data": "leaves.py:f"}, "SystemExit"),
        ({"--labels": "no.npy"}, "no such file"),
        ({"--labels": "y9.npy"}, "y9.npy: fewer labels than samples"),
        ({"--labels": "halves.npy"}, "one integer per sample"),
        ({"--labels": "letters.npy"}, "no labels here"),
        ({"--labels": "large.npy"}, "class that the model has not"),
        ({"--labels": "answers"}, "no array named 'answers'"),
        ({"--score": "s.py:bad"}, "ValueError: no"),
        ({"--score": "s.py:nothing"}, "not a number"),
        ({"--score": "s.py:text"}, "returns a number"),
        ({"--score": "s.py:none"}, "function of (outputs, labels)"),
        ({"--score": "s.py:rows"}, "returns a number"),
        ({"--score": "s.py:number"}, "no function"),
        ({"--score": "s.py"}, "file.py:function"),
        ({"--score": "syntax.py:f"}, "SyntaxError"),
        ({"--score": "leaves.py:f"}, "SystemExit"),
        ({"--score": "s.py:nothing", "--together": "5"}, "multiple of 5"),
        ({"--together": "0"}, "--together"),
        ({"--batch-sizes": "0"}, "--batch-sizes"),
        ({"--batch-sizes": "a,b"}, "--batch-sizes"),
        ({"--seconds": "0"}, "--seconds"),
        ({"--runtime": "tvm"}, "--runtime"),
        ({"--max-drop": "nan"}, "finite"),
        ({"--min-speedup": "fast"}, "finite"),
        ({"--json": "no/dir/p.json"}, "no such folder"),
        ({"--json": "dir"}, "directory"),
    ],
)
def test_verify(folder, change, words, monkeypatch, capsys):
    assert words in said(folder, "verify", VERIFY | change, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "no.onnx"}, "no such file"),
        ({"model": "q.onnx"}, "already quantized"),
        ({"model": "junk.onnx"}, "not an ONNX model"),
        ({"model": "wn.onnx"}, "not finite"),
        ({"-o": "no/t.onnx"}, "no such folder"),
        ({"-o": "dir"}, "directory"),
        ({"-o": "f.onnx"}, "the float model itself"),
        ({"-o": "c.onnx"}, "--force"),
        ({"--data": "nan.npz"}, "nan at (0, 3)"),
        ({"--data": "empty.npz"}, "no samples"),
        ({"--calibration": "wrong.npz"}, "no array named 'x'"),
        ({"--calibration": "no.npz"}, "no such file"),
        ({"--calibration-samples": "0"}, "--calibration-samples"),
        ({"--labels": "y9.npy"}, "y9.npy: fewer labels than samples"),
        ({"--labels": "large.npy"}, "class that the model has not"),
        ({"--score": "s.py:bad"}, "ValueError: no"),
        ({"--max-drop": "nan"}, "finite"),
        ({"--min-speedup": "inf"}, "finite"),
        ({"--batch-size": "0"}, "--batch-size"),
        ({"--json": "no/dir/p.json"}, "no such folder"),
    ],
)
def test_tune(folder, change, words, monkeypatch, capsys):
    assert words in said(folder, "tune", TUNE | change, monkeypatch, capsys)


def test_samples_without_a_label_are_left_out(folder, monkeypatch, capsys):
    """A negative label says that nobody knows: the accuracy is that of the others."""
    monkeypatch.chdir(folder)
    labels = np.load(folder / "y.npy")
    np.save(folder / "some.npy", np.where(np.arange(32) < 30, -1, labels))
    given = ["--float", "f.onnx", "--data", "d.npz", "--seconds", "0.1", "--json", "-"]
    assert run(["verify", "q.onnx", *given, "--labels", "some.npy"]) == 0
    score = json.loads(capsys.readouterr().out)["quality"]["score"]
    best = Session(Path("f.onnx")).run({"x": np.load("d.npz")["x"]})["y"].argmax(1)
    assert score["float_score"] == (best == labels)[30:].mean()
