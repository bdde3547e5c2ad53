"""Two rules side by side: the fields in which they differ, and a small input that shows it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Any

from foldmark.errors import FoldmarkError
from foldmark.exact.affine import codes_of, grid_of
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.grid import choose_grid
from foldmark.exact.number import FloatFormat, IntegerFormat
from foldmark.exact.rule import AffineRule, Rule

__all__ = ["Parting", "differing_fields", "first_parting", "parting_of_operators", "settings"]

_LABELS = {"name", "source", "versions"}
# A fraction below, at and above each half-step: near a tie the last bit of a product decides.
_NEIGHBOURS = (0, 1, -1, 2, -2)


@dataclass(frozen=True, slots=True)
class Parting:
    """An input on which two rules give different codes.

    values               one group, in the dtype of the data
    first, second        its codes; `steps` says that they are counted from the zero point
    scale, zero_point    given ones, where the rules are operators; None for whole rules
    """

    values: tuple[float, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]
    scale: float | None = None
    zero_point: int | None = None


def differing_fields(first: object, second: object) -> list[tuple[str, str, str]]:
    """Return path, first and second setting of every field in which two values differ.

    Names, sources and versions are left out.
    """
    ours, theirs = dict(settings(first)), dict(settings(second))
    paths = dict.fromkeys([*ours, *theirs])
    return [
        (path, ours.get(path, "-"), theirs.get(path, "-"))
        for path in paths
        if ours.get(path) != theirs.get(path)
    ]


def first_parting(first: Rule, second: Rule, data: FloatFormat = FLOAT32) -> Parting | None:
    """Return the simplest group on which two rules' codes part; None if none was found.

    Simplest means: fewest values, then smallest ones, of the groups that are tried: one or two
    halves from -8 to 8, or three from -3 to 3; then ends that make the scale 1 with halves between
    them; then other ends with half-steps of their grid and the numbers next to these. What is
    found is stripped of every value that it can do without. Codes are compared as they are when
    both rules have the same codes, else as steps from zero.
    """
    for values in _groups(first, second, data):
        if _parts(values, first, second, data):
            return _shrunk(values, first, second, data)
    return None


def parting_of_operators(
    first: AffineRule, second: AffineRule, data: FloatFormat = FLOAT32
) -> Parting | None:
    """Return the simplest value, scale and zero point on which two operators part; None if none.

    Tried are: scale 1 with every half from -8 to 8 and zero points 0 and 1; then scales with
    inexact reciprocals and the neighbours of their half-steps; then numbers beyond the codes.
    """
    for value, scale, zero_point in _operator_inputs(first, data):
        ours, theirs = (
            _try_value(value, scale, zero_point, rule, data) for rule in (first, second)
        )
        if ours is not None and theirs is not None and ours != theirs:
            return Parting((value,), (ours,), (theirs,), scale, zero_point)
    return None


def settings(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Return path and setting of every field of a rule, names and sources left out."""
    if isinstance(value, FloatFormat):
        yield path, value.name
    elif isinstance(value, IntegerFormat):
        yield path, f"{value.minimum}..{value.maximum}"
    elif is_dataclass(value):
        for field in fields(value):
            if path or field.name not in _LABELS:
                inner = f"{path}.{field.name}" if path else field.name
                yield from settings(getattr(value, field.name), inner)
    elif isinstance(value, tuple):
        for index, part in enumerate(value):
            yield from settings(part, f"{path}[{index}]")
    else:
        yield path, _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name.lower().replace("_", " ")
    if isinstance(value, Fraction):
        return str(value.numerator) if value.denominator == 1 else str(float(value))
    return "-" if value is None else str(value)


def _groups(first: Rule, second: Rule, data: FloatFormat) -> Iterator[tuple[float, ...]]:
    halves = sorted((n / 2 for n in range(-16, 17)), key=lambda v: (abs(v), v < 0))
    for count, furthest in ((1, 8.0), (2, 8.0), (3, 3.0)):
        small = [half for half in halves if abs(half) <= furthest]
        tried = combinations_with_replacement(small, count)
        yield from sorted(tried, key=lambda group: max(map(abs, group)))
    for ends in _even_ends(first, second):
        inside = (half for half in halves if ends[0] <= half <= ends[-1])
        yield from ((*ends, half) for half in inside)
    for top in (1.0, 0.7, 1.1, 3.0, 100.0):
        for ends in ((top,), (-top,), (-0.7 * top, top), (-top, 0.3 * top)):
            rounded = tuple(data.round(end) for end in ends)
            for rule in (first, second):
                yield from _near_ties(rounded, rule, data)


