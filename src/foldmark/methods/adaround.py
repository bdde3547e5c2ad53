"""AdaRound: learn for each weight whether to round it up or down, from what its layer reads.

Nagel et al. 2020, "Up or Down? Adaptive Rounding for Post-Training Quantization"
(arXiv 2004.10568), in the paper's letters:

    min over V of  || W X - W~ X ||^2 + lambda f_reg(V)
    W~     = s clip(floor(W / s) + h(V), n, p)
    h(V)   = clip(sigmoid(V) (zeta - gamma) + gamma, 0, 1)        the rectified sigmoid
    f_reg  = sum over elements of 1 - |2 h(V) - 1|^beta           beta annealed, drives h to 0 or 1

The layer's output enters through H = 2 X^T X / tokens alone, since the error of a row e = w~ - w
is e H e^T / 2 per token: a step costs one product with H, however many tokens there were.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import BadInput, NonFiniteValue
from foldmark.kernels.compiled import compiled, inlined
from foldmark.kernels.threads import each as on_all_cores

__all__ = [
    "Annealing",
    "Rounding",
    "adaround",
    "output_error",
    "rectified_sigmoid",
    "regularizer",
]

Floats = NDArray[np.floating]
ZETA, GAMMA = 1.1, -0.1
_MOMENTS = (0.9, 0.999)  # of Adam
_LITTLE = 1e-8  # added to the root of Adam's second moment
_PIECE = 1 << 15  # elements that a thread takes at a time


@dataclass(frozen=True)
class Annealing:
    """How the search goes.

    Attributes:
        steps: of Adam, each over all inputs at once.
        rate: Adam's learning rate.
        weight: lambda. An element's f_reg is counted in the error that one step of its code
            would make alone, s^2 H_jj / 2: no unit of the layer's enters, and an input a hundred
            times smaller than its neighbours is not rounded by f_reg alone.
        first, last: beta at start and end, along half a cosine.

    The paper leaves f_reg out of the first steps. Here V starts where W~ = W, and W is compared
    on the inputs that it really has: without f_reg there is nothing to move.
    """

    steps: int = 400
    rate: float = 0.02
    weight: float = 0.1
    first: float = 20.0
    last: float = 2.0

    def beta(self, step: int) -> float:
        """Return beta at a step."""
        done = step / self.steps
        return float(self.last + (self.first - self.last) * (1 + np.cos(np.pi * done)) / 2)


@dataclass(frozen=True)
class Rounding:
    """What AdaRound made of a weight.

    Attributes:
        codes: (..., out, in)  floor(W / s) or one more, inside n..p; without a zero point.
        error: summed over rows, the mean squared output error of these codes.
        nearest_error: of rounding to nearest.
        moved: weights whose code is not the nearest.
        kept: rows that stay rounded to nearest, because the search found nothing better.
    """

    codes: NDArray[np.int64]
    error: float
    nearest_error: float
    moved: int
    kept: int


def rectified_sigmoid(V: Floats) -> Floats:
    """Return h(V), in 0..1."""
    return np.clip((ZETA - GAMMA) / (1 + np.exp(-V)) + GAMMA, 0, 1)


def regularizer(V: Floats, beta: float) -> float:
    """Return f_reg(V): 0 when every h is 0 or 1."""
    return float((1 - np.abs(2 * rectified_sigmoid(V) - 1) ** beta).sum())


def output_error(E: Floats, H: Floats) -> NDArray[np.float64]:
    """Return each row's mean squared output error e H e^T / 2.

    E  (..., out, in)  error of the weight
    H  (..., in, in)   2 X^T X / tokens
    """
    E = np.asarray(E, np.float64)
    return np.asarray(((E @ H) * E).sum(-1) / 2)


def adaround(
    W: Floats,
    H: Floats,
    scale: Floats,
    ends: tuple[Floats | int, Floats | int],
    annealing: Annealing | None = None,
) -> Rounding:
    """Choose between floor and ceiling for every weight, with the least output error.

    Args:
        W: (..., out, in)  the weight; leading axes are the groups of a convolution.
        H: (..., in, in)  2 X^T X / tokens of its inputs.
        scale: broadcasts to W; s > 0.
        ends: n and p, the lowest and highest code, zero point taken away; each broadcasts to W.
        annealing: how the search goes.

    Rows are independent, so a row in which the search ends worse than nearest keeps nearest:
    the output error is never above that of rounding to nearest.

    Raises:
        NonFiniteValue: W or H holds NaN or infinity.
        BadInput: H does not fit W.
    """
    side = W.shape[-1]
    if H.shape != (*W.shape[:-2], side, side):
        raise BadInput("H does not fit the weight", got=str(H.shape), expected=f"side {side}")
    for name, array in (("W", W), ("H", H)):
        if not np.isfinite(array).all():
            raise NonFiniteValue(f"{name} is not finite", where="adaround")
    s = np.broadcast_to(np.where(scale == 0, 1, scale), W.shape).astype(np.float64)
    x = W / s
    low, high = (np.clip(np.floor(x) + up, *ends) for up in (0, 1))
    nearest = np.clip(np.rint(x), *ends)
    h = _search(x, s, low, high, H, annealing or Annealing())
    found = np.where(h >= 0.5, high, low)
    errors = output_error((found - x) * s, H)
    plain = output_error((nearest - x) * s, H)
    kept = ~(errors < plain)
    codes = np.where(kept[..., None], nearest, found)
    return Rounding(
        codes.astype(np.int64),
        float(np.where(kept, plain, errors).sum()),
        float(plain.sum()),
        int((codes != nearest).sum()),
        int(kept.sum()),
    )


def _search(  # noqa: PLR0917  (the letters of one equation)
    x: Floats, s: Floats, low: Floats, high: Floats, H: Floats, annealing: Annealing
) -> Floats:
    """Return h(V) after Adam's steps, in float32 throughout."""
    diagonal = np.diagonal(H, axis1=-2, axis2=-1)[..., None, :]
    unit = np.sqrt(np.maximum((s**2 * diagonal).mean(-1, keepdims=True), 1e-30))
    step = np.ascontiguousarray(s / unit, np.float32)  # one code, in the unit of the error
    H = np.ascontiguousarray(H, np.float32)
    base = np.ascontiguousarray(low - x, np.float32)
    width = np.ascontiguousarray(high - low, np.float32)
    rest = np.clip(x - np.floor(x), 1e-4, 1 - 1e-4)
    V = np.ascontiguousarray(-np.log((ZETA - GAMMA) / (rest - GAMMA) - 1), np.float32)
    own = np.ascontiguousarray((s / unit) ** 2 * diagonal, np.float32)
    own = np.maximum(own, np.float32(1e-6))  # an input that is always zero: to nearest
    walk = _Walk(V, base, width, step, own)
    for each in range(annealing.steps):
        slope = walk.errors() @ H
        pushes = _table(_pushes(annealing.beta(each), annealing.weight))
        walk.move(slope, _rates(each, annealing.rate), pushes)
    return rectified_sigmoid(V)


