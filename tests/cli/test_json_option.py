"""Where --json may write, and that nothing is lost by it."""

import os
from pathlib import Path

import pytest

from foldmark.cli.json_option import check_json, write_json
from foldmark.errors import FileUnreadable, OutputExists


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (".", "a directory"),
        ("", "--json '': can't be written; got a directory"),
        ("gone/report.json", "no such folder"),
        ("x" * 300, "file name too long"),
    ],
)
def test_targets_that_cannot_be_written(tmp_path, monkeypatch, target, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileUnreadable, match=text):
        check_json(target)
    assert not list(tmp_path.iterdir())


def test_an_input_is_not_overwritten(tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(b"weights")
    (tmp_path / "same.onnx").symlink_to(model)
    for name in ("model.onnx", "same.onnx"):
        with pytest.raises(OutputExists, match="another of the command"):
            check_json(str(tmp_path / name), [None, tmp_path / "absent.npz", model])
    check_json(str(tmp_path / "report.json"), [model])
    with pytest.raises(OutputExists):
        check_json(str(tmp_path / "absent.npz"), [tmp_path / "absent.npz"])


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    target = tmp_path / "report.json"
    target.write_text("old")
    write_json({"schema": "x/1"}, str(target))
    assert target.read_text() == '{\n  "schema": "x/1"\n}\n'
    assert list(tmp_path.iterdir()) == [target]


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_json({"a": 1}, str(pipe))
    assert os.read(reader, 100) == b'{\n  "a": 1\n}\n'
    os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no such device here")
def test_a_full_disk_is_said(tmp_path):
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    with pytest.raises(FileUnreadable, match="no space left on device"):
        write_json({"a": 1}, str(link))
