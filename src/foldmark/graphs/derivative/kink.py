"""What a function with a kink must tell, for its mean slope over a stretch to be taken."""

from collections.abc import Mapping, MutableMapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from foldmark.graphs.derivative.facts import Fact, Facts
from foldmark.graphs.derivative.tape import Tape

__all__ = ["Arrays", "Float32", "Kink"]

Float32 = NDArray[np.float32]
Arrays = Mapping[str, NDArray[np.generic]]


class Kink(Protocol):
    """A function whose slope jumps, on the line between its arguments' values at two ends."""

    @property
    def result(self) -> str:
        """Name of the function's value."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the tensors whose gradients it gives."""

    @property
    def seen(self) -> tuple[str, ...]:
        """Names of the values that are looked at on both ends of a stretch."""

    def inputs(self, facts: Facts) -> dict[str, Fact]:
        """Return the inputs that take the means, with their types and shapes."""

    def back(self, tape: Tape, gradient: str) -> dict[str, str]:
        """Append the gradients of the arguments, given the result's; return their names."""

    def means(
        self, low: Arrays, high: Arrays, memory: MutableMapping[str, Float32], /
    ) -> dict[str, NDArray[np.generic]]:
        """Return what the inputs take on the line from `low` to `high`.

        low, high  what was seen at the two ends
        memory     arrays kept from the stretch before, by the name of the input: touching fresh
                   memory costs more than the arithmetic
        """
