"""What made codes that no rule of range and rounding makes: told by their residuals.

With t = w / scale + zero point, rounding to nearest leaves |code - t| <= 1/2 everywhere. What
leaves more, and how, betrays the method.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np

from foldmark.compare.extremes import block_extremes
from foldmark.formats.values import Array, Values

__all__ = ["Residuals", "Suspect", "find_residuals"]


class Suspect(Enum):
    """What kind of method left these residuals."""

    NEAREST = "rounding to nearest"
    LEARNED_ROUNDING = "learned rounding, as in AdaRound: up or down, not always the nearest"
    ERROR_FEEDBACK = "error feedback, as in GPTQ: later columns make up for earlier ones"
    SCALED_CHANNELS = "channels scaled before quantization, as in SmoothQuant and AWQ"
    ROTATION = "a rotation, or another order, before quantization"
    ONE_PLACE = "the same rule everywhere but in one place"
    OTHER_WEIGHTS = "other weights than these"
    UNKNOWN = "something else"


@dataclass(frozen=True)
class Residuals:
    """How codes lie to the weights.

    Attributes:
        suspect: the kind of method.
        sentence: what was seen, in numbers.
        nearest: share of codes that are the nearest ones.
        neighbours: share of codes that are the floor or the ceiling.
        place: row or column that alone is at fault, with its axis; None otherwise.
    """

    suspect: Suspect
    sentence: str
    nearest: float
    neighbours: float
    place: tuple[int, int] | None = None


# Half a step, and what float32 arithmetic may add to it.
_HALF = 0.5 + 1e-3
_FEW = 1e-3
# A matrix is rotated, not changed, when its rows keep their lengths this well.
_KEPT = 0.1


def find_residuals(values: Values, weights: Array, lowest: int, highest: int) -> Residuals:
    """Look at the whole tensor's residuals.

    Args:
        values: codes, scales and zero points.
        weights: float weights of the codes' shape.
        lowest, highest: the ends of the codes; beyond them a residual says nothing.
    """
    with np.errstate(all="ignore"):
        wanted = _wanted(values, weights)
    inside = np.isfinite(wanted) & (wanted > lowest - 0.5) & (wanted < highest + 0.5)
    inside &= ~_saturated(values, wanted)
    distance = np.where(inside, np.abs(values.codes - wanted), 0.0)
    nearest = float((distance <= _HALF).mean())
    neighbours = float((distance < 1 + 1e-3).mean())
    if nearest == 1.0:
        return Residuals(Suspect.NEAREST, "every code is the nearest one", nearest, neighbours)
    numbers = values.dequantize()
    seen = _Seen(distance, numbers, weights.astype(np.float32), (nearest, neighbours))
    looks = (_one_place, _feedback, _scaled, _rotated)
    return next((found for look in looks if (found := look(seen)) is not None), _unlike(seen))


def _wanted(values: Values, weights: Array) -> Array:
    """Return t, float64."""
    assert values.scale is not None
    scale = values.spread(values.scale.astype(np.float64))
    numbers = weights.astype(np.float64)
    if values.offset is not None:
        return np.asarray((numbers - values.spread(values.offset.astype(np.float64))) / scale)
    if values.zero_point is None:
        return np.asarray(numbers / scale)
    return np.asarray(numbers / scale + values.spread(values.zero_point.astype(np.float64)))


def _saturated(values: Values, wanted: Array) -> Array:
    """Find weights beyond the end that their block's range was cut to."""
    if values.group is not None or values.block is None:
        return np.zeros(wanted.shape, bool)
    codes = values.codes.astype(np.int32)
    block = tuple(min(b, max(1, n)) for b, n in zip(values.block, codes.shape, strict=True))
    low, high = (values.spread(end) for end in block_extremes(codes, block))
    return ((codes == high) & (wanted > high)) | ((codes == low) & (wanted < low))


@dataclass(frozen=True, eq=False)
class _Seen:
    """What the looks look at: |code - t|, the dequantized numbers, the weights, the shares."""

    distance: Array
    numbers: Array
    weights: Array
    shares: tuple[float, float]


def _one_place(seen: _Seen) -> Residuals | None:
    """Find a single row or column that holds all codes that are not the nearest."""
    wrong, shares = seen.distance > _HALF, seen.shares
    if wrong.ndim != 2 or min(wrong.shape) < 4:
        return None
    for axis in (0, 1):
        at = np.flatnonzero(wrong.any(axis=1 - axis))
        if len(at) == 1:
            line = wrong[at[0]] if axis == 0 else wrong[:, at[0]]
            name = ("row", "column")[axis]
            sentence = (
                f"only {name} {at[0]} holds codes that are not the nearest, {line.mean():.0%} of it"
            )
            return Residuals(Suspect.ONE_PLACE, sentence, *shares, (axis, int(at[0])))
    return None


