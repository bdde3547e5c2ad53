"""Functions of one tensor, element by element, that are straight between corners.

The mean over a stretch of a slope that jumps at c is known exactly on the straight line from a
to b:

    mean of [x > c] = (max(b - c, 0) - max(a - c, 0)) / (b - a)

and the slope of each function here is a sum of such terms.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foldmark.graphs.derivative.facts import Fact, Facts
from foldmark.graphs.derivative.kink import Arrays, Float32
from foldmark.graphs.derivative.tape import Tape

__all__ = ["Corner", "Cornered", "ExponentialBelow", "Leaning"]

# Elements whose temporary arrays stay in a processor's cache.
_BLOCK = 1 << 14


@dataclass(frozen=True)
class Corner:
    """A term [x > limit] (jump + bend (x - limit)) of a slope, and a step of the value there."""

    limit: float
    jump: float
    bend: float = 0.0
    step: float = 0.0


@dataclass(frozen=True)
class Cornered:
    """A function of one tensor, element by element, whose slope jumps.

    Attributes:
        argument: name of the tensor.
        result: name of the function's value.
        first: slope below every limit.
        corners: what is added to it beyond each limit.
    """

    argument: str
    result: str
    first: float
    corners: tuple[Corner, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The one tensor."""
        return (self.argument,)

    @property
    def seen(self) -> tuple[str, ...]:
        """The one tensor."""
        return (self.argument,)

    def inputs(self, facts: Facts) -> dict[str, Fact]:
        """Return the input that takes the mean slope, of the tensor's type and shape."""
        fact = facts[self.argument]
        return {self._mean: Fact(fact.dtype, fact.shape)}

    def back(self, tape: Tape, gradient: str) -> dict[str, str]:
        """Append gradient * mean slope."""
        return {self.argument: tape.multiply(gradient, self._mean)}

    def means(
        self, low: Arrays, high: Arrays, memory: MutableMapping[str, Float32], /
    ) -> dict[str, NDArray[np.generic]]:
        """Return the mean slope."""
        begin, end = low[self.argument], high[self.argument]
        kept = memory.get(self._mean)
        if kept is None or kept.shape != begin.shape:
            kept = memory[self._mean] = np.empty(begin.shape, np.float32)
        floats = (array.astype(np.float32, copy=False) for array in (begin, end))
        slope = self.mean_slope(*floats, out=kept)
        return {self._mean: slope.astype(begin.dtype, copy=False)}

    def mean_slope(self, low: Float32, high: Float32, *, out: Float32 | None = None) -> Float32:
        """Return the slope's mean along the line from `low` to `high`, of their shape.

        It is written into `out` when that is given.
        """
        slope = np.empty(low.shape, np.float32) if out is None else out
        flat = slope.reshape(-1), low.reshape(-1), high.reshape(-1)
        # Where nothing moves the quotient is 0 / 0 or infinite, and right once it is bounded.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for start in range(0, slope.size, _BLOCK):
                self._turn(*(array[start : start + _BLOCK] for array in flat))
        return slope

    @property
    def _mean(self) -> str:
        return f"mean slope of {self.result}"

    def _turn(self, slope: Float32, low: Float32, high: Float32) -> None:
        """Write the slope: what it is below every corner, and what each adds."""
        slope.fill(self.first)
        top = np.maximum(low, high)
        width = np.abs(high - low)
        for corner in self.corners:
            limit = np.float32(corner.limit)
            share = (top - limit) / width
            np.fmin(np.fmax(share, 0, out=share), 1, out=share)  # these let go of NaN
            if corner.bend:
                middle = (np.maximum(low - limit, 0) + np.maximum(high - limit, 0)) / 2
                slope += share * (np.float32(corner.bend) * middle)
            if corner.step:
                crossed = (low > limit) != (high > limit)
                slope += np.where(crossed, np.float32(corner.step) / width, np.float32(0))
            slope += share if corner.jump == 1 else np.float32(corner.jump) * share


@dataclass(frozen=True)
class Leaning(Cornered):
    """x above zero, x times a stored tensor below: the corners are those of Relu.

    Attributes:
        below: name of the stored tensor, which broadcasts to the argument.
    """

    below: str

    def back(self, tape: Tape, gradient: str) -> dict[str, str]:
        """Append gradient * (below + (1 - below) * mean of [x > 0])."""
        one = tape.number(1, tape.facts[self.argument].dtype)
        rise = tape.multiply(self._mean, tape.subtract(one, self.below))
        return {self.argument: tape.multiply(gradient, tape.add(rise, self.below))}


@dataclass(frozen=True)
class ExponentialBelow(Cornered):
    """above * x above zero, below * (exp(x) - 1) below: the corners are those of Relu.

    Only the jump is a matter of the mean: below * exp(min(x, 0)) is the slope of a function
    without one, which nodes see better where they are.

    Attributes:
        above: slope above zero.
        below: slope just below zero.
    """

    above: float
    below: float

    def back(self, tape: Tape, gradient: str) -> dict[str, str]:
        """Append gradient * (below * exp(min(x, 0)) + (above - below) * mean of [x > 0])."""
        dtype = tape.facts[self.argument].dtype
        smooth = tape.emit("Exp", tape.emit("Min", self.argument, tape.number(0, dtype)))
        slope = tape.add(
            tape.scale(smooth, self.below, dtype),
            tape.scale(self._mean, self.above - self.below, dtype),
        )
        return {self.argument: tape.multiply(gradient, slope)}
