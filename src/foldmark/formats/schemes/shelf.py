"""Named arrays of a file, and what all schemes need to read them together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from foldmark.errors import HostileFile
from foldmark.formats.entry import Entry
from foldmark.formats.stored import Part, Span

__all__ = [
    "Shelf",
    "block_of",
    "demand",
    "parts",
    "spans",
]


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
