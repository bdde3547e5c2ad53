"""Step 8: through softmax: the error of the scores going in, of the probabilities coming out."""

import math
from collections.abc import Iterator
from random import Random

from foldmark.exact.attention import softmax as exact_softmax
from foldmark.exact.catalog import FLOAT64
from foldmark.exact.rulers import relative_error
from foldmark.lab import rules
from foldmark.lab.draws import gaussian
from foldmark.lab.exercise import (
    Arguments,
    Function,
    Mistake,
    Number,
    Parameter,
    Place,
    Sentence,
    Step,
)
from foldmark.lab.steps.s04_ruler import CLOSE

_SCORE = Number("float", -1e6, 1e6)


def softmax(scores: list[float]) -> list[float]:
    """Return exp(s - max) / sum of those."""
    return exact_softmax(scores, FLOAT64) if scores else []


def softmax_errors(scores: list[float]) -> tuple[float, float]:
    """Return the relative error of the folded scores, and of the probabilities from them."""
    restored = rules.folded(scores)
    return (
        relative_error(scores, restored),
        relative_error(softmax(scores), softmax(restored)),
    )


def _scores(random: Random) -> Iterator[Arguments]:
    yield ([],)
    yield ([0.0],)
    yield ([-3.5],)
    yield ([2.0, 2.0, 2.0],)
    yield ([1000.0, 1000.0],)
    yield ([-1000.0, -1001.0],)
    yield ([800.0, -800.0],)
    for _ in range(20):
        yield (gaussian(random, random.randint(2, 8), 10.0 ** random.uniform(-1, 1.5)),)


def plain_softmax(scores: list[float]) -> list[float]:
    """Return the softmax without the maximum subtracted: it overflows."""
    powers = [math.exp(s) for s in scores]
    return [p / sum(powers) for p in powers]


def _base_two(scores: list[float]) -> list[float]:
    if not scores:
        return []
    powers = [2.0 ** (s - max(scores)) for s in scores]
    return [p / sum(powers) for p in powers]


def _by_largest(scores: list[float]) -> list[float]:
    powers = [math.exp(s - max(scores)) for s in scores]
    return [p / max(powers) for p in powers]


def _probabilities_folded(scores: list[float]) -> tuple[float, float]:
    probabilities = softmax(scores)
    return (
        relative_error(scores, rules.folded(scores)),
        relative_error(probabilities, rules.folded(probabilities)),
    )


def _softmax_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    scores = arguments[0]
    if not scores:
        return ()
    powers = [math.exp(s - max(scores)) for s in scores]
    fields = {"largest": max(scores), "powers": powers, "total": sum(powers)}
    return (Sentence("softmax", fields),)


def _errors_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    scores = arguments[0]
    restored = rules.folded(scores)
    fields = {
        "restored": restored,
        "right": softmax(scores),
        "moved": softmax(restored),
        "error_in": softmax_errors(scores)[0],
        "error_out": softmax_errors(scores)[1],
    }
    return (Sentence("softmax_errors", fields),)


_SCORES = (Parameter("scores", _SCORE, ("n",)),)

STEP = Step(
    8,
    "softmax",
    (
        Function(
            softmax,
            _SCORES,
            "list[float]",
            _scores,
            tolerance=CLOSE,
            mistakes=(
                Mistake("softmax_without_maximum", plain_softmax),
                Mistake("base_two", _base_two),
                Mistake("divided_by_largest", _by_largest),
            ),
            work=_softmax_work,
        ),
        Function(
            softmax_errors,
            _SCORES,
            "tuple[float, float]",
            _scores,
            tolerance=CLOSE,
            mistakes=(
                Mistake("probabilities_folded", _probabilities_folded),
                Mistake("swapped", lambda scores: softmax_errors(scores)[::-1]),
            ),
            work=_errors_work,
        ),
    ),
)
