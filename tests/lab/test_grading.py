"""Right modules of any style pass; every wrong one is stopped at the right step, by name."""

from random import Random

import pytest
from tests.lab.memory import remembering_steps
from tests.lab.mutants import CHEATS, MUTANTS, SUBTLE, Mutant
from tests.lab.solutions import PLAIN, STYLES, whole

from foldmark.lab.compare import difference
from foldmark.lab.exercise import Step
from foldmark.lab.grade import Grade, draw_calls, grade
from foldmark.lab.sandbox import Limits, Stop

SEED = 20_26
PATIENT = Limits(cpu_seconds=20, wall_seconds=60.0)


@pytest.fixture(scope="module")
def steps() -> tuple[Step, ...]:
    return remembering_steps()


def failures(result: Grade) -> list[str]:
    """Return which functions fail, with their step."""
    return [
        f"{step.step.number} {one.function.name}"
        for step in result.steps
        for one in step.functions
        if one.problem
    ]


@pytest.mark.parametrize("style", STYLES)
def test_a_right_module_of_any_style_passes(style: str, steps: tuple[Step, ...]) -> None:
    result = grade(whole(style), steps, SEED, shrink=False, limits=PATIENT)
    assert failures(result) == []
    assert result.passed


def test_there_are_enough_of_both() -> None:
    assert len(STYLES) >= 10
    assert len(MUTANTS) >= 60
    assert len({mutant.source for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.step for mutant in SUBTLE} == set(range(1, 17))


@pytest.mark.parametrize("mutant", SUBTLE, ids=str)
def test_a_subtly_wrong_module_is_caught_at_the_right_step(
    mutant: Mutant, steps: tuple[Step, ...]
) -> None:
    # Earlier steps must still pass: the mistake is blamed where it is.
    asked = steps[: mutant.step] if mutant.step <= 3 else steps[mutant.step - 2 : mutant.step]
    result = grade(mutant.source, asked, SEED, shrink=False, limits=PATIENT)
    assert [step.passed for step in result.steps] == [True] * (len(asked) - 1) + [False]
    problem = next(
        one.problem for one in result.steps[-1].functions if one.function.name == mutant.function
    )
    assert problem is not None
    assert problem.mistake == mutant.mistake


@pytest.mark.parametrize("mutant", CHEATS, ids=str)
def test_a_cheating_module_is_caught(mutant: Mutant, steps: tuple[Step, ...]) -> None:
    asked = steps[: mutant.step]
    result = grade(mutant.source, asked, SEED, shrink=False, limits=PATIENT)
    assert not result.steps[-1].passed
    assert all(step.passed for step in result.steps[:-1])


def test_a_module_that_learned_one_seed_fails_the_next(steps: tuple[Step, ...]) -> None:
    first = steps[0]
    calls = [one.arguments for one in draw_calls(first, SEED) if one.function == "mean_shift"]
    known = {tuple(values): first.functions[3].answer(values) for (values,) in calls}
    memorised = (
        f"{PLAIN}\n\nKNOWN = {known!r}\n"
        "def mean_shift(values):\n    return KNOWN.get(tuple(values), 0.0)\n"
    )
    assert grade(memorised, [first], SEED, shrink=False, limits=PATIENT).passed
    assert not grade(memorised, [first], SEED + 1, shrink=False, limits=PATIENT).passed


def test_the_same_seed_draws_the_same_inputs(steps: tuple[Step, ...]) -> None:
    source = "def quantize_symmetric(values, scale):\n    return []\n"
    results = [grade(source, [steps[1]], 7, limits=PATIENT) for _ in range(2)]
    problems = [r.steps[0].functions[1].problem for r in results]
    assert problems[0] == problems[1]


def test_one_hanging_function_costs_its_step_and_no_other(steps: tuple[Step, ...]) -> None:
    source = PLAIN + "\n\ndef codes_used(codes):\n    while True:\n        pass\n"
    quick = Limits(cpu_seconds=1, wall_seconds=20.0)
    result = grade(source, steps[3:6], SEED, limits=quick)
    assert [step.passed for step in result.steps] == [True, False, True]
    stops = [one.problem.stopped.stop for one in result.steps[1].functions if one.problem]
    assert Stop.TIME in stops


def test_every_function_is_asked_enough_and_fairly() -> None:
    for step in remembering_steps():
        for one in step.functions:
            cases = [tuple(case) for case in one.draw(Random(3))]
            fair = [case for case in cases if one.fair(*case)]
            assert len(fair) >= 9, one.name
            assert len(fair) >= 0.6 * len(cases), one.name
            for case in cases:
                assert one.valid(*case), (one.name, case)


def test_no_usual_mistake_is_right(steps: tuple[Step, ...]) -> None:
    """A named mistake that happened to be right on all draws would name nothing."""
    for step in steps:
        for one in step.functions:
            cases = [tuple(case) for case in one.draw(Random(5)) if one.fair(*case)]
            for mistake in one.mistakes:
                differs = 0
                for case in cases:
                    try:
                        given = mistake.answer(*case)
                    except (ArithmeticError, ValueError, IndexError):
                        differs += 1
                        continue
                    differs += difference(one.answer(*case), given, one.tolerance) is not None
                assert differs, (one.name, mistake.key)