def _feedback(seen: _Seen) -> Residuals | None:
    """Tell error feedback (first columns nearest, later ones ever less) from learned rounding."""
    distance, numbers, weights, shares = seen.distance, seen.numbers, seen.weights, seen.shares
    error = float(np.mean((numbers - weights) ** 2) / max(float(np.mean(weights**2)), 1e-30))
    if error > 0.25:
        return None
    if distance.max() < 1 + 1e-3:
        sentence = (
            f"all codes are the floor or the ceiling, {1 - shares[0]:.1%} of them not the nearest"
        )
        return Residuals(Suspect.LEARNED_ROUNDING, sentence, *shares)
    if distance.ndim != 2:
        return None
    for axis in (1, 0):
        exact = (distance <= _HALF).mean(axis=1 - axis)
        # In the order of processing the first column is rounded to nearest, the last carries
        # all earlier errors; an order by activation mixes the columns but not their shares.
        ordered = np.sort(exact)[::-1]
        spread = ordered[0] - np.median(ordered)
        if ordered[0] >= 1 - _FEW and spread > 0.02 and (exact >= 1 - _FEW).mean() < 0.1:
            name = ("row", "column")[axis]
            sentence = (
                f"{int((exact >= 1 - _FEW).sum())} {name}s hold nearest codes only, the middle "
                f"{name} {np.median(exact):.0%}; {1 - shares[1]:.1%} of codes are farther than "
                "floor and ceiling"
            )
            return Residuals(Suspect.ERROR_FEEDBACK, sentence, *shares)
    return None


def _scaled(seen: _Seen) -> Residuals | None:
    """Find factors of columns or rows that explain most of the difference."""
    numbers, weights, shares = seen.numbers, seen.weights, seen.shares
    if weights.ndim != 2:
        return None
    before = float(((numbers - weights) ** 2).sum())
    for axis in (1, 0):
        square = (weights**2).sum(axis=1 - axis)
        factor = (numbers * weights).sum(axis=1 - axis) / np.where(square == 0, 1, square)
        scaled = weights * (factor if axis == 1 else factor[:, None])
        after = float(((numbers - scaled) ** 2).sum())
        if after < before / 4 and float(np.std(factor)) > 0.01:
            low, high = np.quantile(factor, [0.01, 0.99])
            name = ("rows", "columns")[axis]
            sentence = (
                f"{name} are scaled by factors from {low:.3g} to {high:.3g}, which explains "
                f"{1 - after / before:.1%} of the difference to the float weights"
            )
            return Residuals(Suspect.SCALED_CHANNELS, sentence, *shares)
    return None


def _rotated(seen: _Seen) -> Residuals | None:
    """Find unlike elements with alike lengths and inner products."""
    numbers, weights, shares = seen.numbers, seen.weights, seen.shares
    if weights.ndim != 2 or min(weights.shape) < 8:
        return None
    alike = float(np.mean((numbers - weights) ** 2) / max(float(np.mean(weights**2)), 1e-30))
    if alike < 0.5:
        return None
    for axis, name in ((1, "inputs"), (0, "outputs")):
        one, other = (
            np.moveaxis(m, 1 - axis, 0)[:64].astype(np.float64) for m in (numbers, weights)
        )
        products, expected = one @ one.T, other @ other.T
        if np.linalg.norm(products - expected) < _KEPT * np.linalg.norm(expected):
            sentence = f"elements differ, inner products agree: turned along its {name}"
            return Residuals(Suspect.ROTATION, sentence, *shares)
    return None


def _unlike(seen: _Seen) -> Residuals:
    numbers, weights, shares = seen.numbers, seen.weights, seen.shares
    one, other = numbers.reshape(-1).astype(np.float64), weights.reshape(-1).astype(np.float64)
    scale = np.linalg.norm(one) * np.linalg.norm(other)
    cosine = float(one @ other / scale) if scale else 0.0
    if cosine < 0.7:
        sentence = f"the cosine to the float weights is {cosine:.3f}"
        return Residuals(Suspect.OTHER_WEIGHTS, sentence, *shares)
    sentence = f"{shares[0]:.2%} of codes are the nearest, {shares[1]:.2%} floor or ceiling"
    return Residuals(Suspect.UNKNOWN, sentence, *shares)
