"""An output's axes, brought to one form: samples, rows, classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Self

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import DataMismatch, OutputNotComparable
from foldmark.graphs.emitter import Emitter

__all__ = ["Layout", "labels_that_fit_none"]


@dataclass(frozen=True)
class Layout:
    """How an output is read as (samples, rows, classes).

    Logits (n, classes) have one row a sample, token outputs (n, tokens, classes) a row a token,
    images (n, classes, height, width) a row a pixel.

    Attributes:
        whole: the output's shape with the axis of samples in front.
        order: permutation of `whole` that brings the classes to the end.
    """

    whole: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, name: str, shape: tuple[int, ...], samples: int) -> Self:
        """Return the layout of an output of this shape after a run of so many samples.

        Raises:
            OutputNotComparable: its first axis does not count the samples.
        """
        if shape and shape[0] == samples:
            whole = shape if len(shape) > 1 else (*shape, 1)
        elif samples == 1:
            whole = (1, *(shape or (1,)))
        elif shape and shape[0] % samples == 0 and shape[0]:
            whole = (samples, shape[0] // samples, *(shape[1:] or (1,)))
        else:
            raise OutputNotComparable(
                "its first axis does not count the samples",
                where=f"output {name!r}",
                got=str(list(shape)),
                expected=f"[{samples}, ...]",
                todo="compare another output, or run one sample at a time (--batch-size 1)",
            )
        order = tuple(range(len(whole)))
        if len(whole) >= 4:
            order = (0, *range(2, len(whole)), 1)
        return cls(whole, order)

    @property
    def rows(self) -> tuple[int, int, int]:
        """The shape (samples, rows, classes)."""
        moved = [self.whole[axis] for axis in self.order]
        return moved[0], prod(moved[1:-1]), moved[-1]

    def takes(self, labels: NDArray[np.generic]) -> bool:
        """Return whether labels are one class a sample, or one for each of its rows."""
        samples, rows, classes = self.rows
        return classes > 1 and labels.size in (samples, samples * rows)

    def apply(self, output: NDArray[np.generic]) -> NDArray[np.float64]:
        """Return the output as (samples, rows, classes) in double precision."""
        moved = output.reshape(self.whole).transpose(self.order)
        return moved.reshape(self.rows).astype(np.float64)

    def emit(self, emitter: Emitter, output: str) -> str:
        """Append what `apply` does, without the change of precision."""
        whole = emitter.reshape(output, self.whole)
        return emitter.reshape(emitter.transpose(whole, self.order), self.rows)


def labels_that_fit_none(labels: NDArray[np.generic], layouts: Sequence[Layout]) -> DataMismatch:
    """Return the error of labels that none of these outputs takes."""
    samples = layouts[0].rows[0]
    several = [f"{rows}" for rows in dict.fromkeys(each.rows[1] for each in layouts) if rows > 1]
    return DataMismatch(
        "the labels do not fit the output" + "s" * (len(layouts) > 1),
        where="labels",
        got=f"{labels.size / samples:g} a sample",
        expected=" or ".join(["1", *several])
        + " (one class per row of the output)" * bool(several),
        todo="one-hot labels become classes with .argmax(-1)",
    )
