"""Tables of a flatbuffer, read field by field, each offset checked against the file.

    table:   i32 distance back to the vtable | fields
    vtable:  u16 its bytes | u16 the table's bytes | u16 place of field 0 in the table, 0 = absent
    vector:  u32 length | items;   a table, vector or string is pointed to by a u32 distance

Source: the flatbuffers internals description.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from foldmark.errors import HostileFile
from foldmark.formats.source import FileBytes
from foldmark.formats.values import Array

__all__ = ["Table", "Vector", "root"]

_LONGEST_TEXT = 1 << 16


@dataclass(frozen=True, eq=False)
class Vector:
    """A run of items somewhere in the file.

    Attributes:
        source: the file.
        offset: place of the first item.
        count: number of items.
    """

    source: FileBytes
    offset: int
    count: int

    def items(self, dtype: DTypeLike) -> Array:
        """Read the items as numbers."""
        return self.source.array(dtype, self.offset, self.count, "vector")

    def tables(self) -> Iterator["Table"]:
        """Yield the tables that the items point to."""
        for place in range(self.offset, self.offset + 4 * self.count, 4):
            yield _table(self.source, place + _number(self.source, place, 4))


@dataclass(frozen=True, eq=False)
class Table:
    """One table; fields are named by their number in the schema.

    Attributes:
        source: the file.
        offset: place of the table.
        fields: place of each field that is there.
    """

    source: FileBytes
    offset: int
    fields: tuple[int, ...]

    def _place(self, field: int) -> int:
        """Return where a field lies, 0 when it is absent."""
        return self.fields[field] if field < len(self.fields) else 0

    def unsigned(self, field: int, nbytes: int, default: int = 0) -> int:
        """Return an unsigned field of `nbytes` bytes."""
        place = self._place(field)
        return _number(self.source, place, nbytes) if place else default

    def vector(self, field: int, itemsize: int) -> Vector | None:
        """Return a vector field, None when it is absent; all of it is inside the file.

        Raises:
            TruncatedFile: a vector that ends behind the file.
        """
        place = self._place(field)
        if not place:
            return None
        start = place + _number(self.source, place, 4)
        count = _number(self.source, start, 4)
        self.source.check(start + 4, count * itemsize, "vector")
        return Vector(self.source, start + 4, count)

    def tables(self, field: int) -> Iterator["Table"]:
        """Yield the tables of a vector field."""
        vector = self.vector(field, 4)
        if vector is not None:
            yield from vector.tables()

    def table(self, field: int) -> "Table | None":
        """Return a table field, None when it is absent."""
        place = self._place(field)
        return _table(self.source, place + _number(self.source, place, 4)) if place else None

    def text(self, field: int) -> str:
        """Return a string field, "" when it is absent, of a longer text its length."""
        vector = self.vector(field, 1)
        if vector is None:
            return ""
        if vector.count > _LONGEST_TEXT:
            return f"[{vector.count} bytes]"
        return vector.items(np.uint8).tobytes().decode("utf-8", "backslashreplace")


def root(source: FileBytes) -> Table:
    """Return the table that the first four bytes point to."""
    return _table(source, _number(source, 0, 4))


def _number(source: FileBytes, place: int, nbytes: int) -> int:
    return int.from_bytes(source.read(place, nbytes, "number"), "little")


def _table(source: FileBytes, offset: int) -> Table:
    distance = int.from_bytes(source.read(offset, 4, "table"), "little", signed=True)
    vtable = offset - distance
    size = _number(source, vtable, 2)
    length = _number(source, vtable + 2, 2)
    if size < 4 or size % 2:
        raise HostileFile("a broken table", where=str(source.path), got=f"vtable of {size} bytes")
    places = np.frombuffer(source.read(vtable + 4, size - 4, "vtable"), "<u2")
    if places.size and int(places.max()) >= max(length, 4):
        raise HostileFile("a field outside its table", where=str(source.path))
    return Table(source, offset, tuple(offset + int(p) if p else 0 for p in places))
