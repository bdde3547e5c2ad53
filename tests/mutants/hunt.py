"""Hunt the neighbours of every rule with the recorded answers, then with probes.

    python -m tests.mutants.hunt > tests/mutants/indistinguishable.json

writes the neighbours that no input told apart; the test holds that list to be complete and true.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.mutants.neighbours import neighbours
from tests.mutants.probes import Outcome, Probe, outcome, probes_of
from tests.mutants.reasons import unread

from foldmark.compare.questions import Question, question_for
from foldmark.compare.vector_file import read_vectors
from foldmark.compare.vectors import Vector, differences
from foldmark.errors import FoldmarkError
from foldmark.exact import affine, group
from foldmark.exact.rule import Rule
from foldmark.exact.tools import CATALOGUE
from foldmark.exact.tools.entry import Operator, Procedure

ANSWERS = Path(__file__).parents[1] / "vectors" / "answers.json"


@cache
def answers() -> dict[str, list[tuple[Vector, Question]]]:
    """Return the recorded answers by the entry that they belong to."""
    found: dict[str, list[tuple[Vector, Question]]] = defaultdict(list)
    for vector in read_vectors(ANSWERS):
        question = question_for(vector)
        assert question is not None
        found[question.entry].append((vector, question))
    return found


def told_by_answers(name: str, mutant: Any) -> bool:
    """Say whether a recorded answer of the entry is not the mutant's."""

    def whole(values: Any, _rule: Any, data: Any) -> Any:
        return group.quantize_group(values, mutant, data)

    def given(values: Any, scale: float, zero: float, _rule: Any, data: Any) -> Any:
        return affine.quantize(values, scale, zero, mutant.affine, data)

    for vector, question in answers()[name]:
        function = whole if question.function == "quantize_group" else given
        try:
            if differences(vector, question.ask(vector, function)):
                return True
        except FoldmarkError:
            return True
    return False


@dataclass
class Probes:
    """Probes of one entry with its own outcomes; the one that told last is tried first."""

    entry: Rule | Operator
    pairs: list[tuple[Probe, Outcome]]

    @classmethod
    def of(cls, entry: Rule | Operator) -> "Probes":
        return cls(entry, [(probe, outcome(entry, probe)) for probe in probes_of(entry)])

    def tell(self, mutant: Any, tried: int | None = None) -> bool:
        """Say whether a probe (one of the first `tried`) tells the mutant from the entry."""
        for index, (probe, own) in enumerate(self.pairs[:tried]):
            if outcome(mutant, probe) != own:
                self.pairs.insert(0, self.pairs.pop(index))
                return True
        return False


def mutants_of(name: str) -> Iterator[tuple[str, str, Any]]:
    """Return field, setting and mutant for each neighbour whose field the rule looks at."""
    entry = CATALOGUE[name]
    assert not isinstance(entry, Procedure)
    for field, setting, mutant in neighbours(entry):
        if unread(entry, field) is None:
            yield field, setting, mutant


def names() -> list[str]:
    """Return the entries that have neighbours."""
    return [name for name, entry in CATALOGUE.items() if not isinstance(entry, Procedure)]


def survivors(name: str) -> list[tuple[str, str]]:
    """Return field and setting of the mutants that nothing tells from the entry."""
    entry = CATALOGUE[name]
    assert not isinstance(entry, Procedure)
    probes = Probes.of(entry)
    return [
        (field, setting)
        for field, setting, mutant in mutants_of(name)
        if not told_by_answers(name, mutant) and not probes.tell(mutant)
    ]


def main() -> None:
    """Print the survivors as JSON: {field: {setting: [entries]}}."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in names():
        for field, setting in survivors(name):
            found[field][setting].append(name)
    print(json.dumps(found, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
