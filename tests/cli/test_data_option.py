"""What stands behind --data and --labels."""

from pathlib import Path

import numpy as np
import pytest

from foldmark.cli.data_option import parse_data, parse_labels
from foldmark.errors import DataMismatch, FileUnreadable, NoData
from foldmark.runtimes.sources import FunctionData, RandomData


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (None, None),
        ("random:16", RandomData(16)),
        ("a/mine.py:load", FunctionData(Path("a/mine.py"), "load")),
        ("batch.npz", Path("batch.npz")),
        ("C:/folder", Path("C:/folder")),
    ],
)
def test_data(text, source):
    assert parse_data(text) == source


@pytest.mark.parametrize("text", ["random:", "random:0", "random:-2", "random:x"])
def test_random_needs_a_count(text):
    with pytest.raises(NoData, match="expected random:16"):
        parse_data(text)


def test_labels(tmp_path):
    np.save(tmp_path / "l.npy", np.arange(3, dtype=np.int32))
    np.savez(tmp_path / "one.npz", y=np.arange(4))
    np.savez(tmp_path / "named.npz", x=np.zeros(2), labels=np.arange(5))
    np.savez(tmp_path / "two.npz", a=np.arange(2), b=np.arange(2))
    np.save(tmp_path / "scores.npy", np.array([0.5, 1.5], np.float32))  # of a task's own score
    np.save(tmp_path / "words.npy", np.array(["cat", "dog"]))
    assert parse_labels(None) == (None, "labels")
    assert parse_labels("digit") == (None, "digit")
    for name, size in (("l.npy", 3), ("one.npz", 4), ("named.npz", 5)):
        labels, _ = parse_labels(str(tmp_path / name))
        assert np.array_equal(labels, np.arange(size))
    assert np.array_equal(parse_labels(str(tmp_path / "scores.npy"))[0], [0.5, 1.5])
    for name in ("two.npz", "words.npy"):
        with pytest.raises(DataMismatch, match="no labels here"):
            parse_labels(str(tmp_path / name))
    with pytest.raises(FileUnreadable):
        parse_labels(str(tmp_path / "absent.npy"))
