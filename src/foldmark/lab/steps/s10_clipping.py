"""Step 10: clipping, percentile calibration, and calibration data that lies."""

from collections.abc import Iterator
from fractions import Fraction
from random import Random

from foldmark.exact import clipping
from foldmark.lab import rules
from foldmark.lab.draws import gaussian
from foldmark.lab.exercise import (
    PERCENT,
    POSITIVE,
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

_PLAIN = Number("float", -1e6, 1e6)
# Two limits whose errors are nearer than this can't be told apart by float sums.
_APART = Fraction(1, 10**9)


def percentile_limit(values: list[float], percent: int) -> float:
    """Return the smallest magnitude that at least percent % of the values don't exceed."""
    return clipping.percentile_limit(values, percent)


def clip_errors(values: list[float], limit: float) -> tuple[float, float]:
    """Return the summed error of the values beyond the limit, and of the others."""
    clipped, rounded = clipping.split_error(values, _restored(values, limit), limit)
    return float(clipped), float(rounded)


def best_limit(values: list[float], limits: list[float]) -> float:
    """Return the limit with the smallest sum of squared errors; of several, the first."""
    return min(limits, key=lambda limit: _squared(values, limit))


def clipped_share(calibration: list[float], values: list[float]) -> float:
    """Return the share of the values beyond the largest magnitude of the calibration data."""
    limit = max(map(abs, calibration), default=0.0)
    return float(clipping.clipped_share(values, limit))


def _restored(values: list[float], limit: float) -> list[float]:
    scale = limit / 127
    return rules.unfold(rules.codes_of(values, scale), scale)


def _squared(values: list[float], limit: float) -> Fraction:
    restored = _restored(values, limit)
    return sum(
        ((Fraction(x) - Fraction(y)) ** 2 for x, y in zip(values, restored, strict=True)),
        Fraction(0),
    )


def _ranked(random: Random) -> Iterator[Arguments]:
    yield ([], 99)
    yield ([-3.0], 1)
    yield ([1.0, -2.0], 50)
    yield ([4.0, -3.0, 2.0, 1.0], 75)
    yield ([float(n) for n in range(1, 21)], 95)
    yield ([float(-n) for n in range(1, 11)], 90)
    for _ in range(18):
        values = gaussian(random, random.randint(3, 24))
        yield (values, random.choice((1, 50, 90, 95, 99, 100, random.randint(1, 100))))


def _limited(random: Random) -> Iterator[Arguments]:
    yield ([], 1.0)
    yield ([0.0], 1.27)
    yield ([1.27, -1.27], 1.27)
    yield ([12.7, 1.27, -2.0], 1.27)
    for _ in range(18):
        values = gaussian(random, random.randint(2, 10))
        values.append(random.choice((-1, 1)) * random.uniform(3, 30))
        yield (values, round(random.uniform(0.3, 4.0), 2))


def _candidates(random: Random) -> Iterator[Arguments]:
    yield ([], [2.0, 1.0])
    yield ([0.0, 0.0], [3.0, 2.0])
    for _ in range(20):
        values = gaussian(random, random.randint(4, 16))
        values.append(random.choice((-1, 1)) * random.uniform(2, 40))
        widest = max(map(abs, values))
        shares = (
            1.0,
            random.uniform(0.05, 1.0),
            random.uniform(0.05, 1.0),
            random.uniform(1.1, 3.0),
        )
        limits = [round(widest * share, 3) for share in shares]
        yield (values, random.sample(limits, len(limits)))
    for _ in range(2):
        yield _many_ties(random)


def _many_ties(random: Random) -> tuple[list[float], list[float]]:
    """Draw values whose ties make a limit just below the largest better by sums, not by squares."""
    while True:
        width = 2.0 ** random.randint(-3, 2)
        values = [(random.randint(-100, 100) + 0.5) * width for _ in range(16)] + [127 * width]
        limits = [127 * width, random.uniform(123.0, 126.0) * width]
        if _first_smallest_absolute(values, limits) != best_limit(values, limits):
            return values, limits


def _calibrated(random: Random) -> Iterator[Arguments]:
    yield ([], [])
    yield ([], [1.0, 0.0])
    yield ([1.0], [])
    yield ([2.0, -3.0], [3.0, -3.0, 3.5, -4.0])
    for _ in range(18):
        width = random.choice((0.5, 1.0, 3.0))
        yield (gaussian(random, random.randint(1, 9)), gaussian(random, 8, width))


def _told_apart(values: list[float], limits: list[float]) -> bool:
    errors = sorted(_squared(values, limit) for limit in limits)
    if len(errors) < 2 or errors[1] == 0 or len(set(limits)) == 1:
        return True
    return errors[1] - errors[0] > errors[1] * _APART


def _some_limits(_: list[float], limits: list[float]) -> bool:
    return bool(limits)


def _at_rank(values: list[float], rank: int, signed: bool = False) -> float:
    ordered = sorted(values) if signed else sorted(map(abs, values))
    return ordered[min(max(rank, 0), len(ordered) - 1)] if ordered else 0.0


def _first_smallest_absolute(values: list[float], limits: list[float]) -> float:
    def total(limit: float) -> float:
        return sum(abs(x - y) for x, y in zip(values, _restored(values, limit), strict=True))

    return min(limits, key=total)


def _unclipped(values: list[float], limit: float) -> tuple[float, float]:
    scale = limit / 127
    codes = rules.codes_of(values, scale, 0, rules.without_clip(rules.SYMMETRIC))
    restored = rules.unfold(codes, scale)
    clipped, rounded = clipping.split_error(values, restored, limit)
    return float(clipped), float(rounded)


def _share_with_limit(calibration: list[float], values: list[float]) -> float:
    limit = max(map(abs, calibration), default=0.0)
    return sum(abs(x) >= limit for x in values) / len(values) if values else 0.0


def _percentile_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    values, percent = arguments
    if not values:
        return ()
    rank = -(-percent * len(values) // 100)
    fields = {"sorted": sorted(map(abs, values)), "percent": percent, "count": len(values)}
    return (Sentence("percentile", {**fields, "rank": rank}),)


def _clip_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    values, limit = arguments
    scale = limit / 127
    codes = rules.codes_of(values, scale)
    fields = {"scale": scale, "codes": codes, "restored": rules.unfold(codes, scale)}
    beyond = [x for x in values if abs(x) > limit]
    return (Sentence("folded", fields), Sentence("beyond", {"limit": limit, "beyond": beyond}))


def _best_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    values, limits = arguments
    errors = [float(_squared(values, limit)) for limit in limits]
    return (Sentence("squared_errors", {"limits": limits, "errors": errors}),)


def _share_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    calibration, values = arguments
    limit = max(map(abs, calibration), default=0.0)
    beyond = [x for x in values if abs(x) > limit]
    fields = {"limit": limit, "beyond": beyond, "count": len(values)}
    return (Sentence("share", fields),)


_VALUES = Parameter("values", _PLAIN, ("n",))

STEP = Step(
    10,
    "clipping",
    (
        Function(
            percentile_limit,
            (_VALUES, Parameter("percent", PERCENT)),
            "float",
            _ranked,
            mistakes=(
                Mistake("rank_rounded_down", lambda v, p: _at_rank(v, p * len(v) // 100 - 1)),
                Mistake("rank_off_by_one", lambda v, p: _at_rank(v, p * len(v) // 100)),
                Mistake("rank_off_by_one", lambda v, p: _at_rank(v, -(-p * len(v) // 100))),
                Mistake(
                    "maximum_without_magnitude",
                    lambda v, p: _at_rank(v, -(-p * len(v) // 100) - 1, signed=True),
                ),
            ),
            work=_percentile_work,
        ),
        Function(
            clip_errors,
            (_VALUES, Parameter("limit", POSITIVE)),
            "tuple[float, float]",
            _limited,
            tolerance=CLOSE,
            mistakes=(
                Mistake("no_clip", _unclipped),
                Mistake("swapped", lambda values, limit: clip_errors(values, limit)[::-1]),
            ),
            work=_clip_work,
            valid=lambda values, limit: limit > 1e-3,
        ),
        Function(
            best_limit,
            (_VALUES, Parameter("limits", Number("float", 1e-3, 1e6), ("m",))),
            "float",
            _candidates,
            mistakes=(
                Mistake("absolute_for_squared", _first_smallest_absolute),
                Mistake("largest_limit", lambda values, limits: max(limits)),
                Mistake("smallest_limit", lambda values, limits: min(limits)),
            ),
            work=_best_work,
            fair=_told_apart,
            valid=_some_limits,
        ),
        Function(
            clipped_share,
            (Parameter("calibration", _PLAIN, ("c",)), _VALUES),
            "float",
            _calibrated,
            tolerance=CLOSE,
            mistakes=(
                Mistake("limit_counted", _share_with_limit),
                Mistake("percent_for_share", lambda c, v: clipped_share(c, v) * 100),
                Mistake("roles_swapped", lambda c, v: clipped_share(v, c)),
            ),
            work=_share_work,
        ),
    ),
)
