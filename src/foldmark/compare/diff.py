"""Two quantized files of one model: which rule differs, tensor by tensor and in all.

With the float model each side's rule is searched, on two weights of each pair of schemes. Files
of billions of weights are sampled first, and searched where most differs. Without it the two
sides are compared with each other, and each shows what its codes and scales alone betray.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from foldmark.compare.activation_diff import ActivationDiff, compare_activations
from foldmark.compare.agreement import Agreement, Form, Witness, names_in_common
from foldmark.compare.align import Alignment, Match, align
from foldmark.compare.modules import module_paths
from foldmark.compare.sampling import Sampler
from foldmark.compare.searching import search_heads, search_whole, turned
from foldmark.compare.tensor_diff import TensorDiff, compare_all, compare_some
from foldmark.compare.traces import find_traces
from foldmark.errors import ModelsDiffer, NothingQuantized
from foldmark.formats.stored import Artefact, StoredTensor
from foldmark.formats.values import Array

__all__ = ["Diff", "diff_artefacts"]

# Of files up to so many weights every number is compared; of larger ones a sample of each weight.
_FULL = 1 << 26
# Without the float model so many weights are asked what their own codes show.
_TRACED = 4
_WIDE = ("int32", "int64", "uint32")


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
        activations: what is quantized beside weights, by the scales that the files store.
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
    activations: ActivationDiff = field(default_factory=ActivationDiff)

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
        heard = tensors = search_whole(_compared(pairs, compare_all, progress))
    else:
        some = partial(compare_some, sampler=sampler)
        tensors = search_heads(_compared(pairs, some, progress))
        heard = [tensor for tensor in tensors if tensor.left is not None]
    agreed = names_in_common(_witnesses(heard, 0)), names_in_common(_witnesses(heard, 1))
    missing = tuple(m.left.name for m in kept if original and m.left.name not in originals)
    shown = ((), ()) if original is not None else (_traces(tensors, 0), _traces(tensors, 1))
    return Diff(
        left,
        right,
        original,
        tuple(tensors),
        *_left_over(sides),
        missing,
        shown,
        module_paths(left),
        agreed,
        compare_activations(left, right),
    )


def _traces(tensors: list[TensorDiff], side: int) -> tuple[str, ...]:
    """Return what the first quantized weights of a side show, each sentence once."""
    stored = [t.match.left if side == 0 else t.match.right[0] for t in tensors]
    quantized = [tensor for tensor in stored if tensor.layout.is_quantized]
    said = dict.fromkeys(find_traces(tensor).sentence() for tensor in quantized[:_TRACED])
    return tuple(words for words in said if words)


def _compared(
    pairs: Sequence[tuple[Match, Match | None]],
    compare: Callable[[Match, Match | None], TensorDiff],
    progress: Callable[[int, int], None] | None,
) -> list[TensorDiff]:
    """Compare each weight, told how far it is."""
    tensors = []
    for place, (match, original) in enumerate(pairs):
        tensors.append(compare(match, original))
        if progress is not None:
            progress(place + 1, len(pairs))
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
