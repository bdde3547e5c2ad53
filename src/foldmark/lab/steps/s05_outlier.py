"""Step 5: one large value, and how many codes it leaves to the others."""

from collections.abc import Iterator
from random import Random

from foldmark.exact import rulers
from foldmark.lab import rules
from foldmark.lab.draws import gaussian
from foldmark.lab.exercise import (
    CODE,
    REAL,
    Arguments,
    Function,
    Mistake,
    Parameter,
    Place,
    Sentence,
    Step,
)


def codes_used(codes: list[int]) -> int:
    """Return how many different codes there are."""
    return len(rulers.codes_used(codes))


def codes_kept(values: list[float], outlier: float) -> int:
    """Return how many different codes the values get when the outlier sets the scale too."""
    scale = rules.choose([*values, outlier], rules.SYMMETRIC)[0]
    return codes_used(rules.codes_of(values, scale, 0, rules.SYMMETRIC))


def _codes(random: Random) -> Iterator[Arguments]:
    yield ([],)
    yield ([0],)
    yield ([3, 3, 3],)
    yield ([-3, 3],)
    for _ in range(14):
        reach = random.choice((2, 10, 127))
        yield ([random.randint(-reach, reach) for _ in range(random.randint(1, 14))],)


def _planted(random: Random) -> Iterator[Arguments]:
    yield ([], 3.0)
    yield ([0.0, -0.0], 1.0)
    yield ([1.0, -1.0, 0.5], 0.0)
    for _ in range(22):
        values = gaussian(random, random.randint(2, 20))
        outlier = random.choice((-1, 1)) * 10.0 ** random.uniform(-1, 4)
        yield (values, round(outlier, 3))
    for _ in range(6):
        yield ([random.randint(-20, 20) + 0.5 for _ in range(6)], random.choice((-127.0, 127.0)))


def _kept_with_outlier(values: list[float], outlier: float) -> int:
    return codes_used(rules.fold([*values, outlier])[0])


def _kept_without_outlier(values: list[float], _: float) -> int:
    return codes_used(rules.fold(values)[0])


def _kept_signed(values: list[float], outlier: float) -> int:
    scale = max([*values, outlier], default=0.0) / 127 or 1.0
    return codes_used(rules.codes_of(values, abs(scale), 0, rules.SYMMETRIC))


def _used_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    different = sorted(set(arguments[0]))
    return (Sentence("codes_used", {"different": different, "count": len(different)}),)


def _kept_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    values, outlier = arguments
    scale = rules.choose([*values, outlier], rules.SYMMETRIC)[0]
    codes = rules.codes_of(values, scale, 0, rules.SYMMETRIC)
    fields = {"outlier": outlier, "scale": scale, "codes": codes, "count": codes_used(codes)}
    return (Sentence("codes_kept", fields),)


STEP = Step(
    5,
    "outlier",
    (
        Function(
            codes_used,
            (Parameter("codes", CODE, ("n",)),),
            "int",
            _codes,
            mistakes=(
                Mistake("length_for_count", len),
                Mistake("span_for_count", lambda codes: max(codes) - min(codes) + 1),
                Mistake("sign_dropped", lambda codes: len({abs(code) for code in codes})),
            ),
            work=_used_work,
        ),
        Function(
            codes_kept,
            (Parameter("values", REAL, ("n",)), Parameter("outlier", REAL)),
            "int",
            _planted,
            mistakes=(
                Mistake("outlier_counted", _kept_with_outlier),
                Mistake("outlier_not_in_scale", _kept_without_outlier),
                Mistake("maximum_without_magnitude", _kept_signed),
            ),
            work=_kept_work,
        ),
    ),
)