class _Walk:
    """Adam's steps over all rows, which the processor's cores share.

    V       (..., out, in)  changed in place
    base    floor(W / s) - W / s, so that base + h width is the error in codes
    width   1, or 0 where both codes are the same
    step    one code, in the unit of the error
    own     the error that one code would make alone
    """

    def __init__(self, V: Floats, base: Floats, width: Floats, step: Floats, own: Floats) -> None:
        self._shape, side = V.shape, V.shape[-1]
        flat = [each.reshape(-1, side) for each in (V, base, width, step, own)]
        self._V, self._base, self._width, self._step, self._own = flat
        self._first, self._second = np.zeros_like(self._V), np.zeros_like(self._V)
        self._errors = np.empty_like(self._V)
        rows = max(1, _PIECE // max(1, side))
        self._pieces = [slice(at, at + rows) for at in range(0, len(self._V), rows)]
        self._heights = _table(rectified_sigmoid(_PLACES))

    def errors(self) -> Floats:
        """Return the weight's error (..., out, in), in the unit of the search."""

        def fill(rows: slice) -> None:
            V, base, width, step, E = (
                each[rows] for each in (self._V, self._base, self._width, self._step, self._errors)
            )
            _fill(V, base, width, step, self._heights, E)

        on_all_cores(fill, self._pieces)
        return self._errors.reshape(self._shape)

    def move(self, slope: Floats, rates: tuple[float, float], pushes: Floats) -> None:
        """Move V down the gradient; slope (..., out, in) is E H."""
        flat = slope.reshape(self._V.shape)

        def walk(rows: slice) -> None:
            V, slope, width, step, own, first, second = (
                each[rows]
                for each in (
                    self._V,
                    flat,
                    self._width,
                    self._step,
                    self._own,
                    self._first,
                    self._second,
                )
            )
            _adam(V, slope, width, step, own, first, second, rates, _SLOPES, pushes)

        on_all_cores(walk, self._pieces)


def _rates(step: int, rate: float) -> tuple[float, float]:
    """Return Adam's rate with its two corrections for the beginning folded in."""
    early, late = (1 - moment ** (step + 1) for moment in _MOMENTS)
    return float(np.float32(rate / early)), float(np.float32(1 / late))


def _slopes() -> Floats:
    """Return dh/dV at the places of the tables."""
    sigmoid = 1 / (1 + np.exp(-_PLACES))
    return np.asarray((ZETA - GAMMA) * sigmoid * (1 - sigmoid))


def _pushes(beta: float, weight: float) -> Floats:
    """Return by how much lambda f_reg falls with V, at the places of the tables."""
    centred = 2 * rectified_sigmoid(_PLACES) - 1
    slope = 2 * beta * weight * np.sign(centred) * np.abs(centred) ** (beta - 1)
    return np.asarray(slope * _slopes())


def _table(values: Floats) -> NDArray[np.float32]:
    """Return a table of (intervals, 2): the value at an interval's start, and its growth."""
    return np.stack([values[:-1], np.diff(values)], 1).astype(np.float32)


# Inside, h(V) moves; outside it is 0 or 1 and passes no gradient. What depends on V alone is read
# off tables over that stretch, between two places in a straight line: at most 2e-7 off for h.
_END = float(np.log((1 - GAMMA) / -GAMMA))
_INTERVALS = 4096
_PLACES = np.linspace(-_END, _END, _INTERVALS + 1)
_SLOPES = _table(_slopes())


@inlined
def _place(V: np.float32) -> tuple[np.uintp, np.float32, bool]:
    """Return the interval in which V lies, how far along it, and whether V lies inside at all."""
    along = (V + np.float32(_END)) * np.float32(_INTERVALS / (2 * _END))
    inside = bool(np.float32(0) < along < np.float32(_INTERVALS))
    held = min(max(along, np.float32(0)), np.float32(_INTERVALS - 1))
    index = np.int32(held)
    part = min(max(along - np.float32(index), np.float32(0)), np.float32(1))
    return np.uintp(index), part, inside


@compiled
def _fill(  # noqa: PLR0917  (a hot loop's arrays)
    V: Floats, base: Floats, width: Floats, step: Floats, heights: Floats, E: Floats
) -> None:
    """Fill E with the weight's error, in the unit of the search."""
    for row in range(V.shape[0]):
        for j in range(V.shape[1]):
            index, part, _ = _place(V[row, j])
            h = heights[index, 0] + part * heights[index, 1]
            E[row, j] = (base[row, j] + h * width[row, j]) * step[row, j]


@compiled
def _adam(  # noqa: PLR0917  (a hot loop's arrays)
    V: Floats,
    slope: Floats,
    width: Floats,
    step: Floats,
    own: Floats,
    first: Floats,
    second: Floats,
    rates: tuple[float, float],
    slopes: Floats,
    pushes: Floats,
) -> None:
    """Move V one step down the gradient of the whole objective; `slope` is E H."""
    one = np.float32(1)
    rate, late = np.float32(rates[0]), np.float32(rates[1])
    keep, square, little = np.float32(0.9), np.float32(0.999), np.float32(_LITTLE)
    for row in range(V.shape[0]):
        for j in range(V.shape[1]):
            index, part, inside = _place(V[row, j])
            through = slopes[index, 0] + part * slopes[index, 1]
            push = pushes[index, 0] + part * pushes[index, 1]
            gradient = slope[row, j] * width[row, j] * step[row, j] * through - own[row, j] * push
            gradient = gradient if inside else np.float32(0)
            first[row, j] = keep * first[row, j] + (one - keep) * gradient
            second[row, j] = square * second[row, j] + (one - square) * gradient * gradient
            V[row, j] -= rate * first[row, j] / (np.sqrt(second[row, j] * late) + little)
