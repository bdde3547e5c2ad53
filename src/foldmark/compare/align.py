"""Which tensor of one file is which tensor of another, each match with its evidence.

First by name, as it stands or through the naming schemes of the field; then by shape and a
sample of the content. A weight may lie transposed, reshaped, padded, with its rotary rows in
another order, or in one piece with its neighbours (query, key and value; gate and up; all experts
of a layer). Only samples are read: two files of billions of weights align in seconds.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from foldmark.compare.arrangement import (
    PLAIN,
    Arrangement,
    arrangements,
    one_of,
    stacked,
    these_rows,
)
from foldmark.compare.fusing import orders_of_whole
from foldmark.compare.naming import canonical_name
from foldmark.compare.parts import ALIKE, TURNED, Found, find_parts, rotations
from foldmark.compare.sampling import Sampler
from foldmark.formats.stored import StoredTensor
from foldmark.formats.values import Array

__all__ = ["Alignment", "Match", "align"]

# What another size takes from a likeness: less than another direction ever does.
_OF_SIZE = 1e-3
# Vectors and tables that are smaller say too little about whose they are.
_SMALLEST = 256

# the parts that a fused weight is made of, from the first row down, and names of the whole
_FUSED = (
    (("q_proj", "k_proj", "v_proj"), ("qkv_proj", "query_key_value", "Wqkv", "qkv")),
    (("query", "key", "value"), ("qkv_proj", "query_key_value", "Wqkv", "qkv")),
    (("gate_proj", "up_proj"), ("gate_up_proj",)),
)
_EXPERT = re.compile(r"\.experts\.(\d+)\.")


@dataclass(frozen=True, eq=False)
class Match:
    """One tensor in both files.

    Attributes:
        left: the tensor whose layout is kept.
        right: tensors that make it up, one in most cases.
        arrangement: brings the right one's numbers, float32, into the left one's layout.
        evidence: how the match was found, in words.
    """

    left: StoredTensor
    right: tuple[StoredTensor, ...]
    arrangement: Arrangement
    evidence: str

    def arrange(self, array: Array) -> Array:
        """Bring an array of the right tensor's shape into the left one's layout."""
        return self.arrangement.apply(array)

    def load_right(self) -> Array:
        """Return the right tensor's numbers in the left one's layout, float32."""
        parts = [tensor.load().dequantize() for tensor in self.right]
        return self.arrange(parts[0] if len(parts) == 1 else np.concatenate(parts))


@dataclass(frozen=True, eq=False)
class Alignment:
    """All matches, and what is left on either side."""

    matches: tuple[Match, ...]
    left_over: tuple[StoredTensor, ...]
    right_over: tuple[StoredTensor, ...]


def align(
    left: tuple[StoredTensor, ...],
    right: tuple[StoredTensor, ...],
    sampler: Sampler | None = None,
) -> Alignment:
    """Match every tensor of the left file with one of the right.

    Args:
        left: tensors to find partners for.
        right: where to look.
        sampler: reads their samples; a new one when None.
    """
    return _Finder(left, right, sampler or Sampler()).run()


class _Finder:
    """The two sides and what is left of them."""

    def __init__(
        self, left: tuple[StoredTensor, ...], right: tuple[StoredTensor, ...], sampler: Sampler
    ) -> None:
        self.left = {tensor.name: tensor for tensor in left}
        self.right = {tensor.name: tensor for tensor in right}
        self.ours, self.theirs = _by_name(left), _by_name(right)
        self.sampler = sampler
        self.matches: list[Match] = []
        self.used: set[str] = set()

    def run(self) -> Alignment:
        order = {name: place for place, name in enumerate(self.left)}
        for tensor in list(self.left.values()):
            found = self.right.get(tensor.name)
            evidence = "same name"
            if found is None:
                found = self.theirs.get(canonical_name(tensor.name))
                evidence = f"named {found.name!r}" if found is not None else ""
            if found is not None and found.name in self.right:
                self._match(tensor, found, evidence)
        self._match_fused()
        self._match_experts()
        for tensor in list(self.left.values()):
            self._match_content(tensor)
        for name in self.used:
            self.right.pop(name, None)
        matches = sorted(self.matches, key=lambda match: order[match.left.name])
        return Alignment(tuple(matches), tuple(self.left.values()), tuple(self.right.values()))

    def _match(self, tensor: StoredTensor, found: StoredTensor, evidence: str) -> None:
        for arrangement in arrangements(tensor.shape, found.shape):
            if arrangement.is_plain:
                other, words = self._other_way(tensor, found)
                said = f"{evidence}, {words}" if words else evidence
                self._keep(tensor, (found,), other, said)
                return
            likeness = self._likeness(tensor, (found,), arrangement)
            if likeness > ALIKE or len(tensor.shape) < 2:
                words = f"{evidence}, {arrangement.words} (cosine {likeness:.4f})"
                self._keep(tensor, (found,), arrangement, words)
                return
            if self._are_zero(tensor, found, arrangement):
                words = f"{evidence}, {arrangement.words} (both all zero)"
                self._keep(tensor, (found,), arrangement, words)
                return

    def _other_way(self, tensor: StoredTensor, found: StoredTensor) -> tuple[Arrangement, str]:
        """Return the plain arrangement, or another of the same shape that is more alike."""
        square = len(tensor.shape) == 2 and tensor.shape[0] == tensor.shape[1]
        name = canonical_name(tensor.name)
        turns = name.endswith(TURNED)
        fused = [len(parts) for parts, wholes in _FUSED if name.endswith(_dotted(wholes))]
        if len(tensor.shape) != 2 or not (square or turns or fused):
            return PLAIN, ""
        same = self._likeness(tensor, (found,), PLAIN)
        if same > ALIKE:
            return PLAIN, ""
        others = list(arrangements(tensor.shape, found.shape))[1:] if square else []
        if turns:
            others += rotations(tensor.shape[0])
        others += [
            these_rows(f"rows reordered, {words}", order)
            for count in fused[:1]
            for words, order in orders_of_whole(tensor.shape[0], count)
        ]
        for other in others:
            likeness = self._likeness(tensor, (found,), other)
            if likeness > max(same, ALIKE):
                return other, f"{other.words} (cosine {likeness:.4f}, as it lies {same:.4f})"
        return PLAIN, ""

    def _keep(
        self,
        tensor: StoredTensor,
        found: tuple[StoredTensor, ...],
        arrangement: Arrangement,
        evidence: str,
        *,
        shared: bool = False,
    ) -> None:
        self.matches.append(Match(tensor, found, arrangement, evidence))
        del self.left[tensor.name]
        for part in found:
            if shared:
                self.used.add(part.name)
            else:
                self.right.pop(part.name, None)

    def _match_fused(self) -> None:
        """Match a weight in one piece on one side with its parts on the other."""
        for parts, wholes in _FUSED:
            for whole in wholes:
                for name, tensor in self.ours.items():
                    if name.endswith(f".{whole}") and tensor.name in self.left:
                        self._made_of(tensor, _found(self.theirs, name, whole, parts))
                for name, tensor in self.theirs.items():
                    if name.endswith(f".{whole}") and tensor.name in self.right:
                        self._parts_of(tensor, _found(self.ours, name, whole, parts))

    def _made_of(self, whole: StoredTensor, parts: list[StoredTensor]) -> None:
        if not parts or not all(part.name in self.right for part in parts):
            return
        found = find_parts(whole, parts, self._likeness)
        if len(found.parts) == len(parts):
            names = ", ".join(repr(part.name) for part in parts)
            likeness = min(each.likeness for each in found.parts)
            said = [f"made of {names}", *found.words]
            evidence = f"{', '.join(said)} (cosine {likeness:.4f})"
            self._keep(whole, tuple(parts), found.arrangement, evidence)

    def _parts_of(self, whole: StoredTensor, parts: list[StoredTensor]) -> None:
        found = find_parts(whole, parts, self._likeness) if parts else Found(whole)
        for each in found.parts:
            if each.tensor.name in self.left:
                said = [f"{each.where} of {whole.name!r}", found.way, *each.words]
                evidence = f"{', '.join(filter(None, said))} (cosine {each.likeness:.4f})"
                self._keep(each.tensor, (whole,), each.arrangement, evidence, shared=True)

    def _match_experts(self) -> None:
        """Match one tensor of all experts with one tensor an expert, on either side."""
        for family, parts in _families(self.right.values()).items():
            for tensor in list(self.left.values()):
                if _holds(tensor, family, parts):
                    arrangement = stacked(tensor.shape)
                    likeness = self._likeness(tensor, parts, arrangement)
                    if likeness > ALIKE:
                        words = f"made of {len(parts)} experts from {parts[0].name!r} on"
                        words += f" (cosine {likeness:.4f})"
                        self._keep(tensor, parts, arrangement, words)
                        break
        for family, parts in _families(self.left.values()).items():
            for tensor in list(self.right.values()):
                if not _holds(tensor, family, parts):
                    continue
                likeness = self._likeness(parts[0], (tensor,), one_of(0))
                if likeness > ALIKE:
                    for place, part in enumerate(parts):
                        words = f"expert {place} of {tensor.name!r} (cosine {likeness:.4f})"
                        self._keep(part, (tensor,), one_of(place), words, shared=True)
                    break

    def _match_content(self, tensor: StoredTensor) -> None:
        """Find the most alike tensor of a shape that fits."""
        if tensor.elements < _SMALLEST:
            return
        best: tuple[float, float, StoredTensor, Arrangement] | None = None
        for other in self.right.values():
            if other.elements != tensor.elements or other.layout.number_format in ("int64", "bool"):
                continue
            for arrangement in arrangements(tensor.shape, other.shape):
                likeness, size = self._likeness_and_size(tensor, (other,), arrangement)
                # Among constant tensors, all of one direction, the size tells which is which.
                score = likeness - _OF_SIZE * min(1.0, abs(1 - size))
                if likeness > ALIKE and (best is None or score > best[0]):
                    best = (score, likeness, other, arrangement)
        if best is not None:
            _, likeness, other, arrangement = best
            evidence = f"content of {other.name!r} (cosine {likeness:.4f})"
            said = f"{evidence}, {arrangement.words}" if arrangement.words else evidence
            self._keep(tensor, (other,), arrangement, said)

    def _are_zero(
        self, tensor: StoredTensor, other: StoredTensor, arrangement: Arrangement
    ) -> bool:
        """Say whether two tensors hold nothing by which to tell how they lie."""
        pair = self.sampler.pair(tensor, (other,), arrangement)
        return pair is not None and not any(block.numbers.any() for block in pair[:2])

    def _likeness(
        self, tensor: StoredTensor, other: tuple[StoredTensor, ...], arrangement: Arrangement
    ) -> float:
        """Return the cosine between two tensors on a sample of both."""
        return self._likeness_and_size(tensor, other, arrangement)[0]

    def _likeness_and_size(
        self, tensor: StoredTensor, other: tuple[StoredTensor, ...], arrangement: Arrangement
    ) -> tuple[float, float]:
        """Return the cosine between two tensors, and how large the other is beside this one."""
        with np.errstate(all="ignore"):
            pair = self.sampler.pair(tensor, other, arrangement)
            if pair is None:
                return 0.0, 0.0
            one, two = (block.numbers.astype(np.float64).reshape(-1) for block in pair[:2])
            sizes = float(np.linalg.norm(one)), float(np.linalg.norm(two))
            scale = sizes[0] * sizes[1]
            if not (scale > 0 and np.isfinite(scale)):
                return 0.0, 0.0
            return float(one @ two) / scale, sizes[1] / sizes[0]


def _dotted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f".{name}" for name in names)


def _by_name(tensors: tuple[StoredTensor, ...]) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    for tensor in tensors:
        found.setdefault(canonical_name(tensor.name), tensor)
    return found


def _found(
    names: dict[str, StoredTensor], name: str, whole: str, parts: tuple[str, ...]
) -> list[StoredTensor]:
    """Return a fused weight's parts on the other side, all of them or none."""
    start = name.removesuffix(whole)
    found = [names[start + part] for part in parts if start + part in names]
    return found if len(found) == len(parts) else []


def _families(tensors: Iterable[StoredTensor]) -> dict[str, tuple[StoredTensor, ...]]:
    """Return the experts of each layer and kind, in order, where all of them are alike."""
    found: dict[str, dict[int, StoredTensor]] = {}
    for tensor in tensors:
        name = canonical_name(tensor.name)
        number = _EXPERT.search(name)
        if number is not None:
            found.setdefault(_EXPERT.sub(".experts.", name), {})[int(number[1])] = tensor
    return {
        family: tuple(parts[k] for k in range(len(parts)))
        for family, parts in found.items()
        if set(parts) == set(range(len(parts))) and len({p.shape for p in parts.values()}) == 1
    }


def _holds(tensor: StoredTensor, family: str, parts: tuple[StoredTensor, ...]) -> bool:
    """Say whether a tensor has the name, or at least the shape, of all experts in one."""
    if tensor.shape != (len(parts), *parts[0].shape):
        return False
    name = canonical_name(tensor.name)
    return name == family or "expert" not in name
