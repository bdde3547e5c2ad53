"""Step 12: fixed-point requantization: a real factor as an integer and a shift."""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from random import Random
from typing import Any

from foldmark.exact.catalog import INT8
from foldmark.exact.requantize import (
    FixedPointMultiplier,
    FixedPointRounding,
    quantize_multiplier,
    requantize_fixed_point,
)
from foldmark.lab.exercise import (
    INT32,
    Arguments,
    Function,
    Mistake,
    Number,
    Parameter,
    Place,
    Sentence,
    Step,
)

_FACTOR = Number("float", 2.0**-24, 1.0 - 2.0**-40)
_MULTIPLIER = Number("int", 1 << 30, (1 << 31) - 1)
_SHIFT = Number("int", 31, 54)
_ZERO_POINT = Number("int", -128, 127)


def fixed_multiplier(factor: float) -> tuple[int, int]:
    """Return (multiplier, shift): factor = multiplier / 2^shift, 2^30 <= multiplier < 2^31."""
    found = quantize_multiplier(factor)
    return found.mantissa, 31 - found.shift


def requantize(accumulator: int, multiplier: int, shift: int, zero_point: int) -> int:
    """Return the int8 code: round(accumulator * multiplier / 2^shift), halves up, + zero point."""
    fixed = FixedPointMultiplier(multiplier, 31 - shift)
    single = FixedPointRounding.SINGLE
    return requantize_fixed_point(accumulator, fixed, zero_point, INT8, single)


def _factors(random: Random) -> Iterator[Arguments]:
    yield (0.5,)
    yield (0.25,)
    yield (0.75,)
    yield (1.0 - 2.0**-40,)
    yield (0.5 - 2.0**-40,)
    for _ in range(6):
        # A half-step of the multiplier: bit 32 after the leading one is set, nothing after it.
        odd = 2 * random.randint(1 << 30, (1 << 31) - 2) + 1
        yield (odd * 2.0 ** -random.randint(32, 40),)
    for _ in range(16):
        yield (random.uniform(0.0001, 0.9999) * 2.0 ** -random.randint(0, 8),)


def _accumulators(random: Random) -> Iterator[Arguments]:
    half = 1 << 30
    for accumulator in (1, -1, 3, -3, 5, -5, 255, -257):
        yield (accumulator, half, 31, 0)
    yield (0, half, 40, -7)
    yield ((1 << 31) - 1, (1 << 31) - 1, 31, 0)
    yield (-(1 << 31), (1 << 31) - 1, 31, 0)
    for _ in range(8):
        shift = random.randint(31, 40)
        ties = (2 * random.randint(-120, 120) + 1) << (shift - 31)
        yield (ties, half, shift, random.randint(-20, 20))
    for _ in range(14):
        shift = random.randint(31, 45)
        reach = min((1 << 31) - 1, 300 << (shift - 31))
        multiplier = random.randint(half, (1 << 31) - 1)
        yield (random.randint(-reach, reach), multiplier, shift, random.randint(-128, 127))


def _enough_bits(factor: float) -> bool:
    return 2.0**-24 < factor < 1


def _multiplier_by(rounding: Callable[[float], int]) -> Callable[..., Any]:
    def multiplier(factor: float) -> tuple[int, int]:
        mantissa, exponent = math.frexp(factor)
        return rounding(mantissa * 2**31), 31 - exponent

    return multiplier


def _one_bit_less(factor: float) -> tuple[int, int]:
    multiplier, shift = fixed_multiplier(factor)
    return (multiplier + 1) // 2, shift - 1


def _by_integers(rounding: Callable[[Fraction], int]) -> Callable[..., Any]:
    def code(accumulator: int, multiplier: int, shift: int, zero_point: int) -> int:
        exact = Fraction(accumulator * multiplier, 1 << shift)
        return INT8.clip(rounding(exact) + zero_point)

    return code


def _away(exact: Fraction) -> int:
    return math.floor(exact + Fraction(1, 2)) if exact >= 0 else math.ceil(exact - Fraction(1, 2))


def _unclipped(accumulator: int, multiplier: int, shift: int, zero_point: int) -> int:
    return ((accumulator * multiplier + (1 << (shift - 1))) >> shift) + zero_point


def _clip_first(accumulator: int, multiplier: int, shift: int, zero_point: int) -> int:
    return INT8.clip(_unclipped(accumulator, multiplier, shift, 0)) + zero_point


def _by_floats(accumulator: int, multiplier: int, shift: int, zero_point: int) -> int:
    return INT8.clip(round(accumulator * (multiplier / 2**shift)) + zero_point)


def _multiplier_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    mantissa, exponent = math.frexp(arguments[0])
    fields = {"factor": arguments[0], "mantissa": mantissa, "exponent": exponent}
    return (Sentence("mantissa", {**fields, "product": mantissa * 2**31}),)


def _requantize_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    accumulator, multiplier, shift, zero_point = arguments
    product = accumulator * multiplier
    rounded = (product + (1 << (shift - 1))) >> shift
    fields = {"product": product, "shift": shift, "half": 1 << (shift - 1), "rounded": rounded}
    lines = [
        Sentence("shifted", fields),
        Sentence("add_zero_point", {"a": rounded, "b": zero_point, "code": rounded + zero_point}),
    ]
    code = rounded + zero_point
    if INT8.clip(code) != code:
        lines.append(
            Sentence("clip", {"code": code, "low": -128, "high": 127, "clipped": INT8.clip(code)})
        )
    return tuple(lines)


STEP = Step(
    12,
    "requantize",
    (
        Function(
            fixed_multiplier,
            (Parameter("factor", _FACTOR),),
            "tuple[int, int]",
            _factors,
            mistakes=(
                Mistake("half_even", _multiplier_by(round)),
                Mistake("truncation", _multiplier_by(int)),
                Mistake("multiplier_2_31", _multiplier_by(lambda x: math.floor(x + 0.5))),
                Mistake("one_bit_less", _one_bit_less),
            ),
            work=_multiplier_work,
            valid=_enough_bits,
        ),
        Function(
            requantize,
            (
                Parameter("accumulator", INT32),
                Parameter("multiplier", _MULTIPLIER),
                Parameter("shift", _SHIFT),
                Parameter("zero_point", _ZERO_POINT),
            ),
            "int",
            _accumulators,
            mistakes=(
                Mistake("half_even", _by_integers(round)),
                Mistake("half_away", _by_integers(_away)),
                Mistake("shift_without_rounding", _by_integers(math.floor)),
                Mistake("truncation", _by_integers(int)),
                Mistake("no_clip", _unclipped),
                Mistake("clip_before_zero_point", _clip_first),
                Mistake("by_floats", _by_floats),
            ),
            work=_requantize_work,
        ),
    ),
)
