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
from foldmark.kernels.compiled import compiled

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
    first, second = np.zeros_like(V), np.zeros_like(V)
    E = np.empty_like(V)
    rows = (-1, V.shape[-1])
    flat = [each.reshape(rows) for each in (V, base, width, step, own, first, second, E)]
    v, low, span, size, alone, m, n, error = flat
    for each in range(annealing.steps):
        _errors(v, low, span, size, error)
        slope = (E @ H).reshape(rows)
        rates, beta = _rates(each, annealing.rate), annealing.beta(each)
        _adam(v, slope, span, size, alone, m, n, rates, beta, annealing.weight)
    return rectified_sigmoid(V)


def _rates(step: int, rate: float) -> tuple[float, float]:
    """Return Adam's rate with its two corrections for the beginning folded in."""
    early, late = (1 - moment ** (step + 1) for moment in _MOMENTS)
    return float(np.float32(rate / early)), float(np.float32(1 / late))


@compiled
def _errors(V: Floats, base: Floats, width: Floats, step: Floats, E: Floats) -> None:
    """Fill E with the weight's error, in the unit of the search."""
    one = np.float32(1)
    for row in range(V.shape[0]):
        for j in range(V.shape[1]):
            h = np.float32(1.2) / (one + np.exp(-V[row, j])) - np.float32(0.1)
            h = min(max(h, np.float32(0)), one)
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
    beta: float,
    weight: float,
) -> None:
    """Move V one step down the gradient of the whole objective; `slope` is E H."""
    one, two = np.float32(1), np.float32(2)
    rate, late = np.float32(rates[0]), np.float32(rates[1])
    keep, square = np.float32(0.9), np.float32(0.999)
    power, strength = np.float32(beta - 1), np.float32(2 * beta * weight)
    for row in range(V.shape[0]):
        for j in range(V.shape[1]):
            sigmoid = one / (one + np.exp(-V[row, j]))
            h = np.float32(1.2) * sigmoid - np.float32(0.1)
            gradient = np.float32(0)
            if np.float32(0) < h < one:  # the rectifier passes nothing outside
                gradient = slope[row, j] * width[row, j] * step[row, j]
                centred = two * h - one
                push = strength * own[row, j] * abs(centred) ** power
                gradient -= push if centred > 0 else -push
                gradient *= np.float32(1.2) * sigmoid * (one - sigmoid)
            first[row, j] = keep * first[row, j] + (one - keep) * gradient
            second[row, j] = square * second[row, j] + (one - square) * gradient * gradient
            V[row, j] -= rate * first[row, j] / (np.sqrt(second[row, j] * late) + np.float32(1e-8))
