"""Right modules of any style pass; every wrong one is stopped at the right step, by name."""

import time
from dataclasses import replace
from functools import wraps
from random import Random
from typing import Any

import pytest
from tests.lab.memory import remembering_steps
from tests.lab.mutants import CHEATS, MUTANTS, SUBTLE, Mutant
from tests.lab.solutions import PLAIN, STYLES, whole

from foldmark.lab.compare import difference
from foldmark.lab.exercise import Function, Step
from foldmark.lab.grade import Grade, draw_calls, grade
from foldmark.lab.sandbox import Limits, Run, Stop, call

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
    result = grade(whole(style), steps, SEED, patience=0, limits=PATIENT)
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
    result = grade(mutant.source, asked, SEED, patience=0, limits=PATIENT)
    assert [step.passed for step in result.steps] == [True] * (len(asked) - 1) + [False]
    problem = next(
        one.problem for one in result.steps[-1].functions if one.function.name == mutant.function
    )
    assert problem is not None
    assert problem.mistake == mutant.mistake


@pytest.mark.parametrize("mutant", CHEATS, ids=str)
def test_a_cheating_module_is_caught(mutant: Mutant, steps: tuple[Step, ...]) -> None:
    asked = steps[: mutant.step]
    result = grade(mutant.source, asked, SEED, patience=0, limits=PATIENT)
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
    assert grade(memorised, [first], SEED, patience=0, limits=PATIENT).passed
    assert not grade(memorised, [first], SEED + 1, patience=0, limits=PATIENT).passed


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


def test_right_answers_are_worked_out_only_after_the_process_has_ended(
    steps: tuple[Step, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    def watched_call(*arguments: Any) -> Run:
        ended.clear()
        run = call(*arguments)
        ended.append(True)
        return run

    def watched_answer(function: Function) -> Function:
        @wraps(function.answer)
        def answer(*arguments: Any) -> Any:
            assert ended, "an expected value was computed while a learner's process ran"
            return function.answer(*arguments)

        return replace(function, answer=answer)

    monkeypatch.setattr("foldmark.lab.grade.call", watched_call)
    step = replace(steps[1], functions=tuple(map(watched_answer, steps[1].functions)))
    result = grade(PLAIN.replace("/ 127", "/ 128", 1), [step], SEED, limits=PATIENT)
    assert not result.passed  # so that shrinking ran, too


def special_lists(step: Step, function: str, position: int = 0) -> list[list[Any]]:
    one = next(one for one in step.functions if one.name == function)
    return [case[position] for case in one.draw(Random(11))]


def test_the_inputs_are_telling(steps: tuple[Step, ...]) -> None:
    for step, function in ((steps[1], "symmetric_scale"), (steps[2], "affine_parameters")):
        drawn = special_lists(step, function)
        assert [] in drawn
        assert any(len(values) == 1 and values[0] != 0 for values in drawn)
        assert any(str(x) == "-0.0" for values in drawn for x in values)
        assert any(len(values) > 1 and not any(values) for values in drawn)
        assert any(len(set(values)) == 1 < len(values) and any(values) for values in drawn)
        assert any(len(values) > 2 and min(values) > 0 for values in drawn)
        assert any(len(values) > 2 and max(values) < 0 for values in drawn)
        assert any(0 < max(map(abs, values), default=0) < 1e-307 for values in drawn)
    folds = [case for case in steps[1].functions[1].draw(Random(11)) if case[0]]
    assert sum((x / scale) % 1 == 0.5 for values, scale in folds for x in values) > 20
    assert any(abs(x / scale) > 128 for values, scale in folds for x in values)
    affine = list(steps[2].functions[1].draw(Random(11)))
    odd_ties = [
        v for v, scale, zero in affine if zero % 2 and any((x / scale) % 1 == 0.5 for x in v)
    ]
    assert len(odd_ties) >= 8
    widths = [
        [max(map(abs, row)) for row in matrix]
        for matrix in special_lists(steps[5], "quantize_per_row")
        if matrix
    ]
    assert any(max(row) > 1000 * min(row) > 0 for row in widths)


def test_a_counterexample_is_as_small_as_it_gets(steps: tuple[Step, ...]) -> None:
    wrong = PLAIN.replace("return below if below % 2 == 0 else below + 1", "return below + 1")
    result = grade(wrong, steps[:2], SEED, limits=PATIENT)
    found = {
        one.function.name: one.problem.arguments
        for step in result.steps
        for one in step.functions
        if one.problem
    }
    assert found["round_half_even"] == (0.5,)
    assert found["quantize_symmetric"] == ([0.5], 1.0)


def test_patience_bounds_the_search_for_small_examples(steps: tuple[Step, ...]) -> None:
    all_wrong = "\n".join(
        f"def {one.name}(*arguments):\n    return 'wrong'"
        for step in steps
        for one in step.functions
    )
    started = time.monotonic()
    result = grade(all_wrong, steps, SEED, patience=1.0, limits=PATIENT)
    assert not any(step.passed for step in result.steps)
    assert time.monotonic() - started < 60
