"""Step 2: symmetric quantization to codes -127..127."""

from collections.abc import Iterator
from random import Random
from typing import Any

from foldmark.exact.catalog import INT8, INT8_NARROW
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import Rule
from foldmark.lab import rules
from foldmark.lab.draws import lists, near_tie, power_of_two, ties
from foldmark.lab.exercise import (
    CODE,
    POSITIVE,
    REAL,
    Arguments,
    Function,
    Mistake,
    Parameter,
    Place,
    Sentence,
    Step,
)
from foldmark.lab.steps.work import code_work, scale_work


def symmetric_scale(values: list[float]) -> float:
    """Return max|x| / 127, or 1 when that is 0."""
    return rules.choose(values, rules.SYMMETRIC)[0]


def quantize_symmetric(values: list[float], scale: float) -> list[int]:
    """Return round(x / scale), ties to even, held in -127..127."""
    return rules.codes_of(values, scale, 0, rules.SYMMETRIC)


def dequantize_symmetric(codes: list[int], scale: float) -> list[float]:
    """Return code * scale."""
    return rules.unfold(codes, scale)


def _scales(random: Random) -> Iterator[Arguments]:
    for values in lists(random):
        yield (values,)
    for _ in range(2):
        yield ([_unlike_its_reciprocal(random), -0.25],)


def _unlike_its_reciprocal(random: Random) -> float:
    """Draw a number that divided by 127 differs from its product with 1 / 127."""
    while True:
        x = random.uniform(0.5, 90.0)
        if x / 127 != x * (1 / 127):
            return x


def folds(random: Random) -> Iterator[Arguments]:
    """Draw (values, scale): ties, values beyond the codes, and the lists' own scales."""
    yield ([], 1.0)
    yield ([-0.0], 0.5)
    yield ([5e-324, -5e-324], 1.0)
    yield ([1e18, -1e18, 300.0], 0.25)
    for _ in range(6):
        scale = power_of_two(random)
        yield (ties(random, random.randint(1, 8), scale), scale)
    for _ in range(4):
        x, scale = near_tie(random, 120)
        yield ([x, -x], scale)
    for values in lists(random):
        yield (values, max(map(abs, values), default=0.0) / 127 or 1.0)


def _unfolds(random: Random) -> Iterator[Arguments]:
    yield ([], 0.1)
    for scale in (1.0, 0.1, 5e-324, 0.007874015748031496):
        yield ([0, 1, -1, 127, -127], scale)
    for _ in range(8):
        count = random.randint(1, 8)
        yield ([random.randint(-127, 127) for _ in range(count)], random.uniform(1e-3, 2.0))


def quotient_is_finite(values: list[float], scale: float, *_: object) -> bool:
    """Say whether no quotient overflows: dividing by a tiny scale may."""
    return scale > 0 and all(abs(x / scale) < 1e300 for x in values)


def _codes_with(rule: Rule) -> Any:
    return lambda values, scale: rules.codes_of(values, scale, 0, rule)


def _by_rounding(rounding: Rounding) -> Any:
    return _codes_with(rules.with_rounding(rules.SYMMETRIC, rounding))


def _by_reciprocal(values: list[float], scale: float) -> list[int]:
    # In Python's floats, where the reciprocal of a denormal scale is infinite and can't be rounded.
    return [INT8_NARROW.clip(round(x * (1 / scale))) for x in values]


def _largest(values: list[float]) -> float:
    return max(map(abs, values), default=0.0)


def _scale_or_one(scale: float) -> float:
    return scale if scale else 1.0


def _scale_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    return scale_work(arguments[0], 127)


def _code_work(arguments: Arguments, place: Place) -> tuple[Sentence, ...]:
    values, scale = arguments
    return code_work(values[place[0]], scale, None, INT8_NARROW) if place else ()


def _unfold_work(arguments: Arguments, place: Place) -> tuple[Sentence, ...]:
    codes, scale = arguments
    if not place:
        return ()
    code = codes[place[0]]
    return (Sentence("unfold", {"code": code, "scale": scale, "value": code * scale}),)


_VALUES = Parameter("values", REAL, ("n",))
_SCALE = Parameter("scale", POSITIVE)

STEP = Step(
    2,
    "symmetric",
    (
        Function(
            symmetric_scale,
            (_VALUES,),
            "float",
            _scales,
            mistakes=(
                Mistake("scale_128", lambda v: _scale_or_one(_largest(v) / 128)),
                Mistake("scale_127_5", lambda v: _scale_or_one(_largest(v) / 127.5)),
                Mistake("scale_255", lambda v: _scale_or_one(_largest(v) / 255)),
                Mistake(
                    "maximum_without_magnitude", lambda v: _scale_or_one(max(v, default=0) / 127)
                ),
                Mistake("maximum_without_magnitude", lambda v: _scale_or_one(max([*v, 0.0]) / 127)),
                Mistake("scale_of_nothing", lambda v: _largest(v) / 127),
                Mistake("scale_of_empty", lambda v: _scale_or_one(max(map(abs, v)) / 127)),
                Mistake("scale_reciprocal", lambda v: _scale_or_one(_largest(v) * (1 / 127))),
            ),
            work=_scale_work,
        ),
        Function(
            quantize_symmetric,
            (_VALUES, _SCALE),
            "list[int]",
            folds,
            mistakes=(
                Mistake("half_up", _by_rounding(Rounding.HALF_UP)),
                Mistake("half_away", _by_rounding(Rounding.HALF_AWAY)),
                Mistake("truncation", _by_rounding(Rounding.TOWARD_ZERO)),
                Mistake("floor", _by_rounding(Rounding.FLOOR)),
                Mistake("no_clip", _codes_with(rules.without_clip(rules.SYMMETRIC))),
                Mistake("lowest_128", _codes_with(rules.with_codes(rules.SYMMETRIC, INT8))),
                Mistake("reciprocal", _by_reciprocal),
                Mistake("float_codes", lambda v, s: [float(c) for c in quantize_symmetric(v, s)]),
            ),
            work=_code_work,
            valid=quotient_is_finite,
        ),
        Function(
            dequantize_symmetric,
            (Parameter("codes", CODE, ("n",)), _SCALE),
            "list[float]",
            _unfolds,
            mistakes=(
                Mistake("divided", lambda codes, scale: [c / scale for c in codes]),
                Mistake("codes_unchanged", lambda codes, scale: [float(c) for c in codes]),
            ),
            work=_unfold_work,
        ),
    ),
)
