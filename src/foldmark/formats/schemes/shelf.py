"""Named arrays of a file, and what all schemes need to read them together."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from foldmark.errors import HostileFile
from foldmark.formats.source import FileBytes
from foldmark.formats.stored import Array, Part, Span

__all__ = [
    "DTYPES",
    "Entry",
    "Shelf",
    "block_of",
    "demand",
    "parts",
    "spans",
]

# name of a dtype -> what numpy calls it
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


@dataclass(frozen=True, eq=False)
class Entry:
    """One named array of a file.

    Attributes:
        name: as in the file.
        number_format: a key of DTYPES.
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
    def itemsize(self) -> int:
        """Bytes of one item."""
        return DTYPES[self.number_format].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.elements * self.itemsize

    @property
    def span(self) -> Span:
        """Where it lies."""
        return Span(self.source, self.offset, self.nbytes)

    def rows(self, first: int, last: int) -> Array:
        """Read indices first..last of axis 0."""
        across = math.prod(self.shape[1:])
        count = (last - first) * across
        items = self.source.array(
            DTYPES[self.number_format],
            self.offset + first * across * self.itemsize,
            count,
            f"tensor {self.name!r}",
        )
        return items.reshape(last - first, *self.shape[1:])

    def flat(self, first: int, last: int) -> Array:
        """Read items first..last in C order."""
        return self.source.array(
            DTYPES[self.number_format],
            self.offset + first * self.itemsize,
            last - first,
            f"tensor {self.name!r}",
        )

    def load(self) -> Array:
        """Read everything."""
        return self.flat(0, self.elements).reshape(self.shape)


@dataclass
class Shelf:
    """All arrays of a file or of its shards; schemes take theirs off, the rest is plain.

    Attributes:
        entries: by name, in file order.
        metadata: text that the file carries.
        config: the model's quantization settings where a file beside it tells them.
    """

    entries: dict[str, Entry]
    metadata: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, object] = field(default_factory=dict)

    def modules(self, suffix: str) -> Iterator[str]:
        """Yield what stands before a suffix, for each name that ends in it."""
        for name in [name for name in self.entries if name.endswith(suffix)]:
            yield name[: len(name) - len(suffix)]

    def get(self, name: str) -> Entry | None:
        """Return the array of that name, None when there is none."""
        return self.entries.get(name)

    def take(self, *names: str) -> list[Entry]:
        """Take arrays off the shelf; names that are not there are passed over."""
        return [self.entries.pop(name) for name in names if name in self.entries]


def demand(entry: Entry, fits: bool, expected: str) -> None:
    """Refuse an array whose shape or dtype contradicts its neighbours.

    Raises:
        HostileFile: naming the array.
    """
    if not fits:
        raise HostileFile(
            f"tensor {entry.name!r} contradicts the tensors beside it",
            where=str(entry.source.path),
            got=f"{entry.number_format} {list(entry.shape)}",
            expected=expected,
        )


def block_of(shape: tuple[int, ...], scale: Entry) -> tuple[int, ...]:
    """Work out which elements share a scale from the two shapes.

    A scale of one item serves the whole tensor, (rows,) and (rows, 1) one row each, and a
    scale of the tensor's rank as many elements along each axis as its count leaves.

    Raises:
        HostileFile: when no block fits.
    """
    if scale.elements == 1:
        return tuple(max(1, n) for n in shape)
    counts = scale.shape
    if len(counts) < len(shape):
        counts = counts + (1,) * (len(shape) - len(counts))
    fits = len(counts) == len(shape) and all(
        0 < count <= max(1, n) for count, n in zip(counts, shape, strict=True)
    )
    demand(scale, fits, f"a shape that divides {list(shape)}")
    return tuple(_block_length(n, count, scale) for n, count in zip(shape, counts, strict=True))


def _block_length(length: int, count: int, scale: Entry) -> int:
    if length % count == 0:
        return max(1, length // count)
    power = 1 << (-(-length // count) - 1).bit_length()
    demand(scale, -(-length // power) == count, f"blocks that cover {length} elements")
    return power


def spans(*entries: Entry | None) -> tuple[Span, ...]:
    """Collect where arrays lie, leaving out those that are not there."""
    return tuple(entry.span for entry in entries if entry is not None)


def parts(**roles: Entry | None) -> dict[Part, int]:
    """Count bytes by what they serve: parts(codes=a, scales=b, zero_points=c, indices=d)."""
    counted: dict[Part, int] = {}
    for role, entry in roles.items():
        if entry is not None:
            part = Part[role.upper()]
            counted[part] = counted.get(part, 0) + entry.nbytes
    return counted
