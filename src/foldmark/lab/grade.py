"""Grade a learner's file step by step: fresh inputs, their answers, then the right ones."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from foldmark.lab.compare import Difference, difference
from foldmark.lab.exercise import Arguments, Function, Step
from foldmark.lab.sandbox import Answer, Call, Limits, Returned, Stop, Stopped, call
from foldmark.lab.shrink import measure, smaller

__all__ = ["FunctionResult", "Grade", "Problem", "StepResult", "check_load", "grade"]

SHRINK_SECONDS = 4.0
SHRINK_SECONDS_IN_ALL = 20.0
SHRINK_CANDIDATES = 120
REPEATED_CALLS = 4
# A step that never got to a function's calls says nothing about it.
NOT_REACHED = Stopped(Stop.EXITED, "not reached")


@dataclass(frozen=True)
class Problem:
    """Why a function fails: the smallest arguments found, what came back, what is right.

    Either `difference` says where the answers part, or `stopped` why there was none, or
    `changed` that the arguments were altered. `mistake` names a usual wrong answer that
    explains every answer that was given.
    """

    arguments: Arguments
    got: Any = None
    expected: Any = None
    difference: Difference | None = None
    stopped: Stopped | None = None
    changed: bool = False
    mistake: str = ""


@dataclass(frozen=True)
class FunctionResult:
    """One function's grade: how many cases it was given, how many failed, and the problem."""

    function: Function
    cases: int
    failed: int
    problem: Problem | None


@dataclass(frozen=True)
class StepResult:
    """One step's grade, with the first lines of what the learner's file printed."""

    step: Step
    functions: tuple[FunctionResult, ...]
    seconds: float
    printed: str = ""

    @property
    def passed(self) -> bool:
        """Whether every function of the step is right."""
        return all(result.problem is None for result in self.functions)


@dataclass(frozen=True)
class Grade:
    """The grade of one run: the seed that repeats it and each step's result."""

    seed: int
    steps: tuple[StepResult, ...]

    @property
    def passed(self) -> bool:
        """Whether all the steps that were asked for pass."""
        return all(result.passed for result in self.steps)


def _say_nothing(_: Step) -> None:
    return


def check_load(source: str, limits: Limits | None = None) -> Stopped | None:
    """Load the file once without calling anything; return why it can't be used, if it can't."""
    return call(source, (), limits).load


def grade(
    source: str,
    steps: Iterable[Step],
    seed: int,
    *,
    patience: float = SHRINK_SECONDS_IN_ALL,
    limits: Limits | None = None,
    before_each: Callable[[Step], None] = _say_nothing,
) -> Grade:
    """Grade the given steps of a learner's source, each in processes of its own.

    patience     seconds that may go into making counterexamples smaller, all together
    before_each  called with each step before it is graded
    """
    deadline = time.monotonic() + patience
    results = []
    for step in steps:
        before_each(step)
        results.append(grade_step(source, step, seed, deadline, limits))
    return Grade(seed, tuple(results))


def draw_calls(step: Step, seed: int) -> list[Call]:
    """Draw the calls of one step: every function's cases, some of them twice, in any order."""
    random = Random(f"foldmark lab {seed} step {step.number}")
    calls: list[Call] = []
    for function in step.functions:
        cases = [Call(function.name, tuple(case)) for case in function.draw(random)]
        calls += cases + random.choices(cases, k=REPEATED_CALLS)
    random.shuffle(calls)
    return calls


def grade_step(
    source: str, step: Step, seed: int, shrink_until: float, limits: Limits | None = None
) -> StepResult:
    """Grade one step: ask for all answers in one process, and only then work out the right ones."""
    started = time.monotonic()
    calls = draw_calls(step, seed)
    run = call(source, calls, limits)
    if run.load is not None:
        unloaded = Problem((), stopped=run.load)
        failed = tuple(FunctionResult(function, 0, 0, unloaded) for function in step.functions)
        return StepResult(step, failed, time.monotonic() - started, run.printed)
    results = []
    for function in step.functions:
        given = [
            (one.arguments, answer)
            for one, answer in zip(calls, run.answers, strict=False)
            if one.function == function.name
        ]
        result = _judge_all(function, given)
        if result.problem and _can_shrink(result.problem):
            until = min(shrink_until, time.monotonic() + SHRINK_SECONDS)
            smallest = _shrunk(source, function, result.problem, until, limits)
            result = replace(result, problem=replace(smallest, mistake=result.problem.mistake))
        results.append(result)
    return StepResult(step, tuple(results), time.monotonic() - started, run.printed)


def _judge_all(function: Function, given: list[tuple[Arguments, Answer]]) -> FunctionResult:
    """Judge every answer; keep the failing case with the smallest arguments."""
    fair = [
        (case, answer)
        for case, answer in given
        if isinstance(answer, Stopped) or function.fair(*case)
    ]
    problems = [found for case, answer in fair if (found := _judge(function, case, answer))]
    if not fair:
        return FunctionResult(function, 0, 0, Problem((), stopped=NOT_REACHED))
    if not problems:
        return FunctionResult(function, len(fair), 0, None)
    smallest = min(problems, key=lambda problem: measure(problem.arguments))
    named = smallest if smallest.changed else replace(smallest, mistake=_named(function, fair))
    return FunctionResult(function, len(fair), len(problems), named)


def _judge(function: Function, arguments: Arguments, answer: Answer) -> Problem | None:
    if isinstance(answer, Stopped):
        return Problem(arguments, stopped=answer)
    expected = function.answer(*arguments)
    found = difference(expected, answer.value, function.tolerance)
    if found is None and not answer.changed:
        return None
    return Problem(arguments, answer.value, expected, found, changed=found is None)


def _named(function: Function, given: list[tuple[Arguments, Answer]]) -> str:
    """Return the first usual mistake that gives every answer that was given; '' if none does."""
    for mistake in function.mistakes:
        if all(_gives(mistake.answer, case, answer, function.tolerance) for case, answer in given):
            return mistake.key
    return ""


def _gives(mistaken: Any, arguments: Arguments, answer: Answer, tolerance: float) -> bool:
    """Say whether the mistaken function does with these arguments what the learner's did."""
    try:
        value = mistaken(*arguments)
    except Exception as error:  # a mistake may fail in any way; it then names a like failure only
        return isinstance(answer, Stopped) and answer.detail.startswith(type(error).__name__)
    return isinstance(answer, Returned) and difference(value, answer.value, tolerance) is None


def _can_shrink(problem: Problem) -> bool:
    return problem.stopped is None or problem.stopped.stop == Stop.RAISED


def _shrunk(
    source: str, function: Function, problem: Problem, until: float, limits: Limits | None
) -> Problem:
    """Try smaller arguments, a processful at a time, while the function still fails on them."""
    while time.monotonic() < until:
        candidates = smaller(function, problem.arguments)[:SHRINK_CANDIDATES]
        run = call(source, [Call(function.name, case) for case in candidates], limits)
        found = None
        for case, answer in zip(candidates, run.answers, strict=False):
            wrong = _judge(function, case, answer)
            if wrong and _alike(wrong, problem) and function.fair(*case):
                found = wrong
                break
        if found is None:
            return problem
        problem = found
    return problem


def _alike(one: Problem, other: Problem) -> bool:
    """Say whether two problems are of one kind, so that shrinking does not change the subject."""
    if (one.stopped is None) != (other.stopped is None):
        return False
    if one.stopped and other.stopped:
        return one.stopped.stop == other.stopped.stop
    return one.changed == other.changed
