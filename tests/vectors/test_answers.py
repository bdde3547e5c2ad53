"""Every recorded answer of every tool, given again by the catalogue."""

import json
from pathlib import Path

import pytest

from foldmark.compare.check import check_file, check_vectors
from foldmark.compare.engines import ENGINES, Engine
from foldmark.compare.questions import QUESTIONS, question_for
from foldmark.compare.vector_file import read_vectors
from foldmark.errors import DataMismatch, FileUnreadable, FormatNotRecognised
from foldmark.exact.tools import CATALOGUE
from foldmark.exact.tools.entry import Procedure

ANSWERS = Path(__file__).parent / "answers.json"
VECTORS = read_vectors(ANSWERS)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_every_answer(engine: Engine) -> None:
    check = check_vectors(VECTORS, engine)
    assert [(d.vector.id, d.sentences) for d in check.differ] == []
    assert check.unanswered == ()
    assert check.agree == len(VECTORS) == 838


def test_every_question_is_asked() -> None:
    asked = {question_for(vector) for vector in VECTORS}
    assert [q.pattern for q in QUESTIONS if q not in asked] == []


def test_every_procedure_that_was_run_is_asked() -> None:
    asked = {q.entry for q in QUESTIONS}
    procedures = [e for e in CATALOGUE.values() if isinstance(e, Procedure)]
    run = [e.name for e in procedures if "read and not run" not in e.versions]
    assert [name for name in run if name not in asked] == []


def altered(tmp_path: Path, **changes: object) -> Path:
    document = json.loads(ANSWERS.read_text())
    vector = next(v for v in document["vectors"] if v["id"] == "ggml.Q4_0.absmax_tie2")
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"vectors": [vector | changes]}))
    return path


def test_a_wrong_code_is_told(tmp_path: Path) -> None:
    check = check_file(altered(tmp_path, codes=[0, 15, 10, 6, 12] + [8] * 26 + [9]))
    assert not check.all_agree
    assert check.engines[0].differ[0].sentences == ("codes[31]: 8 instead of 9",)


def test_a_wrong_sign_of_a_zero_scale_is_told(tmp_path: Path) -> None:
    zeros = [0.0] * 32
    right = check_file(altered(tmp_path, input=zeros, codes=[8] * 32, scale=[-0.0]))
    wrong = check_file(altered(tmp_path, input=zeros, codes=[8] * 32, scale=[0.0]))
    assert right.all_agree
    assert wrong.engines[0].differ[0].sentences == ("scale[0]: -0.0 instead of 0.0",)


@pytest.mark.parametrize("changes", [{"id": "newtool.x"}, {}], ids=["both", "its name alone"])
def test_an_unknown_tool_is_named(tmp_path: Path, changes: dict[str, str]) -> None:
    check = check_file(altered(tmp_path, tool="newtool 1.0", **changes))
    assert not check.all_agree
    assert [v.tool for v in check.unknown] == ["newtool 1.0"]


@pytest.mark.parametrize("tool", ["", "ggml quantize_row_q4_0_ref", "GGML, of next year"])
def test_a_tool_is_known_by_its_name_however_it_goes_on(tmp_path: Path, tool: str) -> None:
    assert check_file(altered(tmp_path, tool=tool)).all_agree


@pytest.mark.parametrize(
    ("content", "error", "sentence"),
    [
        (b"\xff\xfe", FormatNotRecognised, "not text"),
        (b"{", FormatNotRecognised, "not JSON"),
        (b"[]", FormatNotRecognised, "no list of vectors"),
        (b'{"vectors": [3]}', DataMismatch, "vector 0: not a vector"),
        (b'{"vectors": [{"id": "a", "input": ["x"]}]}', DataMismatch, "not a number; got x"),
        (
            b'{"vectors": [{"id": "a", "input": [1], "input_dtype": "f4"}]}',
            DataMismatch,
            "unknown dtype; got f4",
        ),
    ],
)
def test_refusals(tmp_path: Path, content: bytes, error: type[Exception], sentence: str) -> None:
    path = tmp_path / "vectors.json"
    path.write_bytes(content)
    with pytest.raises(error, match=sentence):
        read_vectors(path)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match="No such file"):
        read_vectors(tmp_path / "none.json")
    with pytest.raises(FileUnreadable, match="directory"):
        read_vectors(tmp_path)