def _even_ends(first: Rule, second: Rule) -> Iterator[tuple[float, ...]]:
    """Return ends from which one of the rules computes a scale of 1."""
    for rule in (first, second):
        steps = float(rule.scale.denominator * rule.affine.codes_per_scale)
        yield from ((0.0, steps), (-steps, 0.0), (-steps, steps))
        low = float(int(steps) // 2)
        yield from ((-low, steps - low), (-low - 1, steps - low - 1), (1 - low, steps - low + 1))


def _near_ties(
    ends: tuple[float, ...], rule: Rule, data: FloatFormat
) -> Iterator[tuple[float, ...]]:
    grid = choose_grid(ends, rule, data)
    step = abs(grid.scale) / float(rule.affine.codes_per_scale)
    for half in range(-63, 64, 2):
        tie = half / 2 * step
        if min(*ends, 0.0) < tie < max(*ends, 0.0):
            yield from ((*ends, near) for near in _neighbours(data.round(tie), data))


def _neighbours(value: float, data: FloatFormat) -> Iterator[float]:
    code = data.encode(value)
    for distance in _NEIGHBOURS:
        yield data.decode(code + distance)


def _operator_inputs(rule: AffineRule, data: FloatFormat) -> Iterator[tuple[float, float, int]]:
    halves = sorted((n / 2 for n in range(-16, 17)), key=lambda v: (abs(v), v < 0))
    middles = (0, 1, rule.codes.clip((rule.codes.minimum + rule.codes.maximum) // 2 + 1))
    for zero_point in middles:
        yield from ((half, 1.0, zero_point) for half in halves)
    for scale in (data.round(s) for s in (0.1, 0.3, 0.7, 0.00214854861)):
        for half in range(1, 2 * min(rule.codes.maximum, 255), 2):
            tie = data.round(half / 2 * scale)
            yield from ((near, scale, 0) for near in _neighbours(tie, data))
    for huge in (2.0**31, -(2.0**31), float(data.maximum), -float(data.maximum)):
        yield (data.round(huge), 1.0, 0)
    yield from ((special, 1.0, 0) for special in (float("inf"), float("-inf"), float("nan")))


def _parts(values: Sequence[float], first: Rule, second: Rule, data: FloatFormat) -> bool:
    ours, theirs = _try(values, first, data), _try(values, second, data)
    if ours is None or theirs is None:
        return False
    if first.codes == second.codes:
        return ours[0] != theirs[0]
    return _from_zero(*ours) != _from_zero(*theirs)


def _shrunk(
    values: tuple[float, ...], first: Rule, second: Rule, data: FloatFormat
) -> Parting | None:
    for index in range(len(values)):
        fewer = values[:index] + values[index + 1 :]
        if fewer and _parts(fewer, first, second, data):
            return _shrunk(fewer, first, second, data)
    ours, theirs = _try(values, first, data), _try(values, second, data)
    return Parting(values, ours[0], theirs[0]) if ours and theirs else None


def _try(
    values: Sequence[float], rule: Rule, data: FloatFormat
) -> tuple[tuple[int, ...], float] | None:
    try:
        grid = choose_grid(values, rule, data)
        return tuple(codes_of(values, grid, rule.affine, data)), grid.zero_point
    except FoldmarkError:
        return None


def _try_value(
    value: float, scale: float, zero_point: int, rule: AffineRule, data: FloatFormat
) -> int | None:
    try:
        return codes_of([value], grid_of(scale, zero_point, rule, data), rule, data)[0]
    except FoldmarkError:
        return None


def _from_zero(codes: tuple[int, ...], zero_point: float) -> list[float]:
    return [code - zero_point for code in codes]
