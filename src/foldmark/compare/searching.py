"""Which weights have their rules searched, and the search itself beside the float weights.

Two of each pair of schemes, those that differ most first: they hold what shows in what.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import lcm

import numpy as np

from foldmark.compare.agreement import Form
from foldmark.compare.align import Match
from foldmark.compare.arrangement import PLAIN
from foldmark.compare.blocks import shared_scales
from foldmark.compare.difference import differences
from foldmark.compare.fit import Fit, fit_tensor
from foldmark.compare.tensor_diff import TensorDiff
from foldmark.formats.values import Array

__all__ = ["fit_match", "search_heads", "search_whole", "turned"]

# Tensors searched for each pair of schemes; the rest is compared number by number.
_SEARCHED = 2
# Of a sampled weight rules are searched on about so many numbers, or on the whole of it where it
# has at most so many.
_HEAD, _LARGEST = 1 << 19, 1 << 25


def search_whole(tensors: Sequence[TensorDiff]) -> list[TensorDiff]:
    """Search the rules of whole weights, those that differ first.

    Args:
        tensors: compared in every number.
    """
    found = list(tensors)
    for place in _chosen(tensors, lambda tensor: float(tensor.distance == 0)):
        found[place] = _searched_whole(tensors[place])
    return found


def search_heads(tensors: Sequence[TensorDiff]) -> list[TensorDiff]:
    """Search the rules of weights where most differs, on the first rows alone.

    A weight whose blocks of scales do not lie within its first rows is searched whole, where it is
    not too large.

    Args:
        tensors: compared in a sample of their numbers.
    """
    found = list(tensors)
    for place in _chosen(tensors, lambda tensor: -_change(tensor)):
        tensor = tensors[place]
        assert tensor.original is not None
        heads = _heads(tensor.match, tensor.original)
        if heads is not None:
            found[place] = _searched(tensor, *fit_match(heads[0], heads[1].load_right()))
        elif tensor.match.left.elements <= _LARGEST:
            found[place] = _searched_whole(tensor)
    return found


def _chosen(tensors: Sequence[TensorDiff], order: Callable[[TensorDiff], float]) -> Iterator[int]:
    """Yield the places of the first weights of each pair of schemes that have a float original."""
    searched: Counter[tuple[Form, ...]] = Counter()
    for place in sorted(range(len(tensors)), key=lambda k: order(tensors[k])):
        key = tensors[place].forms
        if tensors[place].original is not None and searched[key] < _SEARCHED:
            searched[key] += 1
            yield place


def _searched_whole(tensor: TensorDiff) -> TensorDiff:
    assert tensor.original is not None
    return _searched(tensor, *fit_match(tensor.match, tensor.original.load_right()))


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
