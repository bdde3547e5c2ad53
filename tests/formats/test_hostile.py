"""Files from strangers: an error of our own tree or a correct read, never anything else."""

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.formats.seeds import FORMATS, mutants, seed_files
from tests.formats.seeds import write_files as write
from tests.formats.tflite_models import listed_model

from foldmark.cli.main import run
from foldmark.compare.document import inspection_document
from foldmark.compare.inspection import inspect_artefact
from foldmark.errors import (
    FileUnreadable,
    FoldmarkError,
    FormatNotRecognised,
    HostileFile,
    NotSupported,
)
from foldmark.formats.opening import open_artefact

_MUTANTS = 250


def read_fully(path: Path) -> dict[str, object]:
    artefact = open_artefact(path)
    try:
        inspection = inspect_artefact(artefact)
        assert sum(inspection.account.values()) == artefact.size
        return inspection_document(inspection)
    finally:
        artefact.close()


@pytest.mark.parametrize("name", FORMATS)
def test_the_seed_is_honest(name: str, tmp_path: Path) -> None:
    document = read_fully(write(tmp_path, seed_files(name)))
    assert document["tensors"]
    assert any(t["block"] for t in document["tensors"]) or name == "npy"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_files(name: str, tmp_path: Path) -> None:
    read = 0
    for files in mutants(seed_files(name), _MUTANTS, seed=1):
        path = write(tmp_path, files)
        try:
            read_fully(path)
            read += 1
        except FoldmarkError as error:
            assert str(error).isprintable()
    assert 0 < read < _MUTANTS


def shards(**names: str) -> bytes:
    return json.dumps({"weight_map": names}).encode()


def link_out(folder: Path, name: str) -> None:
    """Put a link where a file is expected, to something that is not the model's."""
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("/etc/hostname")


def link_loop(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(name)


@pytest.mark.parametrize("tamper", [link_out, link_loop])
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("ONNX", "m.data"),
        ("safetensors, sharded", "1.safetensors"),
        ("OpenVINO IR", "m.bin"),
    ],
)
def test_links(
    tamper: Callable[[Path, str], None],
    name: str,
    file: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = write(tmp_path, seed_files(name))
    tamper(tmp_path, file)
    assert run(["inspect", str(path)]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    host = Path("/etc/hostname")
    assert not host.exists() or host.read_text().strip() not in err or not host.read_text().strip()


@pytest.mark.parametrize(
    "location", ["/etc/passwd", "../m.data", "m.onnx", "C:/x", "a\0b", ".", "x" * 5000]
)
def test_external_locations(location: str, tmp_path: Path) -> None:
    """A location that leads out, or back to the model itself where nothing of the sort lies."""
    model = onnx.ModelProto()
    model.ParseFromString(seed_files("ONNX")["m.onnx"])
    for entry in model.graph.initializer[-1].external_data:
        if entry.key == "location":
            entry.value = location
        if entry.key == "offset":
            entry.value = str(1 << 40)
    content = model.SerializeToString()
    with pytest.raises(FoldmarkError):
        read_fully(write(tmp_path, {"m.onnx": content, "m.data": bytes(64)}))


@pytest.mark.parametrize(
    "index",
    [
        shards(w="m.index.json"),  # the index itself
        shards(w="../1.safetensors"),
        shards(w="/etc/passwd"),
        shards(w="."),
        shards(w="a\0b"),
        shards(w="\x1b[2J"),
        b'{"weight_map": ' + b"[" * 5000,
        b'{"weight_map": {"w": 3}}',
    ],
)
def test_indices_of_shards(index: bytes, tmp_path: Path) -> None:
    with pytest.raises(FoldmarkError) as caught:
        read_fully(write(tmp_path, {"m.index.json": index}))
    assert str(caught.value).isprintable()


def test_tensors_listed_again_and_again_are_counted(tmp_path: Path) -> None:
    """Subgraphs that point to the same tensors would cost the square of the file's size."""
    constant = (np.zeros((4, 6), int), np.ones(4), np.zeros(4))
    content = listed_model(constant, 0, "int8", 8000)
    with pytest.raises(HostileFile, match="more tensors"):
        read_fully(write(tmp_path, {"m.tflite": content}))


def test_a_compressed_archive_is_no_state_dict(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(seed_files("PyTorch")["m.pt"])) as archive,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as other,
    ):
        for info in archive.infolist():
            other.writestr(info.filename, archive.read(info) + bytes(1 << 20))
    with pytest.raises(NotSupported, match="compressed"):
        open_artefact(write(tmp_path, {"m.pt": packed.getvalue()}))


def test_a_metadata_key_that_stands_twice(tmp_path: Path) -> None:
    pair = (1).to_bytes(8, "little") + b"k" + (0).to_bytes(4, "little") + b"\1"
    content = b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (2).to_bytes(8, "little")
    with pytest.raises(HostileFile, match="twice"):
        open_artefact(write(tmp_path, {"m.gguf": content + pair + pair + bytes(64)}))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x89HDF\r\n", "HDF5"),
        (b"lmgg" + bytes(20), "older than GGUF"),
        (b"\x80\x04\x95" + bytes(20), "pickles"),
        (b"\x1f\x8b\x08", "gzip"),
        (bytes(4) + b"ET12" + bytes(9), "ExecuTorch"),
    ],
)
def test_known_and_not_read(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(content)
    with pytest.raises(NotSupported, match=words):
        open_artefact(tmp_path / "m.bin")


def test_unknown_bytes(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"hello, world")
    with pytest.raises(FormatNotRecognised, match="68 65 6c"):
        open_artefact(tmp_path / "m.bin")


@pytest.mark.parametrize("path", ["missing.gguf", ".", "empty"])
def test_the_command_says_one_line(
    path: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").touch()
    assert run(["inspect", str(tmp_path / path)]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("foldmark: ")


def test_a_path_with_a_nul() -> None:
    with pytest.raises(FileUnreadable):
        open_artefact(Path("a\0b"))


def test_names_cannot_move_the_cursor(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = seed_files("GGUF")
    content = files["m.gguf"].replace(b"Q8_0", b"\x1b[2J")
    path = write(tmp_path, {"m.gguf": content})
    assert run(["inspect", str(path)]) == 0
    assert "\x1b" not in capfd.readouterr().out


def test_a_file_kept_until_the_interpreter_ends_says_nothing(tmp_path: Path) -> None:
    """Modules are taken apart before the last objects are."""
    (tmp_path / "m").write_bytes(b"content")
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from foldmark.formats.source import FileBytes\n"
        "os.kept = FileBytes(Path(sys.argv[1]))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "m")]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ended.stderr == ""
