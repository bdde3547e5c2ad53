"""Codes and what turns them back into real numbers, read from whatever file."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Layout", "PackedCodes", "Values", "expand_blocks"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor's numbers are stored.

    Attributes:
        number_format: "int8", "uint4", "float8_e4m3fn", "nf4", "float32", "int64" ...
        block: elements along each axis that share a scale; None when there is no scale.
        scale_format: type of the stored scale ("float16", "6 bits of a float16"), None without.
        zero_point: "none", "at 8" (the same for all), "stored", "real" (a float offset).
        packing: the name that the format has for it ("Q4_0", "GPTQ v1", "plain").
    """

    number_format: str
    block: tuple[int, ...] | None = None
    scale_format: str | None = None
    zero_point: str = "none"
    packing: str = "plain"

    @property
    def is_quantized(self) -> bool:
        """True when a scale belongs to the codes."""
        return self.block is not None

    def granularity(self, shape: tuple[int, ...]) -> str:
        """Say in words which elements share a scale."""
        if self.block is None:
            return ""
        if all(b >= n for b, n in zip(self.block, shape, strict=True)):
            return "per tensor"
        whole = [b >= n for b, n in zip(self.block, shape, strict=True)]
        single = [axis for axis, b in enumerate(self.block) if b == 1 and not whole[axis]]
        partial = [axis for axis, b in enumerate(self.block) if b > 1 and not whole[axis]]
        if not partial and len(single) == 1:
            return f"per axis {single[0]}"
        if len(partial) == 1:
            return f"groups of {self.block[partial[0]]} along axis {partial[0]}"
        return "tiles of " + " x ".join(str(b) for b in self.block)


@dataclass(frozen=True, eq=False)
class PackedCodes:
    """Codes still in their bytes, for those who only want to count them.

    Attributes:
        records: uint8 (n, bytes of a record); a record holds codes and other things.
        planes: one or two: first byte, number of bytes, bits of a field, bytes of a run, as the
            ggml blocks have them; the fields of the second are put above those of the first.
        unpack: gives the codes in their own order and shape.
        numbers: int8 (2^bits,): the code that each field stands for; None where it is the field.
    """

    records: Array
    planes: tuple[tuple[int, int, int, int], ...]
    unpack: Callable[[], Array]
    numbers: Array | None = None


def expand_blocks(per_block: Array, block: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Repeat one value a block until it has the tensor's shape; a whole axis stays of length 1."""
    for axis, (size, length) in enumerate(zip(block, shape, strict=True)):
        if size > 1 and per_block.shape[axis] > 1:
            per_block = np.repeat(per_block, size, axis=axis)
            if per_block.shape[axis] > length:
                per_block = per_block.take(range(length), axis=axis)
    return per_block


@dataclass(frozen=True, eq=False)
class Values:
    """Codes and what turns them back into real numbers.

        value = scale * (number(code) - zero_point) + offset

    Attributes:
        stored: the codes, or the bytes that they are packed in.
        block: elements along each axis that share a scale, None without scale.
        scale: one a block, the tensor's rank, float32 or wider; None when there is none.
        zero_point: one a block, or a scalar for all; None for zero.
        offset: one a block, float32; None for zero.
        codebook: the real number of each code, None when a code is its own number.
        group: for each index of the last axis the group that it belongs to, where groups are
            not neighbours (GPTQ's activation order); None otherwise.
    """

    stored: Array | PackedCodes
    block: tuple[int, ...] | None = None
    scale: Array | None = None
    zero_point: Array | None = None
    offset: Array | None = None
    codebook: Array | None = None
    group: Array | None = None

    @cached_property
    def codes(self) -> Array:
        """The tensor's shape; integers, indices of a codebook, or the floats themselves."""
        return self.stored.unpack() if isinstance(self.stored, PackedCodes) else self.stored

    def spread(self, per_block: Array) -> Array:
        """Return a value a block as one that broadcasts to the codes."""
        if per_block.ndim == 0 or self.block is None:
            return per_block
        if self.group is not None:
            return per_block.take(self.group, axis=-1)
        return expand_blocks(per_block, self.block, self.codes.shape)

    def dequantize(self) -> Array:
        """Return the real numbers, float32, each step rounded once as the field's tools do."""
        codes = self.codes
        if self.codebook is not None:
            numbers = self.codebook[codes.astype(np.intp)]
        elif self.zero_point is None:
            numbers = codes.astype(np.float32)
        elif np.issubdtype(self.zero_point.dtype, np.integer):
            shift = self.spread(self.zero_point.astype(np.int32))
            numbers = (codes.astype(np.int32) - shift).astype(np.float32)
        else:
            numbers = codes.astype(np.float32) - self.spread(self.zero_point)
        if self.scale is not None:
            numbers = numbers * self.spread(self.scale)
        if self.offset is not None:
            numbers = numbers + self.spread(self.offset)
        return numbers.astype(np.float32, copy=False)
