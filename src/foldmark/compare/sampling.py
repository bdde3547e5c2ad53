"""Some numbers of two tensors at the same places, read without the rest of either file."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from foldmark.compare.arrangement import Arrangement
from foldmark.formats.stored import StoredTensor
from foldmark.formats.values import Array, Values

__all__ = ["Block", "Sampler", "arranged", "block_of", "centred"]

# So many numbers of a tensor are compared.
_ELEMENTS = 1 << 16
# Smaller tensors are read whole.
_WHOLE = 1 << 18
# Larger ones that are no matrices are sampled along their first axis.
_LARGE = 1 << 24
# Runs of rows (or columns) that a sample is made of.
_RUNS = 8
# Samples that are kept, in bytes.
_KEPT = 1 << 28


@dataclass(frozen=True, eq=False)
class Block:
    """Numbers of a tensor at some rows and columns.

    Attributes:
        numbers: float32 (rows, ...).
        codes: with zero points taken off, int32; None where codes can't be compared.
        steps: the scale of each, float32; None without scales.
    """

    numbers: Array
    codes: Array | None
    steps: Array | None

    def first(self) -> "Block":
        """Return the first of the matrices that the block stacks."""
        return self._each(lambda part: part[0])

    def alone(self) -> "Block":
        """Return the block as a stack of one."""
        return self._each(lambda part: part[None])

    def _each(self, change: Callable[[Array], Array]) -> "Block":
        parts = (self.numbers, self.codes, self.steps)
        one, two, three = (None if part is None else change(part) for part in parts)
        assert one is not None
        return Block(one, two, three)

    def turned(self) -> "Block":
        """Return the block with rows and columns exchanged."""
        return self._each(np.transpose)


def centred(values: Values) -> Array | None:
    """Return codes with their zero points taken off; None where that makes no sense."""
    if values.codebook is not None or values.offset is not None:
        return None
    if values.codes.dtype.kind not in "iu":
        return None
    codes = values.codes.astype(np.int32)
    if values.zero_point is None:
        return codes
    if values.zero_point.dtype.kind == "f":
        return None
    return np.asarray(codes - values.spread(values.zero_point.astype(np.int32)))


@dataclass(eq=False)
class Sampler:
    """Reads samples and keeps them, so that a tensor is compared with many at the price of one."""

    _kept: dict[tuple[object, ...], Block] = field(default_factory=dict)
    _bytes: int = 0

    def pair(
        self,
        left: StoredTensor,
        right: tuple[StoredTensor, ...],
        arrangement: Arrangement,
        *,
        crossed: bool = False,
    ) -> tuple[Block, Block, Array, Array] | None:
        """Return both tensors' numbers at the same places, with the left one's rows and columns.

        Columns are empty where they are all there. None when the arrangement does not bring the
        right one into the left one's shape.

        Args:
            left, right: the two sides; the right one in parts.
            arrangement: how the right one lies.
            crossed: take some columns of some rows, as is done anyway where one side can only be
                read by columns; so that a third tensor is sampled at the same places.
        """
        if not arrangement.fits(left.shape, tuple(part.shape for part in right)):
            return None
        if left.elements <= _WHOLE or len(left.shape) != 2 or any(len(t.shape) != 2 for t in right):
            return self._whole(left, right, arrangement)
        crossed = crossed or self.crosses(left, right, arrangement)
        rows = self._places(left.shape[0], left, 0, crossed, left.shape[1])
        columns = (
            self._places(left.shape[1], left, 1, crossed, left.shape[0])
            if crossed
            else np.arange(left.shape[1])
        )
        one = self._block(left, rows, columns)
        if arrangement.transposed:
            return one, self._stacked(right, columns, rows).turned(), rows, columns
        source = arrangement.source(rows)
        return one, self._stacked(right, source, columns), rows, columns

    @staticmethod
    def crosses(
        left: StoredTensor, right: tuple[StoredTensor, ...], arrangement: Arrangement
    ) -> bool:
        """Say whether rows alone can't be read of both sides."""
        return arrangement.transposed or any(t.walk_axis == 1 for t in (left, *right))

    def _whole(
        self, left: StoredTensor, right: tuple[StoredTensor, ...], arrangement: Arrangement
    ) -> tuple[Block, Block, Array, Array] | None:
        """Load both, or one row of the first axis where they are large and lie alike."""
        rows = np.arange(left.shape[0] if left.shape else 1)
        none = np.zeros(0, np.int64)
        walked = all(tensor.walk_axis == 0 for tensor in (left, *right))
        if arrangement.index is not None and walked:
            stop = arrangement.index + 1
            only = block_of(right[0].rows(arrangement.index, stop))
            return self._loaded(left), only.first(), rows, none
        large = max(left.elements, *(t.elements for t in right)) > _LARGE
        rows_kept = arrangement.is_plain or arrangement.each_alone or len(right) == len(rows) > 1
        if large and walked and rows_kept:
            rows = rows[:: max(1, len(rows) // 2)][:2]
            one = _join([block_of(left.rows(int(r), int(r) + 1)) for r in rows])
            if arrangement.each_alone:
                others = [
                    arranged([block_of(p.rows(int(r), int(r) + 1)) for p in right], arrangement)
                    for r in rows
                ]
            elif len(right) == 1:
                others = [block_of(right[0].rows(int(r), int(r) + 1)) for r in rows]
            else:
                others = [self._loaded(right[r]).alone() for r in rows]
            return one, _join(others), rows, none
        one = self._loaded(left)
        parts = [self._loaded(part) for part in right]
        other = arranged(parts, arrangement)
        if one.numbers.shape != other.numbers.shape:
            return None
        return one, other, rows, np.zeros(0, np.int64)

    def _loaded(self, tensor: StoredTensor) -> Block:
        key = (id(tensor),)
        if key not in self._kept:
            self._keep(key, block_of(tensor.load()))
        return self._kept[key]

    def _keep(self, key: tuple[object, ...], block: Block) -> None:
        if self._bytes > _KEPT:
            self._kept.clear()
            self._bytes = 0
        self._kept[key] = block
        self._bytes += block.numbers.nbytes * 3

    @staticmethod
    def _places(length: int, tensor: StoredTensor, axis: int, crossed: bool, across: int) -> Array:
        """Return indices along an axis: some runs, spread over it."""
        wanted = int(_ELEMENTS**0.5) if crossed else max(1, _ELEMENTS // max(1, across))
        if wanted >= length:
            return np.arange(length)
        step = tensor.walk_step if tensor.walk_axis == axis else 1
        run = -(-max(1, wanted // _RUNS) // step) * step
        last = (length - run) // step * step
        starts = np.unique(np.linspace(0, max(0, last), _RUNS).astype(np.int64) // step * step)
        return np.unique(np.concatenate([np.arange(s, min(s + run, length)) for s in starts]))

    def _stacked(self, parts: tuple[StoredTensor, ...], rows: Array, columns: Array) -> Block:
        """Read rows of tensors that lie one under the other; rows that none has are zero."""
        first, found = 0, []
        for part in parts:
            inside = (rows >= first) & (rows < first + part.shape[0])
            if inside.any():
                own = self._block(part, rows[inside] - first, columns)
                found.append((np.flatnonzero(inside), own))
            first += part.shape[0]
        shape = (len(rows), len(columns))
        numbers = np.zeros(shape, np.float32)
        has_codes = len(found) > 0 and all(b.codes is not None for _, b in found)
        has_steps = len(found) > 0 and all(b.steps is not None for _, b in found)
        codes = np.zeros(shape, np.int32) if has_codes else None
        steps = np.ones(shape, np.float32) if has_steps else None
        for places, block in found:
            width = block.numbers.shape[1]
            numbers[places, :width] = block.numbers
            if codes is not None and block.codes is not None:
                codes[places, :width] = block.codes
            if steps is not None and block.steps is not None:
                steps[places, :width] = block.steps
        return Block(numbers, codes, steps)

    def _block(self, tensor: StoredTensor, rows: Array, columns: Array) -> Block:
        """Return a matrix's numbers at some rows and columns, read along its walk axis."""
        columns = columns[columns < tensor.shape[1]]
        key = (id(tensor), rows.tobytes(), columns.tobytes())
        if key not in self._kept:
            along, across = (rows, columns) if tensor.walk_axis == 0 else (columns, rows)
            pieces, places = [], []
            for start, stop in _runs(along, tensor.walk_step, tensor.shape[tensor.walk_axis]):
                inside = np.flatnonzero((along >= start) & (along < stop))
                block = block_of(tensor.rows(start, stop))
                pieces.append(_taken(block, along[inside] - start, across, tensor.walk_axis))
                places.append(inside)
            joined, order = _join(pieces, tensor.walk_axis), np.argsort(np.concatenate(places))
            everything = np.arange(len(across))
            self._keep(key, _taken(joined, order, everything, tensor.walk_axis))
        return self._kept[key]


def _runs(places: Array, step: int, length: int) -> list[tuple[int, int]]:
    """Join indices that are neighbours, from multiple to multiple of the step."""
    found: list[tuple[int, int]] = []
    for place in np.unique(places // step) * step:
        start, stop = int(place), min(int(place) + step, length)
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found


def block_of(values: Values) -> Block:
    """Return all numbers of a tensor."""
    with np.errstate(all="ignore"):
        numbers = values.dequantize()
    steps = (
        None
        if values.scale is None
        else np.broadcast_to(values.spread(values.scale), numbers.shape)
    )
    return Block(numbers, centred(values), steps)


def _taken(block: Block, along: Array, across: Array, axis: int) -> Block:
    def take(part: Array | None) -> Array | None:
        if part is None:
            return None
        return part[np.ix_(along, across)] if axis == 0 else part[np.ix_(across, along)]

    numbers = take(block.numbers)
    assert numbers is not None
    return Block(numbers, take(block.codes), take(block.steps))


def _join(blocks: list[Block], axis: int = 0) -> Block:
    def join(parts: list[Array | None]) -> Array | None:
        known = [part for part in parts if part is not None]
        return np.concatenate(known, axis=axis) if known and len(known) == len(parts) else None

    numbers = np.concatenate([block.numbers for block in blocks], axis=axis)
    return Block(numbers, join([b.codes for b in blocks]), join([b.steps for b in blocks]))


def arranged(parts: list[Block], arrangement: Arrangement) -> Block:
    """Return the parts of a right tensor in the left one's layout."""
    stacked = _join(parts) if len(parts) > 1 else parts[0]
    codes, steps = (
        None if part is None else arrangement.apply(part) for part in (stacked.codes, stacked.steps)
    )
    return Block(arrangement.apply(stacked.numbers), codes, steps)
