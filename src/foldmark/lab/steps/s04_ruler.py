"""Step 4: the ruler: largest, mean and relative error, and errors counted in steps."""

from collections.abc import Callable, Iterator
from math import inf
from random import Random

from foldmark.exact import rulers
from foldmark.lab import rules
from foldmark.lab.draws import gaussian, lists
from foldmark.lab.exercise import (
    REAL,
    Arguments,
    Function,
    Mistake,
    Number,
    Parameter,
    Place,
    Sentence,
    Step,
)

CLOSE = 1e-9
_PLAIN = Number("float", -1e12, 1e12)


def largest_error(values: list[float], restored: list[float]) -> float:
    """Return the largest |x - y|; 0 for none."""
    return rulers.largest_error(values, restored)


def mean_error(values: list[float], restored: list[float]) -> float:
    """Return the mean of |x - y|; 0 for none."""
    return rulers.mean_absolute_error(values, restored)


def relative_error(values: list[float], restored: list[float]) -> float:
    """Return sqrt(sum (x - y)^2 / sum x^2); 0 without error, infinite when only x is 0."""
    return rulers.relative_error(values, restored)


def error_in_steps(values: list[float]) -> float:
    """Return the largest error of symmetric quantization, divided by its scale."""
    codes, scale = rules.fold(values)
    return largest_error(values, rules.unfold(codes, scale)) / scale


def _pairs(random: Random) -> Iterator[Arguments]:
    yield ([], [])
    yield ([0.0], [0.0])
    yield ([-0.0, 0.0], [0.0, 0.0])
    yield ([2.0], [-1.0])
    yield ([-3.0, 1.0], [-3.5, 1.0])
    yield ([0.0, 0.0], [0.25, 0.0])
    for _ in range(18):
        count = random.randint(1, 8)
        values = gaussian(random, count, 10.0 ** random.randint(-2, 3))
        yield (values, [x + random.uniform(-0.3, 0.3) for x in values])


def _lists(random: Random) -> Iterator[Arguments]:
    for values in lists(random):
        yield (values,)
    for _ in range(6):
        width = 2.0 ** random.randint(-4, 4)
        yield ([*((random.randint(-126, 125) + 0.5) * width for _ in range(4)), 127 * width],)


def _normal_scale(values: list[float], *_: object) -> bool:
    """Denormal scales divide too coarsely to speak of steps; they are step 2's subject."""
    largest = max(map(abs, values), default=0.0)
    return largest == 0 or largest > 1e-290


def _errors(values: list[float], restored: list[float]) -> list[float]:
    return [abs(x - y) for x, y in zip(values, restored, strict=True)]


def _mean_relative(values: list[float], restored: list[float]) -> float:
    parts = [abs(x - y) / abs(x) for x, y in zip(values, restored, strict=True) if x]
    return sum(parts) / len(parts) if parts else 0.0


def _over_restored(values: list[float], restored: list[float]) -> float:
    return rulers.relative_error(restored, values)


def _squared_relative(values: list[float], restored: list[float]) -> float:
    return rulers.relative_error(values, restored) ** 2


def _summed_relative(values: list[float], restored: list[float]) -> float:
    errors, size = sum(_errors(values, restored)), sum(map(abs, values))
    return errors / size if size else (inf if errors else 0.0)


def _signed_mean(values: list[float], restored: list[float]) -> float:
    return sum(x - y for x, y in zip(values, restored, strict=True)) / max(len(values), 1)


def _signed_largest(values: list[float], restored: list[float]) -> float:
    return max((x - y for x, y in zip(values, restored, strict=True)), default=0.0)


def _squared_mean(values: list[float], restored: list[float]) -> float:
    return sum(e * e for e in _errors(values, restored)) / max(len(values), 1)


def _pair_work(key: str, answer: Callable[..., float]) -> Callable[..., tuple[Sentence, ...]]:
    def work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
        values, restored = arguments
        errors = _errors(values, restored)
        fields = {
            "errors": errors,
            "total": sum(errors),
            "count": len(errors),
            "squares": sum(e * e for e in errors),
            "size": sum(x * x for x in values),
            "result": answer(*arguments),
        }
        return (Sentence("errors", fields), Sentence(key, fields))

    return work


def _steps_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    values = arguments[0]
    codes, scale = rules.fold(values)
    restored = rules.unfold(codes, scale)
    fields = {
        "scale": scale,
        "codes": codes,
        "restored": restored,
        "largest": largest_error(values, restored),
        "result": error_in_steps(values),
    }
    return (Sentence("folded", fields), Sentence("error_in_steps", fields))


_PAIR = (Parameter("values", _PLAIN, ("n",)), Parameter("restored", _PLAIN, ("n",)))

STEP = Step(
    4,
    "ruler",
    (
        Function(
            largest_error,
            _PAIR,
            "float",
            _pairs,
            tolerance=CLOSE,
            mistakes=(
                Mistake("no_magnitude", _signed_largest),
                Mistake("mean_for_largest", mean_error),
                Mistake("relative_for_absolute", relative_error),
            ),
            work=_pair_work("largest_error", largest_error),
        ),
        Function(
            mean_error,
            _PAIR,
            "float",
            _pairs,
            tolerance=CLOSE,
            mistakes=(
                Mistake("no_magnitude", _signed_mean),
                Mistake("squared", _squared_mean),
                Mistake("largest_for_mean", largest_error),
                Mistake("sum_for_mean", lambda values, restored: sum(_errors(values, restored))),
            ),
            work=_pair_work("mean_error", mean_error),
        ),
        Function(
            relative_error,
            _PAIR,
            "float",
            _pairs,
            tolerance=CLOSE,
            mistakes=(
                Mistake("mean_of_ratios", _mean_relative),
                Mistake("root_of_ratio", _squared_relative),
                Mistake("magnitudes_for_squares", _summed_relative),
                Mistake("over_restored", _over_restored),
                Mistake("absolute_for_relative", mean_error),
            ),
            work=_pair_work("relative_error", relative_error),
        ),
        Function(
            error_in_steps,
            (Parameter("values", REAL, ("n",)),),
            "float",
            _lists,
            tolerance=CLOSE,
            mistakes=(
                Mistake(
                    "not_in_steps",
                    lambda values: largest_error(values, rules.folded(values)),
                ),
            ),
            work=_steps_work,
            fair=_normal_scale,
        ),
    ),
)
