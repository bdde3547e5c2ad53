"""The nouns of the course: a step, its functions, their parameters, and the usual wrong answers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

__all__ = [
    "CODE",
    "INT32",
    "NIBBLE",
    "PERCENT",
    "POSITIVE",
    "REAL",
    "UCODE",
    "WIDE_CODE",
    "Arguments",
    "Function",
    "Mistake",
    "Number",
    "Parameter",
    "Sentence",
    "Step",
]

Arguments = tuple[Any, ...]
Place = tuple[int, ...]


@dataclass(frozen=True)
class Number:
    """What one number of a parameter may be: its Python type and its range."""

    annotation: str
    low: float
    high: float

    def allows(self, number: float) -> bool:
        """Say whether `number` is such a number."""
        return self.low <= number <= self.high and (
            self.annotation == "float" or isinstance(number, int)
        )


REAL = Number("float", -1e300, 1e300)
POSITIVE = Number("float", 5e-324, 1e300)
CODE = Number("int", -127, 127)
UCODE = Number("int", 0, 255)
NIBBLE = Number("int", -8, 7)
WIDE_CODE = Number("int", -32767, 32767)
INT32 = Number("int", -(1 << 31), (1 << 31) - 1)
PERCENT = Number("int", 1, 100)


@dataclass(frozen=True)
class Parameter:
    """One argument of a function: a number, a list of them, or a list of equal lists.

    `dims` names the length of each list level. Two parameters that share a name have the same
    length there, and shrink together.
    """

    name: str
    number: Number
    dims: tuple[str, ...] = ()

    @property
    def annotation(self) -> str:
        """The type as it is written in quant.py."""
        text = self.number.annotation
        for _ in self.dims:
            text = f"list[{text}]"
        return text


@dataclass(frozen=True)
class Sentence:
    """A line of explanation: the key of its text in each language, and the numbers in it."""

    key: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Mistake:
    """A usual wrong answer: what a function with this fault returns for given arguments."""

    key: str
    answer: Callable[..., Any]


def _always(*_: object) -> bool:
    return True


def _no_work(*_: object) -> tuple[Sentence, ...]:
    return ()


@dataclass(frozen=True)
class Function:
    """One function that the learner writes.

    answer     the right answer, computed by `foldmark.exact`
    returns    its type as written in quant.py
    draw       telling arguments, fresh from a random source
    tolerance  0: floats are compared bit for bit; else |a - b| <= tolerance * max(|a|, |b|) or
               <= tolerance / 1000
    mistakes   the usual wrong answers
    work       the arithmetic of one answer, in sentences: (arguments, place in the answer)
    fair       False for arguments at which a rounding inside hangs on the order of float sums
    valid      what the arguments must satisfy beyond the ranges of their numbers
    """

    answer: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    returns: str
    draw: Callable[[Random], Iterable[Arguments]]
    tolerance: float = 0.0
    mistakes: tuple[Mistake, ...] = ()
    work: Callable[[Arguments, Place], tuple[Sentence, ...]] = _no_work
    fair: Callable[..., bool] = _always
    valid: Callable[..., bool] = _always

    @property
    def name(self) -> str:
        """The name that the learner defines."""
        return self.answer.__name__

    @property
    def signature(self) -> str:
        """The line that stands in quant.py."""
        inside = ", ".join(f"{one.name}: {one.annotation}" for one in self.parameters)
        return f"def {self.name}({inside}) -> {self.returns}:"


@dataclass(frozen=True)
class Step:
    """One chapter of the course: its number, the name of its text, its functions."""

    number: int
    name: str
    functions: tuple[Function, ...]
