"""The arithmetic of one answer, line by line, for the explanation of a failure."""

from fractions import Fraction
from math import floor

from foldmark.exact.number import IntegerFormat
from foldmark.exact.rounding import Rounding, round_to_int
from foldmark.lab.exercise import Sentence

__all__ = ["code_work", "rounding_work", "scale_work"]

_HALF = Fraction(1, 2)


def rounding_work(value: float, rounding: Rounding = Rounding.HALF_EVEN) -> tuple[Sentence, ...]:
    """Say between which integers a value lies and which one the rule takes."""
    exact = Fraction(value)
    low, code = floor(exact), round_to_int(exact, rounding)
    if exact == low:
        return (Sentence("whole", {"value": value, "code": code}),)
    if exact - low != _HALF:
        return (Sentence("nearest", {"value": value, "code": code}),)
    key = "tie_even" if rounding == Rounding.HALF_EVEN else "tie_away"
    return (Sentence(key, {"value": value, "low": low, "high": low + 1, "code": code}),)


def code_work(
    x: float, scale: float, zero_point: int | None, codes: IntegerFormat
) -> tuple[Sentence, ...]:
    """Say how x becomes a code: division, rounding, zero point, clipping."""
    quotient = x / scale
    rounded = round_to_int(Fraction(quotient), Rounding.HALF_EVEN)
    lines = [Sentence("divide", {"x": x, "scale": scale, "quotient": quotient})]
    lines += rounding_work(quotient)
    code = rounded
    if zero_point is not None:
        code = rounded + zero_point
        lines.append(Sentence("add_zero_point", {"a": rounded, "b": zero_point, "code": code}))
    if codes.clip(code) != code:
        fields = {"code": code, "low": codes.minimum, "high": codes.maximum}
        lines.append(Sentence("clip", {**fields, "clipped": codes.clip(code)}))
    return tuple(lines)


def scale_work(values: list[float], steps: int) -> tuple[Sentence, ...]:
    """Say how the scale follows from the largest magnitude."""
    largest = max(map(abs, values), default=0.0)
    scale = largest / steps
    if scale == 0:
        return (Sentence("scale_zero", {"largest": largest, "steps": steps}),)
    return (Sentence("scale", {"largest": largest, "steps": steps, "scale": scale}),)
