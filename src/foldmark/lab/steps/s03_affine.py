"""Step 3: affine quantization to codes 0..255, with a code for zero."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from random import Random
from typing import Any

from foldmark.exact.catalog import UINT8
from foldmark.exact.rounding import Rounding, round_to_int
from foldmark.exact.rule import Rule, ZeroOrder
from foldmark.lab import rules
from foldmark.lab.draws import lists, near_tie, power_of_two, ties
from foldmark.lab.exercise import (
    POSITIVE,
    REAL,
    UCODE,
    Arguments,
    Function,
    Mistake,
    Parameter,
    Place,
    Sentence,
    Step,
)
from foldmark.lab.steps.s02_symmetric import quotient_is_finite
from foldmark.lab.steps.work import code_work


def affine_parameters(values: list[float]) -> tuple[float, int]:
    """Return (max - min) / 255 with zero inside the range, and the code of zero."""
    return rules.choose(values, rules.AFFINE)


def quantize_affine(values: list[float], scale: float, zero_point: int) -> list[int]:
    """Return round(x / scale) + zero_point, held in 0..255."""
    return rules.codes_of(values, scale, zero_point, rules.AFFINE)


def dequantize_affine(codes: list[int], scale: float, zero_point: int) -> list[float]:
    """Return (code - zero_point) * scale."""
    return rules.unfold(codes, scale, zero_point)


def _ranges(random: Random) -> Iterator[Arguments]:
    for values in lists(random):
        yield (values,)
    for _ in range(6):
        # The range is 255 steps of a power of two, and zero falls on a half-step.
        scale, below = power_of_two(random), random.randint(1, 253) + 0.5
        yield ([-below * scale, (255 - below) * scale],)


def _folds(random: Random) -> Iterator[Arguments]:
    yield ([], 1.0, 0)
    yield ([-0.0, 0.0], 0.5, 255)
    yield ([1e18, -1e18], 0.25, 7)
    for _ in range(8):
        scale = power_of_two(random)
        odd = 2 * random.randint(0, 127) + 1
        yield (ties(random, random.randint(1, 8), scale, 200), scale, odd)
    for _ in range(4):
        x, scale = near_tie(random, 120)
        yield ([x, -x], scale, 128)
    for values in lists(random):
        yield (values, max(map(abs, values), default=0.0) / 100 or 1.0, random.randint(0, 255))


def _unfolds(random: Random) -> Iterator[Arguments]:
    yield ([], 0.1, 3)
    for zero_point in (0, 255, 127):
        yield ([0, 1, 127, 128, 255], random.uniform(0.01, 1.0), zero_point)
    for _ in range(8):
        codes = [random.randint(0, 255) for _ in range(random.randint(1, 8))]
        yield (codes, random.uniform(1e-3, 2.0), random.randint(0, 255))


def _parameters(
    steps: int = 255, zero: bool = True, rounding: Rounding | None = Rounding.HALF_EVEN
) -> Callable[[list[float]], tuple[float, float]]:
    """Return a mistaken choice of parameters that differs in the named respect."""

    def choose(values: list[float]) -> tuple[float, float]:
        with_zero = [*values, 0.0] if zero or not values else values
        low, high = min(with_zero), max(with_zero)
        scale = (high - low) / steps
        if scale == 0:
            return 1.0, 0
        if rounding is None:
            return scale, -low / scale
        return scale, min(max(round_to_int(Fraction(-low / scale), rounding), 0), 255)

    return choose


def _codes_with(rule: Rule) -> Any:
    return lambda values, scale, zero_point: rules.codes_of(values, scale, zero_point, rule)


def _by_rounding(rounding: Rounding) -> Any:
    return _codes_with(rules.with_rounding(rules.AFFINE, rounding))


def _by_reciprocal(values: list[float], scale: float, zero_point: int) -> list[int]:
    return [UINT8.clip(round(x * (1 / scale)) + zero_point) for x in values]


def _clip_then_add(values: list[float], scale: float, zero_point: int) -> list[int]:
    return [UINT8.clip(round(x / scale)) + zero_point for x in values]


def _parameter_work(arguments: Arguments, place: Place) -> tuple[Sentence, ...]:
    low, high = min([*arguments[0], 0.0]), max([*arguments[0], 0.0])
    scale, zero_point = affine_parameters(arguments[0])
    if (high - low) / 255 == 0:
        return (Sentence("range_zero", {"low": low, "high": high}),)
    if place == (1,):
        fields = {"low": low, "scale": scale, "quotient": -low / scale, "zero_point": zero_point}
        return (Sentence("zero_point", fields),)
    return (Sentence("range", {"low": low, "high": high, "scale": scale}),)


def _code_work(arguments: Arguments, place: Place) -> tuple[Sentence, ...]:
    values, scale, zero_point = arguments
    return code_work(values[place[0]], scale, zero_point, UINT8) if place else ()


def _unfold_work(arguments: Arguments, place: Place) -> tuple[Sentence, ...]:
    codes, scale, zero_point = arguments
    if not place:
        return ()
    code = codes[place[0]]
    value = (code - zero_point) * scale
    fields = {"code": code, "zero_point": zero_point, "scale": scale, "value": value}
    return (Sentence("unfold_affine", fields),)


_VALUES = Parameter("values", REAL, ("n",))
_SCALE = Parameter("scale", POSITIVE)
_ZERO_POINT = Parameter("zero_point", UCODE)

STEP = Step(
    3,
    "affine",
    (
        Function(
            affine_parameters,
            (_VALUES,),
            "tuple[float, int]",
            _ranges,
            mistakes=(
                Mistake("steps_256", _parameters(steps=256)),
                Mistake("zero_not_in_range", _parameters(zero=False)),
                Mistake("zero_point_not_rounded", _parameters(rounding=None)),
                Mistake("half_up", _parameters(rounding=Rounding.HALF_UP)),
                Mistake("truncation", _parameters(rounding=Rounding.TOWARD_ZERO)),
            ),
            work=_parameter_work,
        ),
        Function(
            quantize_affine,
            (_VALUES, _SCALE, _ZERO_POINT),
            "list[int]",
            _folds,
            mistakes=(
                Mistake(
                    "zero_point_before_rounding",
                    _codes_with(rules.with_order(rules.AFFINE, ZeroOrder.BEFORE_ROUNDING)),
                ),
                Mistake("half_up", _by_rounding(Rounding.HALF_UP)),
                Mistake("half_away", _by_rounding(Rounding.HALF_AWAY)),
                Mistake("truncation", _by_rounding(Rounding.TOWARD_ZERO)),
                Mistake("floor", _by_rounding(Rounding.FLOOR)),
                Mistake("no_clip", _codes_with(rules.without_clip(rules.AFFINE))),
                Mistake("clip_before_zero_point", _clip_then_add),
                Mistake("reciprocal", _by_reciprocal),
                Mistake("zero_point_forgotten", lambda v, s, z: quantize_affine(v, s, 0)),
            ),
            work=_code_work,
            valid=quotient_is_finite,
        ),
        Function(
            dequantize_affine,
            (Parameter("codes", UCODE, ("n",)), _SCALE, _ZERO_POINT),
            "list[float]",
            _unfolds,
            mistakes=(
                Mistake("zero_point_forgotten", lambda codes, scale, z: [c * scale for c in codes]),
                Mistake(
                    "distributed", lambda codes, scale, z: [c * scale - z * scale for c in codes]
                ),
            ),
            work=_unfold_work,
        ),
    ),
)
