"""The parts of a weight of one piece, found in it by their content.

Query, key and value, or gate and up, in whatever way they lie in the whole; query and key rows
may stand in rotary order on one side; all experts of a layer may be stacked on both.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from foldmark.compare.arrangement import (
    Arrangement,
    part_of_rows,
    rotary,
    rows_for_each,
    rows_of_each,
    stacked,
    these_rows,
)
from foldmark.compare.fusing import HEADS, Fusion, fusions
from foldmark.compare.naming import canonical_name
from foldmark.formats.stored import StoredTensor
from foldmark.formats.values import Array

__all__ = ["ALIKE", "TURNED", "Found", "Likeness", "PlacedPart", "find_parts", "rotations"]

ALIKE = 0.9
"""The cosine from which on two tensors are one."""

TURNED = (".q_proj", ".k_proj", ".query", ".key")
"""How the names end of weights whose rows rotary embedding turns in pairs."""

Likeness = Callable[[StoredTensor, tuple[StoredTensor, ...], Arrangement], float]


@dataclass(frozen=True, eq=False)
class PlacedPart:
    """A part found in a whole.

    Attributes:
        tensor: the part.
        arrangement: takes it out of the whole.
        places: the whole's row, or column, that each of its rows is.
        where: these in words.
        words: what else is done.
        likeness: the cosine on a sample.
    """

    tensor: StoredTensor
    arrangement: Arrangement
    places: Array
    where: str
    words: tuple[str, ...]
    likeness: float


@dataclass(frozen=True, eq=False)
class Found:
    """The parts found in a whole, in the way in which most of them lie there.

    Attributes:
        whole: the tensor of one piece.
        parts: those that were found, in order.
        way: how parts lie in it, "" for one under the other.
        turned: whether each of the stacked matrices lies transposed.
    """

    whole: StoredTensor
    parts: tuple[PlacedPart, ...] = ()
    way: str = ""
    turned: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """What is done to put the whole together."""
        turned = "transposed" if self.turned else ""
        said = (self.way, turned, *(word for part in self.parts for word in part.words))
        return tuple(dict.fromkeys(word for word in said if word))

    @property
    def arrangement(self) -> Arrangement:
        """Puts the whole together of all its parts, one behind the other."""
        order = np.argsort(np.concatenate([part.places for part in self.parts]))
        if len(self.whole.shape) == 3:
            return rows_for_each(len(self.parts), order, turned=self.turned)
        in_order = np.array_equal(order, np.arange(len(order)))
        return stacked(self.whole.shape) if in_order else these_rows("", order)


def find_parts(whole: StoredTensor, parts: Sequence[StoredTensor], likeness: Likeness) -> Found:
    """Find parts in a whole; none where shapes do not go together.

    Args:
        whole: a matrix, or a stack of them.
        parts: what it may be made of, from the first row down; of its rank.
        likeness: the cosine of a tensor with others, arranged.
    """
    if len({len(tensor.shape) for tensor in (whole, *parts)}) > 1:
        return Found(whole)
    best = Found(whole)
    for found in _ways(whole, parts, likeness):
        if len(found.parts) > len(best.parts):
            best = found
        if len(best.parts) == len(parts):
            break
    return best


def rotations(rows: int) -> Iterator[Arrangement]:
    """Yield the ways in which query and key rows are reordered, for heads of each width."""
    for width in HEADS:
        if rows % width == 0:
            yield rotary(width, rows, back=False)
            yield rotary(width, rows, back=True)


def _ways(
    whole: StoredTensor, parts: Sequence[StoredTensor], likeness: Likeness
) -> Iterator[Found]:
    axis = len(whole.shape) - 2 if len(whole.shape) > 2 else 0
    rows = tuple(part.shape[axis] for part in parts)
    for turned in (False, True) if len(whole.shape) == 3 else (False,):
        shape = list(whole.shape)
        if turned:
            shape[1], shape[2] = shape[2], shape[1]
        for fusion in fusions(rows) if _fit(shape, parts, axis) else ():
            tried = [
                _at_rows(whole, part, places, likeness)
                if axis == 0
                else _in_each(whole, part, places, likeness, fusion=fusion, turned=turned)
                for part, places in zip(parts, fusion.places, strict=True)
            ]
            found = tuple(part for part in tried if part is not None)
            yield Found(whole, found, fusion.words, turned)


def _fit(shape: Sequence[int], parts: Sequence[StoredTensor], axis: int) -> bool:
    """Say whether parts fill a shape, one behind the other along an axis."""
    rest = [[*part.shape[:axis], *part.shape[axis + 1 :]] for part in parts]
    alike = all(each == [*shape[:axis], *shape[axis + 1 :]] for each in rest)
    return alike and sum(part.shape[axis] for part in parts) == shape[axis]


def _at_rows(
    whole: StoredTensor, part: StoredTensor, places: Array, likeness: Likeness
) -> PlacedPart | None:
    """Say whether a part is some rows of a whole: as they are, or in rotary order."""
    first, count = int(places[0]), len(places)
    if int(places[-1]) - first == count - 1:
        arrangement = part_of_rows(first, count, whole.shape[0])
    else:
        arrangement = these_rows(f"{count} of {whole.shape[0]} rows", places)
    where = arrangement.words
    alike = likeness(part, (whole,), arrangement)
    if alike > ALIKE:
        return PlacedPart(part, arrangement, places, where, (), alike)
    if canonical_name(part.name).endswith(TURNED):
        for turned in rotations(count):
            moved = places[turned.source(np.arange(count))]
            arrangement = these_rows(where, moved)
            alike = likeness(part, (whole,), arrangement)
            if alike > ALIKE:
                return PlacedPart(part, arrangement, moved, where, (turned.words,), alike)
    return None


def _in_each(
    whole: StoredTensor,
    part: StoredTensor,
    places: Array,
    likeness: Likeness,
    *,
    fusion: Fusion,
    turned: bool,
) -> PlacedPart | None:
    """Say whether a stack is some rows, or columns, of each matrix of another."""
    name = "columns" if turned else "rows"
    step = f" by {places[1] - places[0]}" if fusion.words else ""
    where = f"{name} {places[0]} to {places[-1]}{step} of each"
    arrangement = rows_of_each(where, places, turned=turned)
    alike = likeness(part, (whole,), arrangement)
    return PlacedPart(part, arrangement, places, where, (), alike) if alike > ALIKE else None
