"""One named array of a file: numbers of one format in C order, read in part."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from foldmark.formats.bitfields import packed_codes, unpack_fields
from foldmark.formats.source import FileBytes
from foldmark.formats.stored import Span
from foldmark.formats.values import Array, PackedCodes

__all__ = ["DTYPES", "FIELDS", "Entry"]

# name of a format of whole bytes -> what numpy calls it
DTYPES: Mapping[str, np.dtype[np.generic]] = {
    "bool": np.dtype(np.bool_),
    "uint8": np.dtype(np.uint8),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "uint16": np.dtype(np.uint16),
    "int32": np.dtype(np.int32),
    "uint32": np.dtype(np.uint32),
    "int64": np.dtype(np.int64),
    "uint64": np.dtype(np.uint64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "complex64": np.dtype(np.complex64),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8_e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "float8_e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
}


def _around(zero: int, bits: int) -> Array:
    return (np.arange(1 << bits) - zero).astype(np.int8)


# name of a format of fields within bytes, low bits first -> bits, and the number of each field
# where it is not the field itself; "+ n" is what was added before packing
FIELDS: Mapping[str, tuple[int, Array | None]] = {
    **{f"uint{bits}": (bits, None) for bits in (1, 2, 3, 4, 6)},
    "float4_e2m1fn": (4, None),
    "int2": (2, ((np.arange(4) ^ 2) - 2).astype(np.int8)),
    "int4": (4, ((np.arange(16) ^ 8) - 8).astype(np.int8)),
    **{f"int{bits} + {1 << bits - 1}": (bits, _around(1 << bits - 1, bits)) for bits in (1, 2, 4)},
    "int8 + 128": (8, _around(128, 8)),
}


@dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """One named array of a file.

    Attributes:
        name: as in the file.
        number_format: a key of DTYPES or of FIELDS.
        shape: as in the file.
        source: where it lies.
        offset: first byte in that file.
    """

    name: str
    number_format: str
    shape: tuple[int, ...]
    source: FileBytes
    offset: int

    @property
    def elements(self) -> int:
        """Number of items."""
        return math.prod(self.shape)

    @property
    def bits(self) -> int:
        """Bits of one item."""
        if self.number_format in FIELDS:
            return FIELDS[self.number_format][0]
        return 8 * DTYPES[self.number_format].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return -(-self.elements * self.bits // 8)

    @property
    def span(self) -> Span:
        """Where it lies."""
        return Span(self.source, self.offset, self.nbytes)

    @property
    def in_order(self) -> bool:
        """True where items follow each other in C order, with nothing between."""
        return True

    def rows(self, first: int, last: int) -> Array:
        """Read indices first..last of axis 0."""
        across = math.prod(self.shape[1:])
        return self.read(first * across, last * across).reshape(last - first, *self.shape[1:])

    def read(self, first: int, last: int) -> Array:
        """Read items first..last in C order; fields within bytes come as uint8 or int8."""
        if self.number_format in FIELDS:
            return self._unpacked(first, last)
        dtype = DTYPES[self.number_format]
        place = self.offset + first * dtype.itemsize
        return self.source.array(dtype, place, last - first, f"tensor {self.name!r}")

    def stored(self, first: int, last: int, shape: tuple[int, ...]) -> Array | PackedCodes:
        """Read items first..last in C order, fields that fill whole bytes left in them.

        ->  `shape`, of last - first items
        """
        bits, numbers = FIELDS.get(self.number_format, (0, None))
        if bits not in (1, 2, 4, 8) or first * bits % 8 or last * bits % 8:
            return self.read(first, last).reshape(shape)
        raw = self._bytes(first * bits // 8, last * bits // 8)
        return packed_codes(raw.reshape(1, -1), bits, shape, numbers)

    def load(self) -> Array:
        """Read everything."""
        return self.read(0, self.elements).reshape(self.shape)

    def _bytes(self, first: int, last: int) -> Array:
        return self.source.array(
            np.uint8, self.offset + first, last - first, f"tensor {self.name!r}"
        )

    def _unpacked(self, first: int, last: int) -> Array:
        bits, numbers = FIELDS[self.number_format]
        start = first // 8 * 8  # eight items are whole bytes, whatever their width
        raw = self._bytes(start * bits // 8, -(-last * bits // 8))
        fields = unpack_fields(raw, bits)[first - start : last - start]
        return fields if numbers is None else numbers[fields]
