"""Two quantized files of one model: which rule differs, tensor by tensor and in all.

With the float model each side's rule is searched, on one tensor of each scheme in full and on
the others by holding what was found against them. Without it the two sides are compared with
each other, and each shows what its codes and scales alone betray.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from foldmark.compare.align import Alignment, Match, align
from foldmark.compare.difference import FieldDifference, differences
from foldmark.compare.fit import Fit, fit_tensor
from foldmark.compare.traces import find_traces
from foldmark.errors import ModelsDiffer, NothingQuantized
from foldmark.formats.stored import Array, Artefact, StoredTensor, Values

__all__ = ["CodeDifference", "Diff", "TensorDiff", "diff_artefacts", "fit_match", "turned"]

# Tensors searched in full for each pair of schemes; the rest is compared number by number.
_SEARCHED = 2
# Without the float model so many weights are asked what their own codes show.
_TRACED = 4
_WIDE = ("int32", "int64", "uint32")


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

    @property
    def evidence(self) -> str:
        """How the float original was found, "" without."""
        return "" if self.original is None else self.original.evidence


@dataclass(frozen=True, eq=False)
class Diff:
    """All that two files differ in.

    Attributes:
        left, right: the files.
        original: the float file, None when none was given.
        tensors: weights that are in both, quantized in at least one, in file order.
        left_only, right_only: quantized weights without a partner.
        without_original: matched weights that the float file lacks.
        traces: what each side's codes and scales show of themselves; without the float file.
    """

    left: Artefact
    right: Artefact
    original: Artefact | None
    tensors: tuple[TensorDiff, ...]
    left_only: tuple[StoredTensor, ...]
    right_only: tuple[StoredTensor, ...]
    without_original: tuple[str, ...]
    traces: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


def diff_artefacts(
    left: Artefact,
    right: Artefact,
    original: Artefact | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Diff:
    """Compare two files, with the float model's file or without.

    Args:
        left, right: the two results.
        original: what they were made from.
        progress: called with weights done and weights in all.

    Raises:
        NothingQuantized: no quantized weight on either side.
        ModelsDiffer: no weight of one is a weight of the other.
    """
    ours, theirs = _weights(left), _weights(right)
    if not any(tensor.layout.is_quantized for tensor in (*ours, *theirs)):
        where = f"{left.path} and {right.path}"
        raise NothingQuantized("neither file holds a quantized weight", where=where)
    sides = align(ours, theirs)
    kept = [m for m in sides.matches if m.left.layout.is_quantized or _is_quantized(m.right)]
    if not kept:
        raise ModelsDiffer(
            "no weight of one file is a weight of the other",
            where=f"{left.path} and {right.path}",
            todo="name two results of the same model",
        )
    originals = _originals(kept, original)
    searched: dict[tuple[object, ...], int] = {}
    tensors = []
    for place, match in enumerate(kept):
        float_match = originals.get(match.left.name)
        both = (match.left, *match.right)
        key = tuple((t.layout.packing, t.layout.number_format) for t in both)
        search = searched.get(key, 0) < _SEARCHED
        found = _compare(match, float_match, search)
        if found.left is not None or found.right is not None:
            searched[key] = searched.get(key, 0) + 1
        tensors.append(found)
        if progress is not None:
            progress(place + 1, len(kept))
    missing = tuple(m.left.name for m in kept if original and m.left.name not in originals)
    shown = ((), ()) if original is not None else (_traces(tensors, 0), _traces(tensors, 1))
    return Diff(left, right, original, tuple(tensors), *_left_over(sides), missing, shown)


def _traces(tensors: list[TensorDiff], side: int) -> tuple[str, ...]:
    """Return what the first quantized weights of a side show, each sentence once."""
    stored = [t.match.left if side == 0 else t.match.right[0] for t in tensors]
    quantized = [tensor for tensor in stored if tensor.layout.is_quantized]
    said = dict.fromkeys(find_traces(tensor).sentence() for tensor in quantized[:_TRACED])
    return tuple(words for words in said if words)


def _weights(artefact: Artefact) -> tuple[StoredTensor, ...]:
    """Return what may be a weight: biases in int32 follow from scales and are not compared."""
    return tuple(
        tensor
        for tensor in artefact.tensors
        if tensor.elements > 1 and tensor.layout.number_format not in _WIDE
    )


def _is_quantized(tensors: tuple[StoredTensor, ...]) -> bool:
    return any(tensor.layout.is_quantized for tensor in tensors)


def _originals(kept: list[Match], original: Artefact | None) -> dict[str, Match]:
    if original is None:
        return {}
    # The larger first: their content says most, and small ones take what is left.
    wanted = sorted((match.left for match in kept), key=lambda t: -t.elements)
    found = align(tuple(wanted), _weights(original))
    return {match.left.name: match for match in found.matches}


def _left_over(sides: Alignment) -> tuple[tuple[StoredTensor, ...], tuple[StoredTensor, ...]]:
    only = [
        tuple(tensor for tensor in side if tensor.layout.is_quantized)
        for side in (sides.left_over, sides.right_over)
    ]
    return only[0], only[1]


def _compare(match: Match, original: Match | None, search: bool) -> TensorDiff:
    with np.errstate(all="ignore"):
        numbers = match.left.load().dequantize()
        others = match.load_right()
        weights = None if original is None else original.load_right()
        one, other = fit_match(match, weights) if search and weights is not None else (None, None)
        fields = differences(one, other) if one is not None and other is not None else ()
        return TensorDiff(
            match,
            _code_difference(match, weights),
            one,
            other,
            fields,
            _relative(numbers - others, numbers),
            None if weights is None else _relative(numbers - weights, weights),
            None if weights is None else _relative(others - weights, weights),
            original,
        )


def _relative(difference: Array, reference: Array) -> float:
    size = float(np.sqrt(np.mean(np.square(reference.astype(np.float64)))))
    off = float(np.sqrt(np.mean(np.square(difference.astype(np.float64)))))
    return off / size if size else off


def fit_match(match: Match, weights: Array) -> tuple[Fit | None, Fit | None]:
    """Search the rules of both sides; None for a side that no rule can be searched of.

    Args:
        match: the two tensors.
        weights: their float original in the left one's layout.
    """
    left = fit_tensor(match.left, weights) if match.left.layout.is_quantized else None
    if len(match.right) != 1 or not match.right[0].layout.is_quantized:
        return left, None
    right = match.right[0]
    own = turned(weights, right.shape, match)
    return left, None if own is None else fit_tensor(right, own)


def turned(weights: Array, shape: tuple[int, ...], match: Match) -> Array | None:
    """Bring weights from the left tensor's layout into the right one's."""
    places = np.arange(int(np.prod(shape))).reshape(shape)
    arranged = match.arrange(places)
    if arranged.size != places.size:
        return None
    moved = np.empty(places.size, weights.dtype)
    moved[arranged.reshape(-1)] = weights.reshape(-1)
    return moved.reshape(shape)


def _code_difference(match: Match, weights: Array | None) -> CodeDifference | None:
    """Compare codes one by one, their zero points taken off."""
    if len(match.right) != 1:
        return None
    left, right = match.left.load(), match.right[0].load()
    one, other = _centred(left), _centred(right)
    if one is None or other is None:
        return None
    other = match.arrange(other)
    if one.shape != other.shape:
        return None
    differs = one != other
    count = int(np.count_nonzero(differs))
    if not count:
        return CodeDifference(0, one.size)
    first = np.unravel_index(int(np.argmax(differs)), one.shape)
    index = tuple(int(i) for i in first)
    found = CodeDifference(count, one.size, index, int(one[first]), int(other[first]))
    if weights is None or left.scale is None or right.scale is None:
        return found
    scales = (
        np.broadcast_to(left.spread(left.scale), one.shape),
        match.arrange(np.broadcast_to(right.spread(right.scale), right.codes.shape)),
    )
    weight = float(weights[first])
    exact = [weight / float(scale[first]) for scale in scales]
    return CodeDifference(
        count, one.size, index, int(one[first]), int(other[first]), weight, *exact
    )


def _centred(values: Values) -> Array | None:
    if values.codebook is not None or values.offset is not None:
        return None
    if values.codes.dtype.kind not in "iu":
        return None
    codes = values.codes.astype(np.int32)
    if values.zero_point is None:
        return codes
    if values.zero_point.dtype.kind == "f":
        return None
    return np.asarray(codes - values.spread(values.zero_point.astype(np.int32)))
