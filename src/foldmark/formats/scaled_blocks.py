"""Codes with one scale, and perhaps one zero point, for each of a grid of blocks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from foldmark.formats.stored import Part, Run, Span, StoredTensor
from foldmark.formats.values import Array, Layout, PackedCodes, Values

__all__ = ["Held", "Numbers", "ScaledBlocks"]


class Numbers(Protocol):
    """A constant of a file: read in part, in C order, or whole."""

    @property
    def elements(self) -> int:
        """How many numbers there are."""
        ...

    def read(self, first: int, last: int) -> Array:
        """Read elements first..last in C order."""
        ...

    def stored(self, first: int, last: int, shape: tuple[int, ...]) -> Array | PackedCodes:
        """Read elements first..last in C order, left in their bytes where that is possible."""
        ...

    def load(self) -> Array:
        """Read everything."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Held:
    """Numbers that are in memory already."""

    array: Array

    @property
    def elements(self) -> int:
        """How many numbers there are."""
        return self.array.size

    def read(self, first: int, last: int) -> Array:
        """Return elements first..last in C order."""
        return self.array.reshape(-1)[first:last]

    def stored(self, first: int, last: int, shape: tuple[int, ...]) -> Array:
        """Return elements first..last in C order."""
        return self.read(first, last).reshape(shape)

    def load(self) -> Array:
        """Return everything."""
        return self.array


@dataclass(frozen=True, eq=False, slots=True)
class ScaledBlocks:
    """Codes, scales and zero points that lie each for itself.

    Attributes:
        codes: in C order of `shape`.
        scale: one a block in C order of the blocks; one alone serves all.
        zero_points: likewise; None for none. Integers come as int32, others as they are stored.
        shape: of the codes.
        block: how far one scale reaches along each axis.
    """

    codes: Numbers
    scale: Numbers
    zero_points: Numbers | None
    shape: tuple[int, ...]
    block: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Blocks along each axis."""
        return tuple(-(-n // b) for n, b in zip(self.shape, self.block, strict=True))

    @property
    def step(self) -> int:
        """What pieces along the first axis begin at multiples of."""
        return self.block[0] if self.shape and self.counts[0] > 1 else 1

    def tensor(
        self, name: str, layout: Layout, spans: tuple[Span, ...], parts: Mapping[Part, int]
    ) -> StoredTensor:
        """Return the tensor of a file that consists of these."""
        return StoredTensor(
            name,
            self.shape,
            layout,
            spans,
            parts,
            self.read,
            walk_step=self.step,
            finest_step=1,
            run=self.run(),
        )

    def read(self, first: int, last: int) -> Values:
        """Read indices first..last of the first axis: whole blocks, or a part of one."""
        across = math.prod(self.shape[1:])
        rows = (last - first, *self.shape[1:]) if self.shape else ()
        zeros = None if self.zero_points is None else self._part(self.zero_points, first, last)
        if zeros is not None and zeros.dtype.kind in "iu":
            zeros = zeros.astype(np.int32, copy=False)
        scale = self._part(self.scale, first, last).astype(np.float32, copy=False)
        codes = self.codes.stored(first * across, last * across, rows)
        return Values(codes, self.block, scale, zeros)

    def _part(self, numbers: Numbers, first: int, last: int) -> Array:
        if numbers.elements == 1:
            return numbers.load().reshape((1,) * len(self.shape))
        counts = self.counts
        if counts[0] == 1:
            return numbers.load().reshape(counts)
        across = math.prod(counts[1:])
        start, stop = first // self.step, -(-last // self.step)
        return numbers.read(start * across, stop * across).reshape(stop - start, *counts[1:])

    def run(self) -> Run | None:
        """Return the same elements as one axis; None where a block is no run of them."""
        length = _run_length(self.shape, self.block)
        if length is None or len(self.shape) < 2:
            return None
        flat = (math.prod(self.shape),)
        return Run(
            length,
            ScaledBlocks(self.codes, self.scale, self.zero_points, flat, (length,)).read,
        )


def _run_length(shape: tuple[int, ...], block: tuple[int, ...]) -> int | None:
    """Return how many neighbours in C order share a scale, None where they are no neighbours."""
    length = 1
    axes = [(n, min(b, n)) for n, b in zip(shape, block, strict=True) if n > 1]
    while axes and axes[-1][0] == axes[-1][1]:
        length *= axes.pop()[0]
    if axes:
        size, extent = axes.pop()
        length *= extent
        # a last block may be shorter only where nothing follows it
        if (size % extent and axes) or any(b > 1 for _, b in axes):
            return None
    return length if all(shape) else None
