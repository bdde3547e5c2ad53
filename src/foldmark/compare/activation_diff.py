"""What two files say of the activations that they quantize, without running either.

Scales and zero points of values of the same name are compared number by number. What another
scale does to the output is not known without data; `pricing` measures that.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from foldmark.compare.naming import canonical_name
from foldmark.formats.activations import StoredActivation
from foldmark.formats.stored import Artefact
from foldmark.formats.values import Array

__all__ = ["ActivationDiff", "ActivationPair", "compare_activations"]


@dataclass(frozen=True, eq=False)
class ActivationPair:
    """One value that both files quantize, by its name.

    Attributes:
        left, right: how each does.
    """

    left: StoredActivation
    right: StoredActivation

    @property
    def is_compared(self) -> bool:
        """True where both store their scales."""
        return not (self.left.is_dynamic or self.right.is_dynamic)

    @property
    def is_alike(self) -> bool:
        """True where both do the same, as far as the files tell."""
        formats = {self.left.number_format, self.right.number_format} - {""}
        return (
            len(formats) < 2
            and _alike(self.left.scale, self.right.scale)
            and _alike(self.left.zero_point, self.right.zero_point)
        )

    @property
    def ratio(self) -> float:
        """How far the largest scales lie apart: |ln(right / left)|, 0 where one is no scale."""
        if self.left.scale is None or self.right.scale is None:
            return 0.0
        with np.errstate(all="ignore"):
            ends = (float(np.abs(s).max(initial=0)) for s in (self.left.scale, self.right.scale))
            one, other = ends
            ratio = abs(float(np.log(np.float64(other) / np.float64(one))))
        return ratio if np.isfinite(ratio) else 0.0


@dataclass(frozen=True, eq=False)
class ActivationDiff:
    """The activations of two files.

    Attributes:
        left, right: all that each quantizes.
        pairs: those of one name, in the left one's order.
    """

    left: tuple[StoredActivation, ...] = ()
    right: tuple[StoredActivation, ...] = ()
    pairs: tuple[ActivationPair, ...] = ()

    @property
    def compared(self) -> tuple[ActivationPair, ...]:
        """Those whose scales both files store."""
        return tuple(pair for pair in self.pairs if pair.is_compared)

    @property
    def apart(self) -> tuple[ActivationPair, ...]:
        """Those of the compared that differ, the farthest first."""
        differ = (pair for pair in self.compared if not pair.is_alike)
        return tuple(sorted(differ, key=lambda pair: -pair.ratio))

    @property
    def kinds(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """How many of each kind a side quantizes: "static uint8", "dynamic int8"."""
        return _kinds(self.left), _kinds(self.right)

    @property
    def only(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names that one side has alone."""
        paired = [
            {pair.left.name for pair in self.pairs},
            {pair.right.name for pair in self.pairs},
        ]
        sides = zip((self.left, self.right), paired, strict=True)
        left, right = (tuple(a.name for a in side if a.name not in names) for side, names in sides)
        return left, right


def compare_activations(left: Artefact, right: Artefact) -> ActivationDiff:
    """Pair the quantized activations of two files by name.

    Args:
        left, right: opened files.
    """
    exact = {each.name: each for each in right.activations}
    translated = {canonical_name(each.name): each for each in right.activations}
    pairs, taken = [], set()
    for each in left.activations:
        other = exact.get(each.name) or translated.get(canonical_name(each.name))
        if other is not None and other.name not in taken:
            taken.add(other.name)
            pairs.append(ActivationPair(each, other))
    return ActivationDiff(left.activations, right.activations, tuple(pairs))


def _alike(one: Array | None, other: Array | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other, equal_nan=True)


def _kinds(activations: tuple[StoredActivation, ...]) -> Mapping[str, int]:
    names = (
        f"{'dynamic' if each.is_dynamic else 'static'} {each.number_format}".strip()
        for each in activations
    )
    return Counter(names)
