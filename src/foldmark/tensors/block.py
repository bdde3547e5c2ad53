"""Granularity as one idea: the shape of the block of numbers that shares a scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from foldmark.errors import InvalidScheme

__all__ = ["BlockShape", "Others", "per_axis", "per_group", "per_tensor", "tile"]


class Others(Enum):
    """How far a block reaches along the axes that its shape does not name."""

    WHOLE = "all the way"
    ONE = "one element"


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The extent of a block along every axis of an array, for arrays of any rank.

    extents  pairs of an axis, negative ones counted from the last, and the extent along it
    others   the extent along every other axis

    On a matrix of 4 rows and 8 columns:

        per_tensor()      one block of 4 x 8
        per_axis(0)       4 blocks of 1 x 8, one for each index of axis 0
        per_group(4)      8 blocks of 1 x 4, runs along the last axis
        tile((2, 4))      4 blocks of 2 x 4

    The last block of an axis may be cut short.
    """

    extents: tuple[tuple[int, int], ...] = ()
    others: Others = Others.WHOLE

    def __post_init__(self) -> None:
        """Raise InvalidScheme for an extent below 1 or an axis named twice."""
        axes = [axis for axis, _ in self.extents]
        if any(extent < 1 for _, extent in self.extents) or len(set(axes)) != len(axes):
            raise InvalidScheme(
                "a block needs a positive extent along each axis, once",
                where="BlockShape",
                got=str(self.extents),
            )

    def of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the extent of a block along every axis of an array of a shape.

        Raises InvalidScheme when the array has no such axis.
        """
        extents = list(shape) if self.others == Others.WHOLE else [1] * len(shape)
        for axis, extent in self.extents:
            if not -len(shape) <= axis < len(shape):
                raise InvalidScheme(
                    f"the array has no axis {axis}", where=str(self), got=f"shape {tuple(shape)}"
                )
            extents[axis] = extent
        return tuple(max(1, min(e, n)) for e, n in zip(extents, shape, strict=True))

    def grid(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return how many blocks lie along every axis: the shape of scale and zero point.

        Along an axis that a block covers there is one, also where the axis has no elements.
        """
        named = {axis % max(len(shape), 1) for axis, _ in self.extents}
        blocks = zip(range(len(shape)), self.of(shape), shape, strict=True)
        covers = self.others == Others.WHOLE
        return tuple(
            1 if covers and axis not in named else -(-size // extent)
            for axis, extent, size in blocks
        )

    def __str__(self) -> str:
        """Say the block shape in words."""
        if not self.extents:
            return "per tensor" if self.others == Others.WHOLE else "per element"
        if len(self.extents) == 1:
            (axis, extent) = self.extents[0]
            if self.others == Others.WHOLE:
                return f"per axis {axis}" if extent == 1 else f"bands of {extent} along axis {axis}"
            return f"groups of {extent} along axis {axis}"
        return "tiles of " + " x ".join(str(extent) for _, extent in self.extents)


def per_tensor() -> BlockShape:
    """Return the shape of one block for the whole array."""
    return BlockShape()


def per_axis(axis: int) -> BlockShape:
    """Return the shape of one block for each index of an axis (one scale per channel)."""
    return BlockShape(((axis, 1),))


def per_group(size: int, axis: int = -1) -> BlockShape:
    """Return the shape of blocks of `size` elements along an axis, one element wide elsewhere."""
    return BlockShape(((axis, size),), Others.ONE)


def tile(extents: Sequence[int]) -> BlockShape:
    """Return the shape of blocks reaching `extents` along the last axes, else one element."""
    count = len(extents)
    return BlockShape(
        tuple((place - count, extent) for place, extent in enumerate(extents)), Others.ONE
    )
