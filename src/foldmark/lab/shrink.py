"""Make failing arguments smaller: fewer numbers first, then plainer ones."""

from collections.abc import Iterator
from math import copysign
from typing import Any

from foldmark.lab.exercise import POSITIVE, Arguments, Function, Number, Parameter

__all__ = ["measure", "smaller"]


def measure(arguments: Arguments) -> tuple[int, int, float]:
    """Return how large arguments are: how many numbers, how many characters, what magnitude."""
    numbers = list(_numbers(arguments))
    return len(numbers), sum(len(repr(n)) for n in numbers), float(sum(map(abs, numbers)))


def smaller(function: Function, arguments: Arguments) -> list[Arguments]:
    """Return arguments like the given ones but smaller, smallest first, all of them valid."""
    size = measure(arguments)
    found = {}
    for candidate in (
        *_shorter(function, arguments),
        *_plainer(function, arguments),
        *_unscaled(function, arguments),
    ):
        if measure(candidate) < size and function.valid(*candidate):
            found[repr(candidate)] = candidate
    return sorted(found.values(), key=measure)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _numbers(item)
    else:
        yield value


def _shorter(function: Function, arguments: Arguments) -> Iterator[Arguments]:
    """Leave out the second half, the first half, or one index, along each named length."""
    for dim in dict.fromkeys(name for one in function.parameters for name in one.dims):
        length = _length(function.parameters, arguments, dim)
        cuts = [range(length // 2, length), range(length // 2), *([i] for i in range(length))]
        for cut in cuts:
            if cut:
                yield tuple(
                    _without(argument, parameter.dims, dim, set(cut))
                    for argument, parameter in zip(arguments, function.parameters, strict=True)
                )


def _length(parameters: tuple[Parameter, ...], arguments: Arguments, dim: str) -> int:
    for argument, parameter in zip(arguments, parameters, strict=True):
        if dim in parameter.dims:
            level = argument
            for name in parameter.dims:
                if name == dim:
                    return len(level)
                if not level:
                    break
                level = level[0]
    return 0


def _without(value: Any, dims: tuple[str, ...], dim: str, cut: set[int]) -> Any:
    if not dims:
        return value
    kept = [item for index, item in enumerate(value) if dims[0] != dim or index not in cut]
    return [_without(item, dims[1:], dim, cut) for item in kept]


def _plainer(function: Function, arguments: Arguments) -> Iterator[Arguments]:
    """Replace one number by a plainer one."""
    for position, parameter in enumerate(function.parameters):
        for changed in _replaced(arguments[position], parameter.number):
            yield (*arguments[:position], changed, *arguments[position + 1 :])


def _unscaled(function: Function, arguments: Arguments) -> Iterator[Arguments]:
    """Set a scale to 1 and divide the real numbers by it: the quotients stay."""
    for position, parameter in enumerate(function.parameters):
        if parameter.number is POSITIVE and not parameter.dims:
            scale = arguments[position]
            changed = [
                _divided(argument, scale) if other.number.annotation == "float" else argument
                for argument, other in zip(arguments, function.parameters, strict=True)
            ]
            changed[position] = 1.0
            yield tuple(changed)


def _divided(value: Any, scale: float) -> Any:
    return [_divided(v, scale) for v in value] if isinstance(value, list) else value / scale


def _replaced(value: Any, number: Number) -> Iterator[Any]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            for changed in _replaced(item, number):
                yield [*value[:index], changed, *value[index + 1 :]]
        return
    candidates = _plainer_integers(value) if number.annotation == "int" else _plainer_floats(value)
    for candidate in candidates:
        if candidate != value and number.allows(candidate):
            yield candidate


def _plainer_integers(value: int) -> list[int]:
    return [0, 1, 2, abs(value), int(value / 2), value - (1 if value > 0 else -1)]


def _plainer_floats(value: float) -> list[float]:
    plain = [0.0, 1.0, 2.0, 0.5, 1.5, 2.5, abs(value)]
    if abs(value) > 128:  # large enough to be clipped is large enough
        plain += [copysign(128.0, value), copysign(256.0, value)]
    if abs(value) < 1e15:
        plain += [float(int(value)), round(value * 2) / 2, float(round(value))]
    return [*plain, *(float(f"{value:.{digits}g}") for digits in (1, 2, 3, 5))]
