"""A quantized tensor beside its float weights, block by block, for the search of its rule."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import ml_dtypes
import numpy as np

from foldmark.errors import NotSupported
from foldmark.exact.catalog import BFLOAT16, FLOAT16, FLOAT32, INT8, UINT8
from foldmark.exact.number import FloatFormat, IntegerFormat
from foldmark.formats.values import Array, Layout, Values

__all__ = ["Observation", "codes_format", "observe", "to_blocks"]

# Elements looked at in the search; the winner is then held against all of them.
_ELEMENTS = 1 << 17
_BLOCKS = 1 << 11
_FORMATS = {"float16": FLOAT16, "bfloat16": BFLOAT16, "float32": FLOAT32}


@dataclass(frozen=True, eq=False)
class Observation:
    """What is known of some blocks of a tensor.

    Attributes:
        values: float32 (blocks, k): weights, those nearest to a tie first.
        codes: int64 (blocks, k): what they became.
        places: int64 (blocks, k): where in the tensor they stand, in C order.
        low, high: float64 (blocks,): the ends of each whole block.
        low_first: bool (blocks,): whether the low end comes first in the block.
        scale: float64 (blocks,): as stored.
        zero: float64 (blocks,): the zero point in codes; with `real`, the number of code 0.
        real: whether zero points are real numbers.
        stored_zero: whether they are stored, not fixed by the format.
        codes_format: the codes that the storage allows.
        scale_format: what scales are stored in.
        data: formats that the weights may have had when they were quantized.
    """

    values: Array
    codes: Array
    places: Array
    low: Array
    high: Array
    low_first: Array
    scale: Array
    zero: Array
    real: bool
    stored_zero: bool
    codes_format: IntegerFormat
    scale_format: FloatFormat
    data: tuple[FloatFormat, ...]

    def alive(self) -> Array:
        """Say of each block whether it has a code beside that of zero: bool (blocks,)."""
        return np.asarray((self.codes != self.zero[:, None]).any(axis=1) | self.real)

    def part(self, kept: Array) -> "Observation":
        """Return the observation of some of its blocks.

        Args:
            kept: bool (blocks,).
        """
        parts: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        arrays = {name: part for name, part in parts.items() if isinstance(part, np.ndarray)}
        return Observation(**(parts | {name: array[kept] for name, array in arrays.items()}))

    def first_is_low(self, tied: Array) -> Array:
        """Answer for blocks with ends equally far from zero which comes first."""
        return np.asarray(self.low_first & tied)


def to_blocks(array: Array, block: tuple[int, ...]) -> Array:
    """Bring an array into rows, one a block: (blocks, elements of a block).

    Blocks that stick out behind the end of an axis are left out.
    """
    whole = tuple(n // b * b for n, b in zip(array.shape, block, strict=True))
    if whole != array.shape:
        array = array[tuple(slice(0, n) for n in whole)]
    split = [length for n, b in zip(whole, block, strict=True) for length in (n // b, b)]
    rank = len(block)
    order = [2 * axis for axis in range(rank)] + [2 * axis + 1 for axis in range(rank)]
    return array.reshape(split).transpose(order).reshape(-1, math.prod(block))


def observe(
    values: Values, layout: Layout, weights: Array, *, blocks: int = _BLOCKS
) -> Observation:
    """Lay a tensor out: some of its blocks, and of these the elements that decide most.

    Args:
        values: the whole tensor, as read.
        layout: how it is stored.
        weights: float weights of the codes' shape.
        blocks: at most so many, spread over the tensor.

    Raises:
        NotSupported: forms whose rule is not a scale and a rounding (codebooks, float8).
    """
    codes = values.codes
    if values.codebook is not None or codes.dtype.kind not in "iu" or values.scale is None:
        raise NotSupported("no affine rule behind these codes", got=layout.number_format)
    if values.group is not None:
        return _observe_ordered(values, layout, weights, blocks)
    block = tuple(min(b, max(1, n)) for b, n in zip(values.block or (), codes.shape, strict=True))
    counts = tuple(n // b for n, b in zip(codes.shape, block, strict=True))

    def per_block(array: Array | None) -> Array | None:
        if array is None or array.ndim == 0:
            return array
        kept = array[tuple(slice(0, n) for n in counts)] if array.size > 1 else array
        return np.broadcast_to(kept, counts).reshape(-1)

    places = to_blocks(np.arange(codes.size).reshape(codes.shape), block)
    parts = _Parts(to_blocks(codes, block), to_blocks(weights, block), places)
    return _laid_out(parts, values, layout, per_block, blocks)


def _observe_ordered(values: Values, layout: Layout, weights: Array, blocks: int) -> Observation:
    """Lay out groups of inputs that are not neighbours: sorted, they are."""
    assert values.group is not None
    order = np.argsort(values.group, kind="stable")
    sizes = np.bincount(values.group)
    if (sizes != sizes[0]).any() or values.scale is None or len(sizes) != values.scale.shape[1]:
        raise NotSupported("groups of unequal size", got=str(sorted(set(sizes.tolist()))))
    block = (1, int(sizes[0]))
    indices = np.arange(values.codes.size).reshape(values.codes.shape)
    parts = _Parts(
        *(to_blocks(array[:, order], block) for array in (values.codes, weights, indices))
    )

    def per_block(array: Array | None) -> Array | None:
        return array if array is None or not array.ndim else array.ravel()

    return _laid_out(parts, values, layout, per_block, blocks)


_PerBlock = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class _Parts:
    codes: Array
    weights: Array
    places: Array


def _laid_out(
    parts: _Parts, values: Values, layout: Layout, per_block: _PerBlock, blocks: int
) -> Observation:
    total = len(parts.codes)
    chosen = np.unique(np.linspace(0, total - 1, min(total, blocks)).astype(np.int64))
    codes = parts.codes[chosen].astype(np.int64)
    weights = parts.weights[chosen].astype(np.float32)
    places = parts.places[chosen]
    scale = per_block(values.scale)[chosen].astype(np.float64)
    real = values.offset is not None or (
        values.zero_point is not None and values.zero_point.dtype.kind == "f"
    )
    zero = _zero(values, per_block, chosen, scale)
    with np.errstate(all="ignore"):
        kept = _nearest_to_ties(weights, scale, zero, real)
    rows = np.arange(len(chosen))[:, None]
    return Observation(
        values=np.ascontiguousarray(weights[rows, kept]),
        codes=np.ascontiguousarray(codes[rows, kept]),
        places=places[rows, kept],
        low=weights.min(axis=1).astype(np.float64),
        high=weights.max(axis=1).astype(np.float64),
        low_first=weights.argmin(axis=1) < weights.argmax(axis=1),
        scale=scale,
        zero=zero,
        real=real,
        stored_zero=values.zero_point is not None and values.zero_point.ndim > 0,
        codes_format=codes_format(layout.number_format),
        scale_format=_FORMATS.get(layout.scale_format or "", FLOAT32),
        data=_data_formats(weights),
    )


def _zero(values: Values, per_block: _PerBlock, chosen: Array, scale: Array) -> Array:
    if values.offset is not None:
        return np.asarray(per_block(values.offset)[chosen].astype(np.float64))
    zero = per_block(values.zero_point)
    if zero is None or zero.ndim == 0:
        fixed = 0.0 if zero is None else float(zero)
        return np.full(len(chosen), fixed)
    zero = zero[chosen].astype(np.float64)
    is_float = values.zero_point is not None and values.zero_point.dtype.kind == "f"
    return np.asarray(-zero * scale if is_float else zero)


def _nearest_to_ties(weights: Array, scale: Array, zero: Array, real: bool) -> Array:
    """Choose elements of each block, the most decisive ones first: (blocks, k) indices."""
    blocks, elements = weights.shape
    count = min(elements, max(1, _ELEMENTS // blocks))
    with np.errstate(all="ignore"):
        if real:
            exact = (weights - zero[:, None]) / scale[:, None]
        else:
            exact = weights / scale[:, None] + zero[:, None]
        distance = np.abs(exact - np.floor(exact) - 0.5)
    distance = np.where(np.isfinite(distance), distance, 1.0).astype(np.float32)
    if count < elements:
        near = np.argpartition(distance, count - 1, axis=1)[:, :count]
    else:
        near = np.broadcast_to(np.arange(elements), weights.shape)
    order = np.argsort(np.take_along_axis(distance, near, axis=1), axis=1)
    return np.take_along_axis(near, order, axis=1)


def codes_format(name: str) -> IntegerFormat:
    """Return the codes that a number format by name allows."""
    digits = "".join(c for c in name if c.isdigit())
    bits = int(digits) if digits else 2
    known = {"int8": INT8, "uint8": UINT8}
    if name in known:
        return known[name]
    if name.startswith("int"):
        return IntegerFormat(name, bits, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return IntegerFormat(name, bits, 0, (1 << bits) - 1)


def _data_formats(weights: Array) -> tuple[FloatFormat, ...]:
    """List the formats that hold every weight: what a tool may have been given."""
    found = [FLOAT32]
    with np.errstate(all="ignore"):
        if (weights.astype(np.float16).astype(np.float32) == weights).all():
            found.append(FLOAT16)
        if (weights.astype(ml_dtypes.bfloat16).astype(np.float32) == weights).all():
            found.append(BFLOAT16)
    return tuple(found)
