"""The command line as a whole: help, exit codes, errors in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from foldmark.cli import main
from foldmark.cli.main import COMMANDS, program, run


def foldmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "foldmark", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_lists_every_command_within_80_columns() -> None:
    page = foldmark("--help")
    assert page.returncode == 0
    assert all(name in page.stdout for name in COMMANDS)
    assert max(map(len, page.stdout.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_within_80_columns(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3
    assert max(map(len, lines)) <= 80


def test_no_command_shows_the_help_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    captured = capsys.readouterr()
    assert "Usage: foldmark" in captured.out + captured.err


def test_an_unknown_command_is_one_clear_line() -> None:
    answer = foldmark("explian")
    assert answer.returncode == 2
    assert "explian" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from foldmark.cli.main import run; run(['--help']);"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'onnx', 'onnxruntime', 'numba')))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode
        == 0
    )


def test_the_table_is_the_program() -> None:
    assert program.list_commands(None) == list(COMMANDS)  # type: ignore[arg-type]


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no such device here")
def test_output_that_cannot_be_written_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "foldmark", "rules"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert answer.returncode == 2
    assert answer.stderr == "foldmark: no space left on device\n"


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (MemoryError("Unable to allocate 9 TiB"), "not enough memory: Unable to allocate 9 TiB. "),
        (MemoryError(), "not enough memory. Give fewer samples"),
        (OSError(5, "Input/output error", "a.onnx"), "a.onnx: input/output error"),
    ],
)
def test_what_the_machine_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], raised: Exception, said: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(program, "main", fail)
    monkeypatch.setattr(main, "_drop_what_is_unwritten", lambda: None)
    assert run(["rules"]) == 2
    error = capfd.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["diff", "a.onnx"], "missing argument 'B'; see foldmark diff --help"),
        (["verify", "q.onnx", "--speed"], "no such option"),
        (["calibrate", "m.onnx", "a.npz", "-o", "r.json"], "unexpected extra argument (a.npz)"),
        (["inspect"], "missing argument"),
        (["calibrate", "m.onnx", "-o", "r.json", "--bits", "99"], "99 is not in the range"),
    ],
)
def test_words_that_no_command_takes_are_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("foldmark: ")
    assert said in line
    assert line.endswith(f"; see foldmark {words[0]} --help")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["calibrate", "m", "-o", "r", "--data", "a.npz", "--data", "b.npz"], "--data"),
        (["quantize", "m", "-o", "a", "--output", "b"], "--output"),
    ],
)
def test_an_option_of_one_value_given_twice_is_refused(
    words: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert f"{option} is given twice" in capsys.readouterr().err


def test_options_of_many_values_and_flags_may_be_repeated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["calibrate", "m.onnx", "-o", "r.json", "--tensor", "a", "--tensor", "b"]
    assert run([*words, "--force", "--force"]) == 2
    assert "given twice" not in capsys.readouterr().err
