"""Two quantized files of one model: which rule differs, tensor by tensor and in all.

With the float model each side's rule is searched, on two weights of each pair of schemes. Files
of billions of weights are sampled first, and searched where most differs. Without it the two
sides are compared with each other, and each shows what its codes and scales alone betray.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import lcm

import numpy as np

from foldmark.compare.agreement import Agreement, Form, Witness, form_of, names_in_common
from foldmark.compare.align import Alignment, Match, align
from foldmark.compare.arrangement import PLAIN
from foldmark.compare.blocks import shared_scales
from foldmark.compare.difference import FieldDifference, differences
from foldmark.compare.fit import Fit, fit_tensor
from foldmark.compare.mixing import FLOAT
from foldmark.compare.modules import module_paths
from foldmark.compare.sampling import Block, Sampler, arranged, block_of
from foldmark.compare.traces import find_traces
from foldmark.errors import ModelsDiffer, NothingQuantized
from foldmark.formats.stored import Artefact, StoredTensor
from foldmark.formats.values import Array

__all__ = ["CodeDifference", "Diff", "TensorDiff", "diff_artefacts", "fit_match", "turned"]

# Tensors searched in full for each pair of schemes; the rest is compared number by number.
_SEARCHED = 2
# Of files up to so many weights every number is compared; of larger ones a sample of each weight.
_FULL = 1 << 26
# Rules are then searched on about so many numbers, or on a whole weight of at most so many.
_HEAD, _LARGEST = 1 << 19, 1 << 25
_PIECE = 1 << 20
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


@dataclass(frozen=True, eq=False)
class Diff:
    """All that two files differ in.

    Attributes:
        left, right: the files.
        original: the float file, None when none was given.
        tensors: weights that are in both, quantized in at least one, in file order.
        left_only, right_only: quantized weights without a partner.
        without_original: matched weights that the float file lacks, or holds quantized.
        traces: what each side's codes and scales show of themselves; without the float file.
        modules: the module of weights of the left file whose names do not tell it.
        agreed: the rules of the catalogue that the weights of each form have in common, a side.
    """

    left: Artefact
    right: Artefact
    original: Artefact | None
    tensors: tuple[TensorDiff, ...]
    left_only: tuple[StoredTensor, ...]
    right_only: tuple[StoredTensor, ...]
    without_original: tuple[str, ...]
    traces: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    modules: Mapping[str, str] = field(default_factory=dict)
    agreed: tuple[Mapping[Form, Agreement], Mapping[Form, Agreement]] = ({}, {})

    def called(self, tensor: TensorDiff) -> str:
        """Return what a reader knows a weight as: its module, where its name is an exporter's."""
        return self.modules.get(tensor.match.left.name, tensor.match.left.name)


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
        raise NothingQuantized(
            "neither file holds a quantized weight",
            where=where,
            todo="name at least one quantized file",
        )
    sampler = Sampler()
    sides = align(ours, theirs, sampler)
    kept = [m for m in sides.matches if m.left.layout.is_quantized or _is_quantized(m.right)]
    if not kept:
        raise ModelsDiffer(
            "no weight of one file is a weight of the other",
            where=f"{left.path} and {right.path}",
            todo="name two results of the same model",
        )
    originals = _originals(kept, original, sampler)
    pairs = [(match, originals.get(match.left.name)) for match in kept]
    if sum(match.left.elements for match in kept) <= _FULL:
        heard = tensors = _all_of_each(pairs, progress)
    else:
        tensors = _samples_first(pairs, sampler, progress)
        heard = [tensor for tensor in tensors if tensor.left is not None]
    agreed = names_in_common(_witnesses(heard, 0)), names_in_common(_witnesses(heard, 1))
    missing = tuple(m.left.name for m in kept if original and m.left.name not in originals)
    shown = ((), ()) if original is not None else (_traces(tensors, 0), _traces(tensors, 1))
    over, modules = _left_over(sides), module_paths(left)
    return Diff(left, right, original, tuple(tensors), *over, missing, shown, modules, agreed)


def _traces(tensors: list[TensorDiff], side: int) -> tuple[str, ...]:
    """Return what the first quantized weights of a side show, each sentence once."""
    stored = [t.match.left if side == 0 else t.match.right[0] for t in tensors]
    quantized = [tensor for tensor in stored if tensor.layout.is_quantized]
    said = dict.fromkeys(find_traces(tensor).sentence() for tensor in quantized[:_TRACED])
    return tuple(words for words in said if words)


_Progress = Callable[[int, int], None] | None
_Pairs = list[tuple[Match, Match | None]]


def _all_of_each(pairs: _Pairs, progress: _Progress) -> list[TensorDiff]:
    """Compare every number, and search the rules of the first weights of each pair of schemes.

    Those that differ go first: they hold what shows in what.
    """
    tensors = []
    for place, (match, original) in enumerate(pairs):
        tensors.append(_compare(match, original))
        if progress is not None:
            progress(place + 1, len(pairs))
    searched: dict[tuple[Form, ...], int] = {}
    for place in sorted(range(len(tensors)), key=lambda k: tensors[k].distance == 0):
        match, original = pairs[place]
        key = tensors[place].forms
        if original is not None and searched.get(key, 0) < _SEARCHED:
            tensors[place] = _searched(tensors[place], *fit_match(match, original.load_right()))
            searched[key] = searched.get(key, 0) + 1
    return tensors


