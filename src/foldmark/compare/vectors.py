"""Recorded answers of tools, and where another answer differs from them.

A vector is one answer: the input, the codes, the scale and the zero point that a tool returned.
`foldmark.compare.questions` says which entry of the catalogue each kind of vector is put to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import copysign, isnan
from typing import Any

from foldmark.exact.number import FloatFormat

__all__ = ["Answer", "Nested", "Vector", "differences", "flat"]

Nested = Any
"""A number, or lists of numbers of any depth."""


@dataclass(frozen=True, slots=True)
class Vector:
    """One recorded answer; what the tool did not return is None, what was not noted is empty."""

    id: str
    tool: str
    version: str
    call: str
    data: FloatFormat
    values: Nested
    codes: Nested
    scale: Nested
    scale_dtype: str
    zero_point: Nested
    note: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the catalogue answers; None where the question has no such part."""

    codes: Sequence[int] | None = None
    scale: Sequence[float] | None = None
    zero_point: Sequence[float] | None = None


def flat(nested: Nested) -> list[float]:
    """Return the numbers of nested lists in order; a single number is a list of one."""
    if isinstance(nested, list):
        return [number for part in nested for number in flat(part)]
    return [nested]


def differences(vector: Vector, answer: Answer) -> list[str]:
    """Return one sentence for each part in which answer and vector differ; empty if none."""
    found = []
    if vector.codes is not None:
        found += _differ("codes", [int(c) for c in flat(vector.codes)], answer.codes)
    if vector.scale is not None:
        found += _differ("scale", _rounded_scale(vector), answer.scale)
    if vector.zero_point is not None:
        found += _differ("zero point", flat(vector.zero_point), answer.zero_point)
    return found


def _rounded_scale(vector: Vector) -> list[float]:
    """Return the recorded scales in the dtype that they are written in at last."""
    if vector.scale_dtype.endswith("cast to weight dtype"):
        return [vector.data.round(scale) for scale in flat(vector.scale)]
    return flat(vector.scale)


def _differ(what: str, theirs: Sequence[float], ours: Sequence[float] | None) -> list[str]:
    if ours is None:
        return []
    if len(ours) != len(theirs):
        return [f"{what}: {len(ours)} instead of {len(theirs)}"]
    for index, (mine, yours) in enumerate(zip(ours, theirs, strict=True)):
        if not _same(mine, yours):
            return [f"{what}[{index}]: {mine!r} instead of {yours!r}"]
    return []


def _same(mine: float, yours: float) -> bool:
    if isnan(mine) or isnan(yours):
        return isnan(mine) and isnan(yours)
    both_zero_floats = mine == 0 and isinstance(mine, float) and isinstance(yours, float)
    return mine == yours and (not both_zero_floats or copysign(1, mine) == copysign(1, yours))
