"""What can't fit into memory is refused in one line, before anything long is run."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.derivative.convolutional import mobile
from tests.graphs.networks import draw

import foldmark
from foldmark.cli.main import run
from foldmark.errors import NotEnoughMemory
from foldmark.ledger import room
from foldmark.runtimes import memory

DATA = {"image": draw(4, 3, 16, 16)}


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """So little is free, and so little asked about, that small models count as large."""
    monkeypatch.setattr(room, "_LITTLE", 0)
    monkeypatch.setattr(room, "available_memory", lambda: 10_000)


def test_weights_that_do_not_fit(
    little: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, model in zip(("float", "int8"), mobile(), strict=True):
        onnx.save(model, tmp_path / f"{name}.onnx")
    np.savez(tmp_path / "data.npz", **DATA)
    models = [str(tmp_path / f"{name}.onnx") for name in ("float", "int8")]
    assert run(["explain", *models, "--data", str(tmp_path / "data.npz")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "explaining it does not fit in memory" in said[0]
    assert "--quantized-only" in said[0]


def test_a_batch_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_LITTLE", 0)
    monkeypatch.setattr(room, "available_memory", lambda: 800_000)
    with pytest.raises(NotEnoughMemory, match=r"Try --batch-size 1$"):
        foldmark.explain(*mobile(), DATA, batch_size=4)
    assert foldmark.explain(*mobile(), DATA, batch_size=1, cures=False).entries


def test_what_is_free_is_asked_of_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable:   700 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    assert memory.available_memory() == 700 * 1024
    for name, text in {"max": "500000", "current": "300000", "stat": "inactive_file 90000"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory.available_memory() == 290000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_memory() == 700 * 1024
    (tmp_path / "meminfo").unlink()
    assert memory.available_memory() is None
