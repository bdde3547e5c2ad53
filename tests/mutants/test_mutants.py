"""Every neighbour of every rule is told from it by an input, or explained."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.mutants.hunt import Probes, mutants_of, names, told_by_answers
from tests.mutants.neighbours import neighbours
from tests.mutants.reasons import reason_for, unread

from foldmark import rules
from foldmark.exact import catalog
from foldmark.exact.rule import Rule
from foldmark.exact.tools import CATALOGUE
from foldmark.exact.tools.entry import Operator

LISTED = json.loads((Path(__file__).parent / "indistinguishable.json").read_text())


def representatives() -> list[str]:
    """Return one entry for each way of computing; the others differ in their codes alone."""
    found: dict[Any, str] = {}
    for name in names():
        found.setdefault(_way(CATALOGUE[name]), name)
    return list(found.values())


def _way(entry: Any) -> Any:
    affine = replace(entry.affine, codes=catalog.INT8)
    if isinstance(entry, Operator):
        return affine
    scale = replace(entry.scale, denominator=1, denominator_below=0)
    zero_point = replace(entry.zero_point, fixed=0, lowest=0, highest=0)
    return affine, scale, zero_point


@pytest.mark.parametrize("name", representatives())
def test_every_neighbour_is_told_or_explained(name: str) -> None:
    entry = CATALOGUE[name]
    assert isinstance(entry, Rule | Operator)
    probes = Probes.of(entry)
    unexplained, told_after_all = [], []
    for field, setting, mutant in mutants_of(name):
        if told_by_answers(name, mutant):
            continue
        if name in LISTED.get(field, {}).get(setting, ()):
            if probes.tell(mutant, 5):
                told_after_all.append((field, setting))
        elif not probes.tell(mutant):
            unexplained.append((field, setting))
    assert unexplained == []
    assert told_after_all == []


def test_every_listed_neighbour_has_a_reason() -> None:
    bare = [
        (name, field, setting)
        for field, settings in LISTED.items()
        for setting, listed in settings.items()
        for name in listed
        if not reason_for(CATALOGUE[name], field, setting)
    ]
    assert bare == []


@pytest.mark.parametrize("name", representatives()[::4])
def test_fields_that_are_not_looked_at_change_nothing(name: str) -> None:
    entry = CATALOGUE[name]
    assert isinstance(entry, Rule | Operator)
    probes = Probes.of(entry)
    for field, setting, mutant in neighbours(entry):
        if unread(entry, field) is not None:
            assert not probes.tell(mutant, 12), (field, setting)


def test_the_hunt_tells_tools_that_differ_in_one_field() -> None:
    pairs = [
        (rules.GGML_Q8_0, rules.GGML_Q8_0_ACTIVATION_ARM),
        (rules.TORCH_2_13_PER_TENSOR_INT8, rules.TORCH_QUANTIZE_INT8),
        (rules.QUARK_UINT4_ASYMMETRIC, rules.QUARK_FAKE_UINT4_ASYMMETRIC),
        (rules.TORCH_OBSERVER_INT8, rules.TORCH_OBSERVER_INT8_REDUCED),
    ]
    for first, second in pairs:
        assert isinstance(first, Rule | Operator)
        assert Probes.of(first).tell(second)
