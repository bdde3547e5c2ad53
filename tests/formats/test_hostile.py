"""Files from strangers: an error of our own tree or a correct read, never anything else."""

from pathlib import Path

import pytest
from tests.formats.seeds import FORMATS, mutants, seed_files

from foldmark.cli.main import run
from foldmark.compare.document import inspection_document
from foldmark.compare.inspection import inspect_artefact
from foldmark.errors import FileUnreadable, FoldmarkError, FormatNotRecognised, NotSupported
from foldmark.formats.opening import open_artefact

_MUTANTS = 250


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / next(iter(files))


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
