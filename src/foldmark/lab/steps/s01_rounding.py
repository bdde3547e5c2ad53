"""Step 1: two rounding rules, and where they part."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import floor
from random import Random

from foldmark.exact.rounding import Rounding, round_to_int
from foldmark.lab.draws import gaussian
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
from foldmark.lab.steps.work import rounding_work

_MODERATE = Number("float", -1e6, 1e6)


def round_half_even(x: float) -> int:
    """Return the nearest integer; of two equally near, the even one."""
    return round_to_int(Fraction(x), Rounding.HALF_EVEN)


def round_half_away(x: float) -> int:
    """Return the nearest integer; of two equally near, the one farther from zero."""
    return round_to_int(Fraction(x), Rounding.HALF_AWAY)


def parting_points(values: list[float]) -> list[float]:
    """Return the values that the two rules round differently, in their order."""
    return [x for x in values if round_half_even(x) != round_half_away(x)]


def mean_shift(values: list[float]) -> float:
    """Return how far rounding halves up moves the mean of the values; 0 for none."""
    if not values:
        return 0.0
    moved = sum(
        (round_to_int(Fraction(x), Rounding.HALF_UP) - Fraction(x) for x in values), Fraction(0)
    )
    return float(moved / len(values))


def _reals(random: Random) -> Iterator[float]:
    yield from (0.0, -0.0, 5e-324, -5e-324, 0.49999999999999994, -0.49999999999999994)
    yield from (4503599627370495.5, -4503599627370495.5, 9007199254740993.0, 2.0**60, 1e22)
    for _ in range(14):
        yield random.randint(-40, 40) + 0.5
    for _ in range(6):
        half = random.randint(-40, 40) + 0.5
        yield half + random.choice((-1, 1)) * 2.0**-40
    yield from gaussian(random, 8, 20.0)
    yield float(random.randint(-20, 20))


def _one(random: Random) -> Iterator[Arguments]:
    for x in _reals(random):
        yield (x,)


def _many(random: Random) -> Iterator[Arguments]:
    yield ([],)
    yield ([0.5],)
    yield ([-0.5, 0.5],)
    for _ in range(14):
        halves = [random.randint(-9, 9) / 2 for _ in range(random.randint(1, 8))]
        yield ([*halves, *gaussian(random, 2, 3.0)],)


def _small(random: Random) -> Iterator[Arguments]:
    yield ([],)
    yield ([-0.5, -1.5, -2.5],)
    for _ in range(16):
        yield ([random.randint(-40, 40) / 4 for _ in range(random.randint(1, 9))],)


def _by(rounding: Rounding) -> Callable[[float], int]:
    return lambda x: round_to_int(Fraction(x), rounding)


def _add_half(x: float) -> int:
    return floor(x + 0.5)


def _add_half_signed(x: float) -> int:
    return int(x + 0.5) if x >= 0 else int(x - 0.5)


_MISTAKES = {
    "half_up": _by(Rounding.HALF_UP),
    "half_up_added": _add_half,
    "half_away": _by(Rounding.HALF_AWAY),
    "half_away_added": _add_half_signed,
    "half_even": _by(Rounding.HALF_EVEN),
    "truncation": _by(Rounding.TOWARD_ZERO),
    "floor": _by(Rounding.FLOOR),
    "ceiling": _by(Rounding.CEILING),
}


def _mistakes(*keys: str) -> tuple[Mistake, ...]:
    return tuple(Mistake(key, _MISTAKES[key]) for key in keys)


def _even_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    return rounding_work(arguments[0])


def _away_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    return rounding_work(arguments[0], Rounding.HALF_AWAY)


def _parting_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    return tuple(
        Sentence("parts", {"x": x, "even": round_half_even(x), "away": round_half_away(x)})
        for x in parting_points(arguments[0])[:2]
    ) or (Sentence("no_parting"),)


def _shift_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    values = arguments[0]
    rounded = [round_to_int(Fraction(x), Rounding.HALF_UP) for x in values]
    fields = {"rounded": rounded, "shift": mean_shift(values), "count": len(values)}
    return (Sentence("mean_shift", fields),)


def _shift_of(rounding: Rounding) -> Callable[[list[float]], float]:
    def shift(values: list[float]) -> float:
        moved = sum(round_to_int(Fraction(x), rounding) - x for x in values)
        return moved / len(values) if values else 0.0

    return shift


_X = (Parameter("x", REAL),)
_VALUES = (Parameter("values", REAL, ("n",)),)

STEP = Step(
    1,
    "rounding",
    (
        Function(
            round_half_even,
            _X,
            "int",
            _one,
            mistakes=_mistakes(
                *("half_up", "half_up_added", "half_away", "half_away_added"),
                *("truncation", "floor", "ceiling"),
            ),
            work=_even_work,
        ),
        Function(
            round_half_away,
            _X,
            "int",
            _one,
            mistakes=_mistakes(
                *("half_even", "half_up", "half_up_added", "half_away_added"),
                *("truncation", "floor", "ceiling"),
            ),
            work=_away_work,
        ),
        Function(
            parting_points,
            _VALUES,
            "list[float]",
            _many,
            mistakes=(
                Mistake("every_tie", lambda values: [x for x in values if x % 1 == 0.5]),
                Mistake(
                    "up_for_away",
                    lambda values: [x for x in values if floor(x + 0.5) != round_half_even(x)],
                ),
            ),
            work=_parting_work,
        ),
        Function(
            mean_shift,
            (Parameter("values", _MODERATE, ("n",)),),
            "float",
            _small,
            tolerance=1e-9,
            mistakes=(
                Mistake("half_even", _shift_of(Rounding.HALF_EVEN)),
                Mistake("half_away", _shift_of(Rounding.HALF_AWAY)),
                Mistake("sign", lambda values: -mean_shift(values)),
                Mistake("sum_for_mean", lambda values: mean_shift(values) * len(values)),
            ),
            work=_shift_work,
        ),
    ),
)
