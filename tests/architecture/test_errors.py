"""The error tree: one code each, each documented, one printable line each."""

import re
from pathlib import Path

import pytest

from foldmark import errors
from foldmark.errors import FoldmarkError

CLASSES = [getattr(errors, name) for name in errors.__all__]
DOCUMENT = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()


def test_codes_are_unique() -> None:
    codes = [error.code for error in CLASSES]
    assert len(set(codes)) == len(codes)


def test_every_class_is_public() -> None:
    def tree(error: type[FoldmarkError]) -> set[type[FoldmarkError]]:
        return {error}.union(*(tree(child) for child in error.__subclasses__()))

    assert {e for e in tree(FoldmarkError) if e.__module__ == errors.__name__} == set(CLASSES)


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_code_is_drawn_and_documented(error: type[FoldmarkError]) -> None:
    assert re.search(rf"{error.__name__}\s+{error.code}", errors.__doc__ or "")
    assert f"| {error.code} | {error.__name__} |" in DOCUMENT


def test_a_sentence_has_its_five_parts() -> None:
    error = FoldmarkError(
        "rank is wrong", where="ids", got="rank 1", expected="rank 2", todo="add a batch axis"
    )
    assert str(error) == "ids: rank is wrong; got rank 1; expected rank 2. Add a batch axis"


def test_a_sentence_is_one_printable_line() -> None:
    assert str(FoldmarkError("bad name", where="a\nb\x00\x1b[31m")) == (
        "a\\nb\\x00\\x1b[31m: bad name"
    )
