"""Whatever a learner gets wrong can be explained: no place and no argument is left out."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from foldmark.lab.compare import difference
from foldmark.lab.exercise import Function
from foldmark.lab.grade import Problem
from foldmark.lab.report import explain
from foldmark.lab.shrink import measure, smaller
from foldmark.lab.steps import STEPS
from foldmark.lab.words import Language, Words

FUNCTIONS = [one for step in STEPS for one in step.functions]
WORDS = [Words(language) for language in Language]


def wrong_answers(right: Any) -> Iterator[Any]:
    """Yield answers that part from the right one at every place, and in every way."""
    yield None
    yield "text"
    yield [[[[1]]]]
    if isinstance(right, (list, tuple)):
        yield [*right, 1]
        yield list(right)[:-1]
        for index, item in enumerate(right):
            for wrong in wrong_answers(item):
                yield [*right[:index], wrong, *right[index + 1 :]]
    elif isinstance(right, int):
        yield right + 1
        yield float(right)
        yield 10**30
    else:
        yield right + 1.0
        yield float("nan")
        yield float("-inf")


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.name)
def test_every_wrong_answer_has_its_sentences(function: Function) -> None:
    cases = sorted(function.draw(Random(21)), key=measure)
    for case in [*cases[:5], cases[-1]]:
        right = function.answer(*case)
        for wrong in wrong_answers(right):
            found = difference(right, wrong, function.tolerance)
            if found is None:
                continue
            problem = Problem(tuple(case), wrong, right, found)
            for words in WORDS:
                sentences = explain(function, problem, words)
                assert sentences[0]
                assert not any("{" in sentence for sentence in sentences)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.name)
def test_smaller_arguments_are_still_arguments(function: Function) -> None:
    """Shrinking walks at random; everything that is computed on the way must be computable."""
    random = Random(22)
    cases = list(function.draw(random))
    for case in random.sample(cases, min(3, len(cases))):
        current = tuple(case)
        for _ in range(8):
            candidates = smaller(function, current)
            if not candidates:
                break
            current = random.choice(candidates)
            right = function.answer(*current)
            assert difference(right, right, function.tolerance) is None
            assert function.fair(*current) in (True, False)
            for place in ((), (0,), (0, 0), (1,)):
                if _reaches(right, place):
                    function.work(current, place)


def _reaches(value: Any, place: tuple[int, ...]) -> bool:
    for index in place:
        if not isinstance(value, (list, tuple)) or len(value) <= index:
            return False
        value = value[index]
    return True


def test_shrinking_ends_at_something_that_cannot_shrink() -> None:
    function = FUNCTIONS[0]
    assert smaller(function, (0.0,)) == []
    sizes = [measure((x,)) for x in (0.0, 0.5, 2.5, 17.25, 1e300)]
    assert sizes == sorted(sizes)
