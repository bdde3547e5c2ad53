"""One weight in two files: how far its numbers and its codes lie apart."""

from dataclasses import dataclass, replace

import numpy as np

from foldmark.compare.agreement import Form, form_of
from foldmark.compare.align import Match
from foldmark.compare.difference import FieldDifference
from foldmark.compare.fit import Fit
from foldmark.compare.mixing import FLOAT
from foldmark.compare.sampling import Block, Sampler, arranged, block_of
from foldmark.formats.values import Array

__all__ = ["CodeDifference", "TensorDiff", "compare_all", "compare_some"]

# So many numbers are summed at once, in double precision.
_PIECE = 1 << 20


@dataclass(frozen=True)
class CodeDifference:
    """How many codes differ, and the first that does.

    Attributes:
        count: codes that differ, zero points taken off.
        total: codes compared.
        index: the first that differs; None when none does.
        left, right: the two codes there, zero points taken off.
        weight: the float weight there, None when unknown.
        left_exact, right_exact: that weight in steps of each side's scale.
    """

    count: int
    total: int
    index: tuple[int, ...] | None = None
    left: int = 0
    right: int = 0
    weight: float | None = None
    left_exact: float | None = None
    right_exact: float | None = None


@dataclass(frozen=True, eq=False)
class TensorDiff:
    """One weight in both files.

    Attributes:
        match: the two tensors.
        codes: how their codes differ; None when codes can't be compared one by one.
        left, right: each side's rule; None where it was not searched.
        fields: decisions made differently; of a searched tensor only.
        distance: root mean square between the two sides' numbers, relative to the left's.
        left_error, right_error: root mean square against the float weights, relative to them;
            None without the float model.
        original: the tensor beside its float original; None without.
        sampled: of how many places all this was seen; None for all.
    """

    match: Match
    codes: CodeDifference | None
    left: Fit | None
    right: Fit | None
    fields: tuple[FieldDifference, ...]
    distance: float
    left_error: float | None
    right_error: float | None
    original: Match | None
    sampled: int | None = None

    @property
    def forms(self) -> tuple[Form, ...]:
        """What it has in common with weights whose rules are most likely the same."""
        return tuple(form_of(stored) for stored in (self.match.left, *self.match.right))

    @property
    def evidence(self) -> str:
        """How the float original was found, "" without."""
        return "" if self.original is None else self.original.evidence


def compare_all(match: Match, original: Match | None) -> TensorDiff:
    """Compare every number of a weight."""
    with np.errstate(all="ignore"):
        one = block_of(match.left.load())
        other = arranged([block_of(part.load()) for part in match.right], match.arrangement)
        weights = None if original is None else original.load_right()
    return _measured(match, original, (one, other), weights, None)


def compare_some(match: Match, original: Match | None, sampler: Sampler) -> TensorDiff:
    """Compare some numbers of a weight."""
    sides = [(match.right, match.arrangement)]
    if original is not None:
        sides.append((original.right, original.arrangement))
    crossed = any(sampler.crosses(match.left, parts, way) for parts, way in sides)
    found = [sampler.pair(match.left, parts, way, crossed=crossed) for parts, way in sides]
    if found[0] is None:
        return compare_all(match, original)
    one, other, rows, columns = found[0]
    weights = None
    if len(found) > 1 and found[1] is not None:
        exact = found[1][1].numbers
        weights = exact if exact.shape == one.numbers.shape else None
    return _measured(match, original, (one, other), weights, (rows, columns))


def _measured(
    match: Match,
    original: Match | None,
    blocks: tuple[Block, Block],
    weights: Array | None,
    places: tuple[Array, Array] | None,
) -> TensorDiff:
    one, other = blocks
    with np.errstate(all="ignore"):
        return TensorDiff(
            match,
            _code_difference(one, other, weights, places) if len(match.right) == 1 else None,
            None,
            None,
            _left_in_float(match),
            _relative(one.numbers, other.numbers, one.numbers),
            None if weights is None else _relative(one.numbers, weights, weights),
            None if weights is None else _relative(other.numbers, weights, weights),
            original,
            None if places is None or one.numbers.size == match.left.elements else one.numbers.size,
        )


def _left_in_float(match: Match) -> tuple[FieldDifference, ...]:
    """Return the decision of a weight that only one side quantizes."""
    sides = (
        match.left.layout.is_quantized,
        any(tensor.layout.is_quantized for tensor in match.right),
    )
    if sides[0] == sides[1]:
        return ()
    one, other = ("quantized" if side else "float" for side in sides)
    return (FieldDifference(FLOAT, one, other),)


def _relative(one: Array, other: Array, reference: Array) -> float:
    """Return the root mean square of a difference over that of a reference."""
    flat = [np.ascontiguousarray(array).reshape(-1) for array in (one, other, reference)]
    off = size = 0.0
    for start in range(0, flat[0].size, _PIECE):
        a, b, c = (array[start : start + _PIECE].astype(np.float64) for array in flat)
        off += float(np.dot(a - b, a - b))
        size += float(np.dot(c, c))
    count = max(1, flat[0].size)
    return float(np.sqrt(off / size)) if size else float(np.sqrt(off / count))


def _code_difference(
    one: Block, other: Block, weights: Array | None, places: tuple[Array, Array] | None
) -> CodeDifference | None:
    """Compare codes one by one, their zero points taken off."""
    left, right = one.codes, other.codes
    if left is None or right is None or left.shape != right.shape:
        return None
    differs = left != right
    count = int(np.count_nonzero(differs))
    if not count:
        return CodeDifference(0, left.size)
    first = np.unravel_index(int(np.argmax(differs)), left.shape)
    index = tuple(int(i) for i in first)
    if places is not None and index:
        rows, columns = places
        moved = [int(rows[index[0]]), *index[1:]]
        if columns.size and len(moved) == 2:
            moved[1] = int(columns[index[1]])
        index = tuple(moved)
    found = CodeDifference(count, left.size, index, int(left[first]), int(right[first]))
    if weights is None or one.steps is None or other.steps is None:
        return found
    weight = float(weights[first])
    exact = [weight / s if s else None for s in (float(b[first]) for b in (one.steps, other.steps))]
    return replace(found, weight=weight, left_exact=exact[0], right_exact=exact[1])
