"""The smallest and largest code of each block, and the elements that set the scales."""

from dataclasses import dataclass, replace

import numpy as np

from foldmark.formats.stored import Records, StoredTensor
from foldmark.formats.values import Array, Values

__all__ = ["Setter", "block_extremes", "find_setter", "inside", "spans_walk"]


# Elements looked at in one piece.
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Setter:
    """The element whose size chose a scale.

    Attributes:
        index: its place in the tensor.
        code: what it became.
        value: what it is worth, dequantized.
    """

    index: tuple[int, ...]
    code: int
    value: float


def block_extremes(codes: Array, block: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the smallest and the largest code of each block, one item a block.

    Blocks that stick out behind the tensor's end count their part inside.
    """
    low = high = codes
    for axis, size in enumerate(block):
        if size == 1:
            continue
        starts = np.arange(0, codes.shape[axis], size)
        low = (
            np.minimum.reduceat(low, starts, axis=axis)
            if len(starts) > 1
            else low.min(axis=axis, keepdims=True)
        )
        high = (
            np.maximum.reduceat(high, starts, axis=axis)
            if len(starts) > 1
            else high.max(axis=axis, keepdims=True)
        )
    return low, high


def inside(block: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Cut a block's extent down to the array that it lies in."""
    return tuple(min(b, max(1, n)) for b, n in zip(block, shape, strict=True))


def spans_walk(tensor: StoredTensor) -> bool:
    """Say whether every block reaches over the whole axis that pieces are cut along."""
    block = tensor.layout.block
    if block is None or not tensor.shape:
        return True
    return block[tensor.walk_axis] >= tensor.shape[tensor.walk_axis]


def find_setter(tensor: StoredTensor, number: int) -> Setter:
    """Find the element of largest magnitude in one block.

    Args:
        tensor: where to look.
        number: the block's number, the walk axis counted as the slowest; for groups
            that are not neighbours, of the scales that one piece has.
    """
    block = tensor.layout.block or tensor.shape
    if tensor.records is not None:
        return _in_record(tensor, tensor.records, number)
    counts = tuple(-(-n // b) for n, b in zip(tensor.shape, block, strict=True))
    axis = tensor.walk_axis
    place = _place(number, counts, axis)
    if not place or spans_walk(tensor):
        return _over_pieces(tensor, place, 0, tensor.shape[axis] if tensor.shape else 1)
    first = place[axis] * block[axis]
    first -= first % tensor.walk_step
    last = min(tensor.shape[axis], place[axis] * block[axis] + block[axis])
    step = max(1, tensor.walk_step)
    if tensor.rows(first, min(first + step, last)).group is not None:
        return _over_pieces(tensor, place, 0, tensor.shape[axis])  # its columns are anywhere
    if block[axis] > _PIECE or block[axis] > step:
        return _over_pieces(tensor, (*place[:axis], 0, *place[axis + 1 :]), first, last)
    values = tensor.rows(first, last)
    local = list(place)
    local[axis] = (place[axis] * block[axis] - first) // block[axis]
    index, code, value = _largest(values, tuple(local))
    moved = tuple(i + first if at == axis else i for at, i in enumerate(index))
    return Setter(moved, code, value)


def _place(number: int, counts: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Return the block of that number, counted with the walk axis as the slowest."""
    if not counts:
        return ()
    order = (axis, *(i for i in range(len(counts)) if i != axis))
    found = np.unravel_index(number, tuple(counts[i] for i in order))
    return tuple(int(found[order.index(i)]) for i in range(len(counts)))


def _in_record(tensor: StoredTensor, records: Records, number: int) -> Setter:
    group = (tensor.layout.block or (1,))[-1]
    inside_record = records.elements // group
    record, at = divmod(number, inside_record)
    values = records.decode(records.read(record, record + 1))
    index, code, value = _largest(values, (0, at))
    flat = record * records.elements + index[1]
    return Setter(tuple(int(i) for i in np.unravel_index(flat, tensor.shape)), code, value)


def _over_pieces(tensor: StoredTensor, place: tuple[int, ...], start: int, stop: int) -> Setter:
    """Look for the largest element of a block that reaches over several pieces.

    place: the block's in each piece.
    """
    best: Setter | None = None
    axis = tensor.walk_axis
    for first, values in tensor.pieces(_PIECE, start, stop):
        if not values.codes.size:
            continue
        index, code, value = _largest(values, place)
        if best is None or abs(value) > abs(best.value):
            moved = tuple(i + first if at == axis else i for at, i in enumerate(index))
            best = Setter(moved, code, value)
    return best or Setter((0,) * len(tensor.shape), 0, 0.0)


def _largest(values: Values, place: tuple[int, ...]) -> tuple[tuple[int, ...], int, float]:
    """Return index, code and value of the largest element of one block of a piece."""
    codes = values.codes
    if values.group is not None or values.block is None:
        return _largest_of_group(values, place)
    region = tuple(slice(i * b, (i + 1) * b) for i, b in zip(place, values.block, strict=True))
    codes = codes[region]
    one = Values(
        codes,
        tuple(max(1, n) for n in codes.shape),
        _at(values.scale, place),
        _at(values.zero_point, place),
        _at(values.offset, place),
        values.codebook,
    )
    zero = one.zero_point
    if one.offset is None and one.codebook is None and codes.dtype.kind in "iu":
        # the largest is the code farthest from the zero point: no need to decode the others
        middle = float(zero.reshape(-1)[0]) if zero is not None and zero.size else 0.0
        ends = [int(codes.min()), int(codes.max())]
        code = max(ends, key=lambda end: abs(end - middle))
        index = _first_largest(codes == code)
    else:
        index = _first_largest(np.abs(one.dequantize()))
    start = [s.start for s in region]
    found = tuple(slice(i, i + 1) for i in index)
    value = replace(one, stored=codes[found]).dequantize().reshape(-1)[0]
    code = int(_integers(codes[found]).reshape(-1)[0])
    return tuple(i + s for i, s in zip(index, start, strict=True)), code, float(value)


def _largest_of_group(values: Values, place: tuple[int, ...]) -> tuple[tuple[int, ...], int, float]:
    numbers = np.abs(values.dequantize())
    if values.group is not None:
        belongs = np.zeros(numbers.shape, bool)
        belongs[place[0], values.group == place[-1]] = True
        numbers = np.where(belongs, numbers, -1)
    index = _first_largest(numbers)
    code = int(_integers(values.codes)[index])
    return index, code, float(values.dequantize()[index])


def _first_largest(magnitudes: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(magnitudes)), magnitudes.shape))


def _at(per_block: Array | None, place: tuple[int, ...]) -> Array | None:
    """Return one block's number, in the rank that it had."""
    if per_block is None or per_block.ndim == 0:
        return per_block
    kept = tuple(
        slice(min(i, n - 1), min(i, n - 1) + 1) for i, n in zip(place, per_block.shape, strict=True)
    )
    return per_block[kept]


def _integers(codes: Array) -> Array:
    return codes if codes.dtype.kind in "iu" else codes.view(np.uint8)
