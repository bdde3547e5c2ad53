"""A grade as text for a person, as JSON for a program, and as results for Gradescope."""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from foldmark.lab.compare import Fault
from foldmark.lab.exercise import Function
from foldmark.lab.grade import NOT_REACHED, FunctionResult, Grade, Problem, StepResult
from foldmark.lab.sandbox import Stop
from foldmark.lab.words import Words, pad, show

__all__ = ["Line", "Tone", "explain", "gradescope", "lines", "to_json"]

SCHEMA = "foldmark.lab/1"
_TITLE_WIDTH = 48


class Tone(Enum):
    """What a line is about, for those who colour it."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"
    FAINT = "faint"


@dataclass(frozen=True)
class Line:
    """One line for the terminal."""

    text: str
    tone: Tone = Tone.PLAIN


def lines(grade: Grade, words: Words) -> list[Line]:
    """Return the verdict, the table of steps, and what is wrong in those that fail."""
    found = [_verdict(grade, words), Line("")]
    found += [_row(result, words) for result in grade.steps]
    failing = [result for result in grade.steps if not result.passed]
    for index, result in enumerate(failing):
        # A step that nobody has started is told once: as the next thing to do.
        if index == 0 or not _unwritten(result):
            found += [Line(""), *_details(result, words)]
    return [*found, Line(""), Line(words.say("check", "seed", seed=grade.seed), Tone.FAINT)]


def explain(function: Function, problem: Problem, words: Words) -> list[str]:
    """Return the sentences of one problem: counterexample, its arithmetic, the usual mistake."""
    said = [_counterexample(function, problem, words)]
    if problem.difference and problem.difference.fault != Fault.TYPE:
        work = function.work(problem.arguments, problem.difference.place)
        said += [words.say("work", one.key, **one.fields) for one in work]
    if problem.mistake:
        said.append(words.say("mistake", problem.mistake))
    return said


def to_json(grade: Grade, words: Words) -> dict[str, Any]:
    """Return the grade as data: schema foldmark.lab/1."""
    return {
        "schema": SCHEMA,
        "language": words.language.value,
        "seed": grade.seed,
        "passed": grade.passed,
        "steps": [_step_json(result, words) for result in grade.steps],
    }


def gradescope(grade: Grade, words: Words) -> dict[str, Any]:
    """Return the grade as a Gradescope results file: one test of one point for each step."""
    tests = [
        {
            "name": words.say("check", "step_line", number=r.step.number, title=_title(r, words)),
            "number": str(r.step.number),
            "score": 1.0 if r.passed else 0.0,
            "max_score": 1.0,
            "status": "passed" if r.passed else "failed",
            "output": "\n".join(line.text for line in _details(r, words)[1:]),
        }
        for r in grade.steps
    ]
    return {
        "output": words.say("check", "seed", seed=grade.seed),
        "execution_time": round(sum(result.seconds for result in grade.steps), 3),
        "tests": tests,
    }


def _title(result: StepResult, words: Words) -> str:
    return words.title(result.step.number, result.step.name)


def _verdict(grade: Grade, words: Words) -> Line:
    failing = [result for result in grade.steps if not result.passed]
    count = len(grade.steps)
    if not failing:
        return Line(words.say("check", "all_pass", count=count), Tone.GOOD)
    following = failing[0]
    fields = {"number": following.step.number, "title": _title(following, words)}
    passed = count - len(failing)
    return Line(words.say("check", "some_pass", passed=passed, count=count, **fields))


def _row(result: StepResult, words: Words) -> Line:
    count = len(result.functions)
    right = sum(one.problem is None for one in result.functions)
    if result.passed:
        state, tone = "pass", Tone.GOOD
    else:
        state, tone = ("todo", Tone.FAINT) if _unwritten(result) else ("fail", Tone.BAD)
    title = pad(_title(result, words), _TITLE_WIDTH)
    text = f"{result.step.number:>3}  {title} {right}/{count}  {words.say('check', state)}"
    return Line(text, tone)


def _unwritten(result: StepResult) -> bool:
    return all(
        one.problem and one.problem.stopped and one.problem.stopped.stop == Stop.NOT_WRITTEN
        for one in result.functions
    )


def _details(result: StepResult, words: Words) -> list[Line]:
    fields = {"number": result.step.number, "title": _title(result, words)}
    found = [Line(words.say("check", "step_line", **fields))]
    stopped_before = False
    for one in result.functions:
        if one.problem is None or one.problem.stopped is NOT_REACHED:
            continue
        if not one.problem.arguments and one.problem.stopped:
            # The file did not load for this step: one line, not one for each function.
            if not stopped_before:
                found.append(Line("  " + _counterexample(one.function, one.problem, words)))
            stopped_before = True
            continue
        found += _function_lines(one, one.problem, words)
    if not result.passed and result.printed.strip():
        text = " ".join(result.printed.split())[:200]
        found.append(Line("  " + words.say("check", "printed", text=text), Tone.FAINT))
    return found


def _function_lines(result: FunctionResult, problem: Problem, words: Words) -> list[Line]:
    name = result.function.name
    said = explain(result.function, problem, words)
    if problem.stopped and problem.stopped.stop in _WHOLE_FUNCTION:
        return [Line(f"  {name}: {said[0]}")]
    fields = {"function": name, "failed": result.failed, "cases": result.cases}
    heading = Line("  " + words.say("check", "cases_failed", **fields), Tone.BAD)
    return [heading, *(Line("    " + sentence) for sentence in said)]


_WHOLE_FUNCTION = frozenset(
    {
        *(Stop.NOT_WRITTEN, Stop.MISSING, Stop.REFUSED_IMPORT, Stop.REFUSED_ACTION),
        *(Stop.PRINTED, Stop.EXITED, Stop.TOO_MUCH, Stop.GARBLED),
    }
)


def _counterexample(function: Function, problem: Problem, words: Words) -> str:
    arguments = ", ".join(
        f"{parameter.name} = {show(argument)}"
        for parameter, argument in zip(function.parameters, problem.arguments, strict=False)
    )
    given = arguments or words.say("problem", "no_arguments")
    if problem.stopped:
        stop = problem.stopped
        return words.say(
            "stop", stop.stop.value, arguments=given, detail=stop.detail, line=stop.line
        )
    if problem.difference is None:
        return words.say("problem", "changed", arguments=given)
    found = problem.difference
    fields = {
        "arguments": given,
        "place": "".join(f"[{index}]" for index in found.place),
        "got": found.got,
        "expected": found.expected,
        "got_type": type(found.got).__name__,
        "expected_type": type(found.expected).__name__,
        "got_length": len(found.got) if isinstance(found.got, (list, tuple)) else 0,
        "expected_length": len(found.expected) if isinstance(found.expected, (list, tuple)) else 0,
    }
    return words.say("problem", _problem_key(function, problem), **fields)


def _problem_key(function: Function, problem: Problem) -> str:
    found = problem.difference
    assert found is not None
    only_one = found.place == () or (found.place == (0,) and len(problem.expected) == 1)
    if found.fault == Fault.VALUE and only_one and isinstance(found.expected, int):
        return "code" if function.returns == "list[int]" else "value"
    return found.fault.value if only_one else f"{found.fault.value}_at"


def _step_json(result: StepResult, words: Words) -> dict[str, Any]:
    return {
        "step": result.step.number,
        "name": result.step.name,
        "title": _title(result, words),
        "passed": result.passed,
        "seconds": round(result.seconds, 3),
        "functions": [_function_json(one, words) for one in result.functions],
    }


def _function_json(result: FunctionResult, words: Words) -> dict[str, Any]:
    problem = result.problem
    found: dict[str, Any] = {
        "name": result.function.name,
        "passed": problem is None,
        "cases": result.cases,
        "failed": result.failed,
    }
    if problem is not None:
        found["problem"] = {
            "message": " ".join(explain(result.function, problem, words)),
            "reason": problem.stopped.stop.value if problem.stopped else _reason(problem),
            "mistake": problem.mistake or None,
            "arguments": _finite(problem.arguments),
            "got": _finite(problem.got),
            "expected": _finite(problem.expected),
        }
    return found


def _reason(problem: Problem) -> str:
    return problem.difference.fault.value if problem.difference else "changed"


def _finite(value: Any) -> Any:
    """Return the value with infinities and NaN as text, which JSON has no numbers for."""
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value
