"""How a weight lies in one file that lies otherwise in another: every way that tools have."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from foldmark.compare.fusing import rotary_order
from foldmark.formats.values import Array

__all__ = [
    "PLAIN",
    "Arrangement",
    "arrangements",
    "one_of",
    "part_of_rows",
    "rotary",
    "rows_for_each",
    "rows_of_each",
    "stacked",
    "these_rows",
]

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Arrangement:
    """From the right tensor's layout (its parts one under the other) to the left one's.

    Attributes:
        words: what is done, "" for nothing.
        apply: brings an array of the right one's shape into the left one's.
        rows: for rows of the left one, the rows of the right one that they are; None where
            rows are not kept. A row behind the last stands for zeros.
        transposed: whether rows become columns.
        index: where the left one is one of those stacked in the right one, which; else None.
        each_alone: whether both are stacks, and each matrix is made of those in its own place.
    """

    words: str
    apply: Callable[[Array], Array]
    rows: Callable[[Array], Array] | None = None
    transposed: bool = False
    index: int | None = None
    each_alone: bool = False

    @property
    def is_plain(self) -> bool:
        """True when nothing is done."""
        return self is PLAIN

    def source(self, rows: Array) -> Array:
        """Return the right one's rows for these of the left one."""
        return rows if self.rows is None else self.rows(rows)

    def fits(self, left: Shape, right: tuple[Shape, ...]) -> bool:
        """Say whether shapes go together, as far as can be told without a number."""
        if self.transposed:
            return len(right) == 1 and len(right[0]) == len(left) == 2
        return bool(left) and bool(right)


PLAIN = Arrangement("", lambda a: a, lambda rows: rows)
TRANSPOSED = Arrangement("transposed", np.transpose, None, True)


def arrangements(wanted: Shape, given: Shape) -> Iterator[Arrangement]:
    """Yield ways to bring one shape into another, the plainest first."""
    if wanted == given:
        yield PLAIN
        if len(wanted) == 2 and wanted[0] == wanted[1]:
            yield TRANSPOSED
        return
    if len(wanted) == len(given) == 2 and wanted == given[::-1]:
        yield TRANSPOSED
    elif len(wanted) == 4 and len(given) == 4:
        for axes in ((0, 2, 3, 1), (3, 0, 1, 2), (1, 2, 3, 0), (0, 3, 1, 2)):
            if tuple(given[axis] for axis in axes) == wanted:
                yield Arrangement("axes moved", _moved(axes))
    elif np.prod(wanted) == np.prod(given):
        yield Arrangement("reshaped", lambda a: a.reshape(wanted))
    elif len(wanted) == len(given) == 2:
        yield from _padded(wanted, given)
        for each in _padded(wanted, given[::-1]):
            yield Arrangement(f"transposed, {each.words}", _after_turning(each), None, True)
    elif len(wanted) == len(given) and wanted[1:] == given[1:] and wanted[0] < given[0]:
        yield part_of_rows(0, wanted[0], given[0])


def _padded(wanted: Shape, given: Shape) -> Iterator[Arrangement]:
    """Yield the crop, or the filling with zeros, of a matrix that was padded on one axis."""
    for axis, name in ((0, "rows"), (1, "columns")):
        if wanted[1 - axis] != given[1 - axis] or wanted[axis] == given[axis]:
            continue
        if wanted[axis] < given[axis]:
            if axis == 0:
                yield part_of_rows(0, wanted[0], given[0])
            else:
                words = f"the first {wanted[1]} of {given[1]} columns"
                yield Arrangement(words, lambda a: a[:, : wanted[1]], lambda rows: rows)
            continue
        more = [(0, 0), (0, 0)]
        more[axis] = (0, wanted[axis] - given[axis])
        words = f"{more[axis][1]} more {name} here, all of zeros"
        yield Arrangement(words, _filled(more), lambda rows: rows)


def _after_turning(each: Arrangement) -> Callable[[Array], Array]:
    return lambda a: each.apply(a.T)


def _filled(more: list[tuple[int, int]]) -> Callable[[Array], Array]:
    return lambda a: np.pad(a, more)


def _moved(axes: tuple[int, ...]) -> Callable[[Array], Array]:
    return lambda a: np.transpose(a, axes)


def part_of_rows(first: int, count: int, total: int) -> Arrangement:
    """Return the arrangement that takes some of a tensor's rows."""
    words = f"rows {first} to {first + count - 1} of {total}"
    if first == 0:
        words = f"the first {count} of {total} rows"
    return Arrangement(words, lambda a: a[first : first + count], lambda rows: rows + first)


def one_of(index: int) -> Arrangement:
    """Return the arrangement that takes one of the matrices that a tensor stacks."""
    return Arrangement(f"number {index}", lambda a: a[index], None, index=index)


def stacked(shape: Shape) -> Arrangement:
    """Return the arrangement of parts one under the other, reshaped where that is asked for."""
    return Arrangement("", lambda a: a.reshape(shape), lambda rows: rows)


def rows_of_each(words: str, places: Array, *, turned: bool) -> Arrangement:
    """Return the arrangement that takes rows out of each of the matrices that a tensor stacks.

    Args:
        words: what is done.
        places: the rows.
        turned: whether they are columns there.
    """

    def apply(a: Array) -> Array:
        return (a.swapaxes(1, 2) if turned else a)[:, places]

    return Arrangement(words, apply, each_alone=True)


def rows_for_each(parts: int, order: Array, *, turned: bool) -> Arrangement:
    """Return the arrangement that puts rows of several stacks into each matrix of one.

    Args:
        parts: how many stacks lie one behind the other.
        order: for each row of a matrix, which of the parts' rows it is, one part under the other.
        turned: whether rows become columns.
    """

    def apply(a: Array) -> Array:
        apart = a.reshape(parts, -1, *a.shape[1:]).swapaxes(0, 1)
        joined = apart.reshape(apart.shape[0], -1, a.shape[2])[:, order]
        return joined.swapaxes(1, 2) if turned else joined

    return Arrangement("", apply, each_alone=True)


def rotary(width: int, rows: int, *, back: bool) -> Arrangement:
    """Return the arrangement of `rotary_order`."""
    words = f"rotary rows reordered in heads of {width}"
    return these_rows(words, rotary_order(width, rows, back=back))


def these_rows(words: str, places: Array) -> Arrangement:
    """Return the arrangement that takes rows in some order.

    Args:
        words: what is done.
        places: the right one's row that each of the left one's is.
    """
    return Arrangement(words, lambda a: a[places], lambda rows: places[rows])
