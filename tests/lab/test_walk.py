"""The course as a new learner walks it, in each language, and on a Python without numpy."""

import ast
import json
import os
import re
import shutil
import subprocess
import venv
from pathlib import Path

import click
import pytest
from tests.lab.memory import remembering_steps
from tests.lab.solutions import PLAIN

import foldmark
from foldmark.cli.main import run
from foldmark.lab.exercise import Step
from foldmark.lab.steps import STEPS
from foldmark.lab.words import Language, Words


def functions(source: str) -> dict[str, str]:
    """Return the text of each top-level function of a module."""
    return {
        node.name: ast.get_source_segment(source, node) or ""
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }


RIGHT = functions(PLAIN)
HELPERS = [
    text
    for name, text in RIGHT.items()
    if name not in {one.name for step in STEPS for one in step.functions}
]


def paste(file: Path, names: list[str]) -> None:
    """Put right functions in the place of empty ones, as a learner types them in."""
    text = file.read_text(encoding="utf-8")
    for name in names:
        empty = functions(text)[name]
        text = text.replace(empty, RIGHT[name])
    file.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def remembering() -> tuple[Step, ...]:
    return remembering_steps()


@pytest.mark.parametrize("language", list(Language), ids=lambda language: language.value)
def test_a_learner_walks_from_start_to_all_green(
    language: Language,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    remembering: tuple[Step, ...],
) -> None:
    # The same seed three times over: what is right is computed for the first language only.
    monkeypatch.setattr("foldmark.cli.lab.STEPS", remembering)
    words = Words(language)
    folder = tmp_path / "course"
    assert run(["lab", "start", str(folder), "--lang", language.value]) == 0
    assert str(folder / "quant.py") in capsys.readouterr().out
    file = folder / "quant.py"

    # Everything is still to be written, and the grader says so in the learner's language.
    assert run(["lab", "check", str(file), "--seed", "1"]) == 1
    told = capsys.readouterr().out
    assert told.splitlines()[0] == words.say(
        "check", "some_pass", passed=0, count=16, number=1, title=words.title(1, "rounding")
    )
    assert f"round_half_even: {words.say('stop', 'not_written')}" in told
    assert told.count(words.say("check", "todo")) >= 16

    # What the text tells to import and to help oneself with comes first.
    helpers = "import math\n\n\n" + "\n\n\n".join(HELPERS) + "\n\n\n"
    file.write_text(helpers + file.read_text(encoding="utf-8"), encoding="utf-8")
    for step in STEPS:
        paste(file, [one.name for one in step.functions])
        arguments = ["lab", "check", str(file), "--step", str(step.number), "--seed", "1"]
        assert run(arguments) == 0, capsys.readouterr().out
        assert capsys.readouterr().out.startswith(words.say("check", "all_pass", count=1))
    assert run(["lab", "check", str(folder), "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith(words.say("check", "all_pass", count=16))


@pytest.mark.parametrize("language", list(Language), ids=lambda language: language.value)
def test_a_failure_is_worked_by_hand_in_the_learners_language(
    language: Language, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "quant.py"
    file.write_text(
        "import math\ndef quantize_symmetric(values, scale):\n"
        "    return [max(-127, min(127, math.floor(x / scale + 0.5))) for x in values]\n"
    )
    arguments = ["lab", "check", str(file), "--step", "2", "--seed", "3", "--lang", language.value]
    assert run(arguments) == 1
    told = capsys.readouterr().out
    words = Words(language)
    smallest = "values = [0.5], scale = 1.0"
    assert words.say("problem", "code", arguments=smallest, got=1, expected=0) in told
    assert words.say("work", "tie_even", value=0.5, low=0, high=1, code=0) in told
    assert words.say("mistake", "half_up") in told


def test_the_language_is_remembered_and_can_be_overruled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "ja_JP.UTF-8")
    assert run(["lab", "start", str(tmp_path / "a"), "--lang", "ko"]) == 0
    assert run(["lab", "start", str(tmp_path / "b")]) == 0
    capsys.readouterr()
    run(["lab", "check", str(tmp_path / "a"), "--step", "1"])
    assert "1단계" in capsys.readouterr().out
    run(["lab", "check", str(tmp_path / "b"), "--step", "1"])
    assert "ステップ1" in capsys.readouterr().out
    run(["lab", "check", str(tmp_path / "b"), "--step", "1", "--lang", "en"])
    assert "Step 1" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "a")
    run(["lab", "check", "--step", "1"])
    assert "1단계" in capsys.readouterr().out


def test_start_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "quant.py").write_text("mine = 1\n")
    assert run(["lab", "start", str(tmp_path)]) == 2
    assert "quant.py" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["quant.py"]
    assert (tmp_path / "quant.py").read_text() == "mine = 1\n"
    assert run(["lab", "start", str(tmp_path / "quant.py")]) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"x = (", "line 1"),
        (b"1 / 0", "ZeroDivisionError"),
        (b"import sys\nsys.exit(0)", "sys.exit"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"#" * (2 << 20), "too large"),
        (None, "foldmark lab start"),
    ],
)
def test_a_file_that_cannot_be_used_costs_one_line_and_exit_code_2(
    text: bytes | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "quant.py"
    if text is not None:
        file.write_bytes(text)
    assert run(["lab", "check", str(file), "--lang", "en"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert said in captured.err


def test_a_refused_import_is_named_and_the_file_still_graded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "quant.py"
    file.write_text("import math\nimport numpy as np\n" + PLAIN)
    assert run(["lab", "check", str(file), "--step", "1", "--lang", "en"]) == 1
    assert "line 2 imports numpy" in capsys.readouterr().out
    inside = PLAIN.replace("def codes_used(codes):", "def codes_used(codes):\n    import numpy")
    file.write_text(inside)
    assert run(["lab", "check", str(file), *(f"--step={n}" for n in (4, 5)), "--lang", "en"]) == 1
    told = capsys.readouterr().out
    assert "1 of 2 steps pass" in told
    assert "imports numpy" in told


def test_json_for_course_platforms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "quant.py", tmp_path / "grade.json"
    file.write_text(PLAIN.replace("/ 127", "/ 128", 1))
    arguments = ["lab", "check", str(file), "--step", "1", "--step", "2", "--seed", "4"]
    assert run([*arguments, "--json", str(out), "--lang", "en"]) == 1
    assert "1 of 2 steps pass" in capsys.readouterr().out
    data = json.loads(out.read_text(encoding="utf-8"))
    assert data["schema"] == "foldmark.lab/1"
    assert (data["seed"], data["passed"], data["language"]) == (4, False, "en")
    assert [step["passed"] for step in data["steps"]] == [True, False]
    wrong = data["steps"][1]["functions"][0]
    assert wrong["name"] == "symmetric_scale"
    assert wrong["problem"]["mistake"] == "scale_128"
    assert wrong["problem"]["expected"] == pytest.approx(wrong["problem"]["got"] * 128 / 127)
    assert "128" in wrong["problem"]["message"]
    assert run([*arguments, "--json", "-"]) == 1
    assert json.loads(capsys.readouterr().out)["seed"] == 4


def test_a_results_file_for_gradescope(tmp_path: Path) -> None:
    file, out = tmp_path / "quant.py", tmp_path / "results.json"
    file.write_text(PLAIN.replace("/ 127", "/ 128", 1))
    arguments = ["lab", "check", str(file), "--step", "1", "--step", "2", "--lang", "ko"]
    assert run([*arguments, "--gradescope", str(out)]) == 1
    data = json.loads(out.read_text(encoding="utf-8"))
    assert [(t["number"], t["score"], t["max_score"], t["status"]) for t in data["tests"]] == [
        ("1", 1.0, 1.0, "passed"),
        ("2", 0.0, 1.0, "failed"),
    ]
    assert data["tests"][0]["output"] == ""
    assert "128" in data["tests"][1]["output"]
    assert data["execution_time"] > 0
    assert set(data) == {"output", "execution_time", "tests"}


def test_infinite_and_strange_answers_stay_valid_json(tmp_path: Path) -> None:
    file, out = tmp_path / "quant.py", tmp_path / "grade.json"
    file.write_text("def symmetric_scale(values):\n    return float('nan')\n")
    assert run(["lab", "check", str(file), "--step", "2", "--json", str(out)]) == 1
    json.loads(out.read_text(), parse_constant=pytest.fail)


def test_the_table_fits_eighty_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from foldmark.lab.words import pad

    for language in Language:
        folder = tmp_path / language.value
        run(["lab", "start", str(folder), "--lang", language.value])
        capsys.readouterr()
        run(["lab", "check", str(folder)])
        table = re.findall(r"^ +\d+ .*$", capsys.readouterr().out, re.MULTILINE)
        assert len(table) == 16
        for line in table:
            assert len(pad(line, 80)) - len(line) >= 0
            assert pad(line, 80) != line, line


def test_no_colour_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["lab", "start", str(tmp_path / "c")])
    run(["lab", "check", str(tmp_path / "c"), "--step", "1"])
    assert "\x1b" not in capsys.readouterr().out


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Make a Python that has click, which the command line needs, and no other package."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home / "venv", with_pip=False, symlinks=True)
    packages = home / "packages"
    # Copied, since what is installed lies beside numpy.
    for package in (click, foldmark):
        shutil.copytree(Path(str(package.__file__)).parent, packages / package.__name__)
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": str(packages),
        "LANG": "ja_JP.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8",
    }
    return home / "venv" / "bin" / "python", environment


def test_the_course_runs_on_a_python_without_numpy(
    bare_python: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    python, environment = bare_python

    def say(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(python), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            encoding="utf-8",
            cwd=tmp_path,
            check=False,
        )

    assert "No module named 'numpy'" in say("-c", "import numpy").stderr
    started = say("-m", "foldmark", "lab", "start", "course")
    assert started.returncode == 0, started.stderr
    assert "教科書" in started.stdout
    assert say("-m", "foldmark", "lab", "check", "course").returncode == 1
    (tmp_path / "course" / "quant.py").write_text(PLAIN, encoding="utf-8")
    checked = say("-m", "foldmark", "lab", "check", "course")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.startswith("採点した16ステップはすべて合格です")