def _samples_first(pairs: _Pairs, sampler: Sampler, progress: _Progress) -> list[TensorDiff]:
    """Compare a sample of every weight, then search the rules where most differs.

    Rules are searched on the first rows alone, where a block of scales lies within them.
    """
    tensors = []
    for place, (match, original) in enumerate(pairs):
        tensors.append(_sampled(match, original, sampler))
        if progress is not None:
            progress(place + 1, len(pairs))
    searched: dict[tuple[Form, ...], int] = {}
    for place in sorted(range(len(tensors)), key=lambda k: -_change(tensors[k])):
        match, original = pairs[place]
        key = tensors[place].forms
        if original is None or searched.get(key, 0) >= _SEARCHED:
            continue
        searched[key] = searched.get(key, 0) + 1
        heads = _heads(match, original)
        if heads is not None:
            tensors[place] = _searched(tensors[place], *fit_match(heads[0], heads[1].load_right()))
        elif match.left.elements <= _LARGEST:
            tensors[place] = _searched(tensors[place], *fit_match(match, original.load_right()))
    return tensors


def _witnesses(tensors: Iterable[TensorDiff], side: int) -> Iterator[Witness]:
    """Yield the quantized weights of a side; parts of a fused one are left out."""
    for tensor in tensors:
        if side and len(tensor.match.right) != 1:
            continue
        stored = tensor.match.right[0] if side else tensor.match.left
        if stored.layout.is_quantized:
            fit = tensor.right if side else tensor.left
            yield Witness(stored, fit, partial(_exact, tensor, stored))


def _exact(tensor: TensorDiff, stored: StoredTensor) -> Array | None:
    """Return a weight's float original in the layout of one of its sides."""
    if tensor.original is None:
        return None
    weights = tensor.original.load_right()
    if stored is tensor.match.left:
        return weights
    return turned(weights, stored.shape, tensor.match)


def _change(tensor: TensorDiff) -> float:
    if tensor.left_error is None or tensor.right_error is None:
        return tensor.distance
    return abs(tensor.left_error - tensor.right_error)


def _searched(tensor: TensorDiff, one: Fit | None, other: Fit | None) -> TensorDiff:
    fields = tensor.fields
    if one is not None and other is not None:
        with np.errstate(all="ignore"):
            fields = differences(one, other, shared_scales(tensor.match))
    return replace(tensor, left=one, right=other, fields=fields)


def _heads(match: Match, original: Match) -> tuple[Match, Match] | None:
    """Return the first rows of three tensors that lie alike; None where that can't be read."""
    if not (match.arrangement.is_plain and original.arrangement.is_plain):
        return None
    if len(match.right) != 1 or len(original.right) != 1:
        return None
    tensors = (match.left, match.right[0], original.right[0])
    if len(match.left.shape) != 2 or any(tensor.walk_axis for tensor in tensors):
        return None
    rows, columns = match.left.shape
    step = lcm(*(tensor.walk_step for tensor in tensors))
    count = min(rows, -(-_HEAD // columns // step) * step)
    blocks = [t.layout.block for t in tensors if t.layout.block is not None]
    if any(block[0] > 1 and count % block[0] for block in blocks):
        return None
    left, right, exact = (replace(t, shape=(count, columns)) for t in tensors)
    return Match(left, (right,), PLAIN, ""), Match(left, (exact,), PLAIN, "")


def _weights(artefact: Artefact) -> tuple[StoredTensor, ...]:
    """Return what may be a weight: biases in int32 follow from scales and are not compared."""
    return tuple(
        tensor
        for tensor in artefact.tensors
        if tensor.elements > 1 and tensor.layout.number_format not in _WIDE
    )


def _is_quantized(tensors: tuple[StoredTensor, ...]) -> bool:
    return any(tensor.layout.is_quantized for tensor in tensors)


def _originals(kept: list[Match], original: Artefact | None, sampler: Sampler) -> dict[str, Match]:
    if original is None:
        return {}
    # The larger first: their content says most, and small ones take what is left.
    wanted = sorted((match.left for match in kept), key=lambda t: -t.elements)
    # What is quantized there too is no original: no rule can be found beside it.
    exact = tuple(tensor for tensor in _weights(original) if not tensor.layout.is_quantized)
    found = align(tuple(wanted), exact, sampler)
    return {match.left.name: match for match in found.matches}


def _left_over(sides: Alignment) -> tuple[tuple[StoredTensor, ...], tuple[StoredTensor, ...]]:
    only = [
        tuple(tensor for tensor in side if tensor.layout.is_quantized)
        for side in (sides.left_over, sides.right_over)
    ]
    return only[0], only[1]


def _compare(match: Match, original: Match | None) -> TensorDiff:
    """Compare every number of a weight."""
    with np.errstate(all="ignore"):
        one = block_of(match.left.load())
        other = arranged([block_of(part.load()) for part in match.right], match.arrangement)
        weights = None if original is None else original.load_right()
    return _measured(match, original, (one, other), weights, None)


def _sampled(match: Match, original: Match | None, sampler: Sampler) -> TensorDiff:
    """Compare some numbers of a weight."""
    sides = [(match.right, match.arrangement)]
    if original is not None:
        sides.append((original.right, original.arrangement))
    crossed = any(sampler.crosses(match.left, parts, way) for parts, way in sides)
    found = [sampler.pair(match.left, parts, way, crossed=crossed) for parts, way in sides]
    if found[0] is None:
        return _compare(match, original)
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
    sides = (match.left.layout.is_quantized, _is_quantized(match.right))
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


def fit_match(match: Match, weights: Array) -> tuple[Fit | None, Fit | None]:
    """Search the rules of both sides; None for a side that no rule can be searched of.

    Args:
        match: the two tensors.
        weights: their float original in the left one's layout.
    """
    with np.errstate(all="ignore"):  # scales of zero, weights of NaN: compared, not judged
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
