"""Tensors stored as a run of numbers of one dtype, row after row."""

import math

import numpy as np
from numpy.typing import DTypeLike

from foldmark.formats.source import FileBytes
from foldmark.formats.stored import Layout, Part, Span, StoredTensor, Values

__all__ = ["part_of", "plain_tensor"]


def part_of(number_format: str) -> Part:
    """Say what plain numbers of a format count as in the account of bytes."""
    return Part.FLOATS if number_format.startswith(("float", "bfloat")) else Part.INTEGERS


def plain_tensor(
    source: FileBytes,
    name: str,
    shape: tuple[int, ...],
    number_format: str,
    *,
    dtype: DTypeLike,
    offset: int,
) -> StoredTensor:
    """Describe numbers that stand in the file as they are, in C order.

    Raises:
        TruncatedFile, HostileFile: when they would lie outside the file.
    """
    elements, itemsize = math.prod(shape), np.dtype(dtype).itemsize
    nbytes = elements * itemsize
    source.check(offset, nbytes, f"tensor {name!r}")
    across = elements // shape[0] if shape and elements else 1

    def read(first: int, last: int) -> Values:
        rows = (last - first, *shape[1:]) if shape else ()
        items = source.array(
            dtype, offset + first * across * itemsize, math.prod(rows), f"tensor {name!r}"
        )
        return Values(items.reshape(rows))

    return StoredTensor(
        name,
        shape,
        Layout(number_format),
        (Span(source, offset, nbytes),),
        {part_of(number_format): nbytes},
        read,
    )
