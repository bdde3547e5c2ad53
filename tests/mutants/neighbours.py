"""The neighbours of a rule: every value that differs from it in the setting of one field."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import Any

from foldmark.errors import FoldmarkError
from foldmark.exact.catalog import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from foldmark.exact.number import FloatFormat, IntegerFormat
from foldmark.exact.rule import DataConstant, DataType, TinyRange

PRECISIONS = (FLOAT64, FLOAT32, FLOAT16, BFLOAT16, DataType.DATA)
NAMES = {"name", "source", "versions"}


def neighbours(value: Any, path: str = "") -> Iterator[tuple[str, str, Any]]:
    """Return (field, new setting, neighbour) for every field and every setting beside its own.

    Neighbours that contradict themselves (a real zero point that is rounded, say) do not exist.
    """
    for field in fields(value):
        if field.name in NAMES:
            continue
        inner = f"{path}.{field.name}" if path else field.name
        for below, setting, changed in _changes(getattr(value, field.name), inner):
            try:
                yield below, setting, replace(value, **{field.name: changed})
            except FoldmarkError:
                continue


def _changes(setting: Any, path: str) -> Iterator[tuple[str, str, Any]]:  # noqa: PLR0912
    if isinstance(setting, FloatFormat | DataType) or path.endswith("precision"):
        for other in PRECISIONS:
            if other != setting:
                yield path, getattr(other, "name", str(other)), other
    elif isinstance(setting, IntegerFormat):
        for other in _integer_formats(setting):
            yield path, f"{other.minimum}..{other.maximum}", other
    elif isinstance(setting, tuple):
        yield from _tiny_changes(setting, path)
    elif is_dataclass(setting):
        yield from neighbours(setting, path)
    elif isinstance(setting, Enum):
        for member in type(setting):
            if member != setting:
                yield path, member.name, member
    elif isinstance(setting, Fraction):
        for step in (Fraction(1, 2), Fraction(-1, 2), Fraction(1), Fraction(-1)):
            if setting + step > 0:
                yield path, str(setting + step), setting + step
    elif isinstance(setting, int):
        for other in (setting + 1, setting - 1):
            yield path, str(other), other


def _integer_formats(codes: IntegerFormat) -> Iterator[IntegerFormat]:
    low, high = codes.minimum, codes.maximum
    for minimum, maximum in ((low + 1, high), (low - 1, high), (low, high - 1), (low, high + 1)):
        try:
            yield IntegerFormat("neighbour", codes.bits, minimum, maximum)
        except FoldmarkError:
            yield IntegerFormat("neighbour", codes.bits + 1, minimum, maximum)


def _tiny_changes(tiny: tuple[TinyRange, ...], path: str) -> Iterator[tuple[str, str, Any]]:
    for index, treatment in enumerate(tiny):
        place = f"{path}[{index}]"
        without = tiny[:index] + tiny[index + 1 :]
        yield place, "removed", without
        for field, setting, changed in neighbours(treatment, place):
            yield field, setting, (*tiny[:index], changed, *tiny[index + 1 :])
        if not isinstance(treatment.value, DataConstant):
            doubled = replace(treatment, value=treatment.value * 2 or 1.0)
            yield f"{place}.value", "doubled", (*tiny[:index], doubled, *tiny[index + 1 :])
        if not isinstance(treatment.below, DataConstant):
            raised = replace(treatment, below=max(treatment.below * 4, 1e-30))
            yield f"{place}.below", "raised", (*tiny[:index], raised, *tiny[index + 1 :])
        forgotten = replace(treatment, zero_point=None if treatment.zero_point is not None else 1)
        yield f"{place}.zero_point", "other", (*tiny[:index], forgotten, *tiny[index + 1 :])
