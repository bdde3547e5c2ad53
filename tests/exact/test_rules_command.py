"""`foldmark rules`: what it prints, what it writes, and how it ends."""

import json
from pathlib import Path

import pytest

from foldmark.cli.main import run
from foldmark.exact.tools import CATALOGUE

ANSWERS = Path(__file__).parents[1] / "vectors" / "answers.json"


@pytest.fixture
def few_answers(tmp_path: Path) -> Path:
    vectors = json.loads(ANSWERS.read_text())["vectors"]
    path = tmp_path / "few.json"
    path.write_text(json.dumps({"vectors": [v for v in vectors if v["id"].startswith("inc.")]}))
    return path


def test_the_catalogue_is_listed_within_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{len(CATALOGUE)} entries")
    assert max(map(len, lines)) <= 80
    assert all(any(line.startswith(name) for line in lines) for name in CATALOGUE)


def test_one_rule_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "ggml-q8-0"]) == 0
    out = capsys.readouterr().out
    assert "quantize_row_q8_0_ref" in out
    assert "affine.rounding          half away" in out


def test_two_rules_are_worked_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "GGML_Q8_0", "GGML_Q8_0_ACTIVATION_ARM"]) == 0
    out = capsys.readouterr().out
    assert "differ in 1 field." in out
    assert "They part on [127, 0.5] (float32):" in out
    assert "x = 0.5: x * 1 = 0.5, rounded to nearest, ties away from zero: code 1" in out
    assert "x = 0.5: x * 1 = 0.5, rounded to nearest, ties to even: code 0" in out


def test_two_operators_are_worked_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "TORCH_2_13_PER_TENSOR_INT8", "TORCH_QUANTIZE_INT8"]) == 0
    out = capsys.readouterr().out
    assert "They part on [0.5], scale 1, zero point 1 (float32):" in out
    line = "x = 0.5: x * 1 + 1 rounded once = 1.5, rounded to nearest, ties to even: code 2"
    assert line in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_a_name_misspelt_is_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "GGML_Q8"]) == 2
    assert "Did you mean GGML_Q8_0?" in capsys.readouterr().err


def test_agreement_ends_well(few_answers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "--check", str(few_answers)]) == 0
    assert "33 of 33 by exact, 33 of 33 by fast" in capsys.readouterr().out


def test_a_difference_ends_with_1(few_answers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(few_answers.read_text())
    document["vectors"][0]["codes"][0] += 1
    document["vectors"][1]["id"] = "unheard.of"
    few_answers.write_text(json.dumps(document))
    assert run(["rules", "--check", str(few_answers)]) == 1
    captured = capsys.readouterr()
    assert "31 of 33 by exact" in captured.out
    assert "codes[0]: 4 instead of 5" in captured.out
    assert "Tools that the catalogue does not know:" in captured.out
    assert "not every vector agrees" in captured.err


ONE = {"id": "inc.x", "input": [1.0], "codes": [7]}
BAD = {
    "nothing": ("", "not JSON"),
    "cut short": ('{"vectors": [{"id": "a"', "not JSON"),
    "a list": ("[]", "no list of vectors"),
    "numbers for vectors": ('{"vectors": [1]}', "vector 0: not a vector"),
    "no input": (json.dumps({"vectors": [{"id": "a"}]}), "expected an id and an input"),
    "nothing in the input": (ONE | {"input": [None]}, "input: not a number; got None"),
    "truth in the input": (ONE | {"input": [True]}, "input: not a number; got True"),
    "text in the scale": (ONE | {"scale": ["big"]}, "scale: not a number; got big"),
    "NaN for a code": (ONE | {"codes": ["NaN"]}, "codes are whole; got nan"),
    "half a code": (ONE | {"codes": [1.5]}, "codes are whole; got 1.5"),
    "a code of 400 digits": (ONE | {"codes": [10**400]}, "codes: not a number"),
    "no answer": (ONE | {"codes": None}, "no answer; expected codes, a scale or a zero point"),
    "another dtype": (ONE | {"input_dtype": ["float32"]}, "unknown dtype"),
    "no scale to be given": (
        {"id": "ort.QuantizeLinear.f32.UINT8.x", "input": [1.0], "codes": [1]},
        "not a vector of",
    ),
}


@pytest.mark.parametrize(("content", "sentence"), BAD.values(), ids=BAD)
def test_what_is_no_vector_costs_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: object, sentence: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content if isinstance(content, str) else json.dumps({"vectors": [content]}))
    assert run(["rules", "--check", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert sentence in captured.err
    assert captured.err.count("\n") == 1


def test_json(few_answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "check.json"
    assert run(["rules", "--check", str(few_answers), "--json", str(target)]) == 0
    written = json.loads(target.read_text())
    assert written["schema"] == "foldmark.rules/1"
    assert written["all_agree"] is True
    capsys.readouterr()
    assert run(["rules", "AWQ_INT4_SYMMETRIC", "INC_INT4_SYMMETRIC", "--json", "-"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert {"scale.precision", "affine.precision"} <= {f["field"] for f in compared["fields"]}
    assert list(tmp_path.glob(".*.part")) == []


def test_a_file_and_rules_together_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "GGML_Q8_0", "--check", "x.json"]) == 2
    assert "takes a file and no rules" in capsys.readouterr().err
