"""From a comparison to weights that can be mixed: each side's numbers beside the float ones."""

from dataclasses import replace

import numpy as np

from foldmark.compare.decisions import Whole, closest_rules
from foldmark.compare.diff import Diff
from foldmark.compare.fit import Fit
from foldmark.compare.mixing import Made, Mixture, explains, rules_of
from foldmark.compare.observed import codes_format
from foldmark.compare.residuals import Suspect
from foldmark.compare.searching import fit_match, turned
from foldmark.compare.tensor_diff import TensorDiff
from foldmark.formats.stored import StoredTensor
from foldmark.formats.values import Array, Values

__all__ = ["find_mixtures"]

_Key = tuple[object, ...]


def find_mixtures(diff: Diff) -> tuple[Mixture, ...]:
    """Return every weight that both files hold and the float model too, in the float layout.

    The rules found on the weights that were searched are tried on the others first; where they
    don't give every number, the weight is searched itself.
    """
    known: dict[_Key, tuple[Whole, Whole]] = {}
    found = []
    for tensor in sorted(diff.tensors, key=lambda t: t.left is None or t.right is None):
        mixture = _mixture(tensor, known)
        if mixture is not None:
            found.append(mixture)
    return tuple(found)


def _mixture(tensor: TensorDiff, known: dict[_Key, tuple[Whole, Whole]]) -> Mixture | None:
    match, original = tensor.match, tensor.original
    if original is None or len(original.right) != 1:
        return None
    exact = original.right[0].load().dequantize()
    left = match.left.load().dequantize()
    sides = [turned(a, exact.shape, original) for a in (left, match.load_right())]
    if sides[0] is None or sides[1] is None:
        return None
    mades = [Made(np.asarray(numbers, np.float32)) for numbers in sides]
    stored = (match.left, match.right[0])
    if all(t.layout.is_quantized for t in stored) and len(match.right) == 1:
        mades = [
            _made(t, made.numbers, _orientation(tensor, place, exact.shape))
            for place, (t, made) in enumerate(zip(stored, mades, strict=True))
        ]
        mades = _explained(tensor, mades, exact, known)
    elif any(t.layout.is_quantized for t in stored):
        # One side left it in float: a block marks the other as quantized.
        mades = [
            replace(made, block=made.numbers.shape) if t.layout.is_quantized else made
            for t, made in zip(stored, mades, strict=True)
        ]
    return Mixture(original.right[0].name, exact, mades[0], mades[1])


def _orientation(tensor: TensorDiff, place: int, shape: tuple[int, ...]) -> int | None:
    """Return 0 when a side lies as the float weight does, 1 when transposed, None otherwise."""
    match, original = tensor.match, tensor.original
    assert original is not None
    own = match.left if place == 0 else match.right[0]
    places = np.arange(own.elements).reshape(own.shape)
    there = turned(places if place == 0 else match.arrange(places), shape, original)
    if there is None:
        return None
    if np.array_equal(there, places):
        return 0
    return 1 if np.array_equal(there, places.T) else None


def _made(tensor: StoredTensor, numbers: Array, orientation: int | None) -> Made:
    values, layout = tensor.load(), tensor.layout
    plain = values.group is None and values.codebook is None and values.scale is not None
    if orientation is None or not plain or values.codes.dtype.kind not in "iu":
        return Made(numbers, numbers.shape)
    block = tuple(min(b, max(1, n)) for b, n in zip(values.block or (), tensor.shape, strict=True))
    scale, zero = values.scale, _zero_point(values)
    if orientation:
        block = block[::-1]
        scale = None if scale is None else scale.T
        zero = None if zero is None else zero.T
    return Made(numbers, block, scale, zero, codes_format(layout.number_format))


def _zero_point(values: Values) -> Array | None:
    if values.offset is not None:
        return values.offset
    return values.zero_point


def _explained(
    tensor: TensorDiff, mades: list[Made], exact: Array, known: dict[_Key, tuple[Whole, Whole]]
) -> list[Made]:
    """Add to each side the rules that explain it."""
    stored = (tensor.match.left, tensor.match.right[0])
    key = tuple((t.layout.packing, t.layout.number_format) for t in stored)
    fits = (tensor.left, tensor.right)
    pair = known.get(key)
    if None in fits and pair is not None and all(map(explains, mades, (exact, exact), pair)):
        return [replace(made, whole=(rule,)) for made, rule in zip(mades, pair, strict=True)]
    if None in fits and tensor.original is not None:
        fits = fit_match(tensor.match, tensor.original.load_right())
    found = [
        replace(made, whole=rules_of(fit), method=_method(fit))
        for made, fit in zip(mades, fits, strict=True)
    ]
    pair = closest_rules(found[0].whole, found[1].whole)
    if pair is not None:
        known.setdefault(key, pair)
    return found


def _method(fit: Fit | None) -> str:
    if fit is None or fit.residuals is None or fit.residuals.suspect is Suspect.NEAREST:
        return ""
    return fit.residuals.suspect.value.split(":")[0]
