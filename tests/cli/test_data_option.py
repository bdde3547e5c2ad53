"""What stands behind --data and --labels."""

from pathlib import Path

import pytest

from foldmark.cli.data_option import parse_data, parse_labels
from foldmark.errors import NoData
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


def test_labels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("l.txt").write_bytes(b"")
    Path("digit").mkdir()
    assert parse_labels(None) == (None, "labels")
    for name in ("y", "digit"):  # a folder of that name is no file of labels
        assert parse_labels(name) == (None, name)
    for name in ("l.txt", "absent.npy", "absent.npz", "folder/"):
        assert parse_labels(name) == (Path(name), "labels")
