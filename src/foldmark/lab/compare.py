"""Where a learner's answer parts from the right one."""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = ["Difference", "Fault", "difference"]


class Fault(Enum):
    """In what way an answer differs."""

    TYPE = "type"
    LENGTH = "length"
    VALUE = "value"


@dataclass(frozen=True)
class Difference:
    """The first place at which two answers part, and what stands there in each."""

    fault: Fault
    place: tuple[int, ...]
    got: Any
    expected: Any


def difference(
    expected: Any, got: Any, tolerance: float, place: tuple[int, ...] = ()
) -> Difference | None:
    """Return the first difference between the right answer and the given one; None if equal.

    Integers must be integers and equal. Floats must be equal (both zeros are one number), or
    within the tolerance; an integer may stand where a float is expected. Tuples are lists here.
    """
    if isinstance(expected, (list, tuple)):
        return _list_difference(expected, got, tolerance, place)
    whole = isinstance(expected, int)
    if type(got) not in ((int,) if whole else (int, float)):
        return Difference(Fault.TYPE, place, got, expected)
    if _same(expected, got, 0.0 if whole else tolerance):
        return None
    return Difference(Fault.VALUE, place, got, expected)


def _list_difference(
    expected: Any, got: Any, tolerance: float, place: tuple[int, ...]
) -> Difference | None:
    if not isinstance(got, (list, tuple)):
        return Difference(Fault.TYPE, place, got, expected)
    if len(got) != len(expected):
        return Difference(Fault.LENGTH, place, got, expected)
    for index, (right, given) in enumerate(zip(expected, got, strict=True)):
        found = difference(right, given, tolerance, (*place, index))
        if found:
            return found
    return None


def _same(expected: float, got: float, tolerance: float) -> bool:
    if got == expected:
        return True
    if not tolerance:
        return False
    try:
        return math.isclose(expected, got, rel_tol=tolerance, abs_tol=tolerance / 1000)
    except OverflowError:  # an integer beyond the floats
        return False
