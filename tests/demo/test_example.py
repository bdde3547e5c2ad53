"""The built-in example is what its training script makes, and its fault is a real one."""

from importlib import resources
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

EXAMPLE = Path(str(resources.files("foldmark.demo")))


def accuracy(path: Path) -> float:
    """Share of the held-out digits that a model reads right in ONNX Runtime."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, dict(np.load(EXAMPLE / "held_out.npz")))
    return float((logits.argmax(1) == np.load(EXAMPLE / "labels.npy")).mean())


def test_it_is_under_a_megabyte() -> None:
    assert sum(path.stat().st_size for path in EXAMPLE.iterdir() if path.is_file()) < 1_000_000


def test_default_int8_really_breaks_it() -> None:
    assert accuracy(EXAMPLE / "model.onnx") > 0.97
    assert accuracy(EXAMPLE / "model.int8.onnx") < 0.5


def test_held_out_images_were_not_trained_on() -> None:
    train_demo = pytest.importorskip("train_demo")
    pixels, labels = train_demo.digits()
    held_out = np.load(EXAMPLE / "held_out.npz")["pixels"]
    assert np.array_equal(held_out, pixels[train_demo.TRAINED_ON :])
    assert np.array_equal(np.load(EXAMPLE / "labels.npy"), labels[train_demo.TRAINED_ON :])


def test_the_training_script_reproduces_it(tmp_path: Path) -> None:
    train_demo = pytest.importorskip("train_demo")
    train_demo.write(tmp_path)
    shipped, made = onnx.load(EXAMPLE / "model.onnx"), onnx.load(tmp_path / "model.onnx")
    assert [n.op_type for n in made.graph.node] == [n.op_type for n in shipped.graph.node]
    # Other processors sum in another order, so weights agree in what they do, not in every bit.
    assert accuracy(tmp_path / "model.onnx") == pytest.approx(
        accuracy(EXAMPLE / "model.onnx"), abs=0.015
    )
    assert accuracy(tmp_path / "model.int8.onnx") < 0.5
