"""Tensors stored as a run of numbers of one format, row after row."""

import math

from foldmark.formats.entry import Entry
from foldmark.formats.stored import Part, Run, StoredTensor
from foldmark.formats.values import Layout, Values

__all__ = ["part_of", "plain_tensor"]


def part_of(number_format: str) -> Part:
    """Say what plain numbers of a format count as in the account of bytes."""
    return Part.FLOATS if number_format.startswith(("float", "bfloat")) else Part.INTEGERS


def plain_tensor(entry: Entry) -> StoredTensor:
    """Describe numbers that stand in the file as they are, in C order.

    Raises:
        TruncatedFile, HostileFile: when they would lie outside the file.
    """
    shape = entry.shape
    entry.source.check(entry.offset, entry.nbytes, f"tensor {entry.name!r}")
    across = math.prod(shape[1:])

    def read(first: int, last: int) -> Values:
        rows = (last - first, *shape[1:]) if shape else ()
        return Values(entry.read(first * across, last * across).reshape(rows))

    return StoredTensor(
        entry.name,
        shape,
        Layout(entry.number_format),
        (entry.span,),
        {part_of(entry.number_format): entry.nbytes},
        read,
        run=Run(None, lambda first, last: Values(entry.read(first, last))),
    )
