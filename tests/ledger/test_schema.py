"""The documented schema and the written one have the same fields."""

import re
from pathlib import Path

import pytest
from tests.faults.planting import ranges_from_the_wrong_data
from tests.models.digits import held_out

import foldmark

PAGE = Path(__file__).parents[2] / "docs" / "explain-json.md"


@pytest.fixture(scope="module")
def document():
    fault = ranges_from_the_wrong_data()
    data = held_out(8)
    return foldmark.explain(fault.float_model, fault.faulty, data, metric="mse").to_json()


def rows(heading: str) -> dict[str, str]:
    part = PAGE.read_text().split(heading)[1].split("\n## ")[0]
    found = re.findall(r"^\| (`[^|]*`) \| (.*) \|$", part, re.M)
    return {name: text for names, text in found for name in re.findall(r"`(\w+)`", names)}


def test_every_field_is_documented(document):
    assert set(document) == set(rows("# `foldmark explain --json`"))
    assert set(document["entries"][0]) == set(rows("## An entry"))


@pytest.mark.parametrize("part", ["metric", "closure", "cost", "data", "ranking"])
def test_every_inner_field_is_documented(document, part):
    text = rows("# `foldmark explain --json`")[part]
    assert set(document[part]) <= set(re.findall(r"`(\w+)`", text))


def test_scale_setter_is_documented(document):
    text = rows("## An entry")["scale_setter"]
    assert set(document["entries"][0]["scale_setter"]) == set(re.findall(r"`(\w+)`", text))
