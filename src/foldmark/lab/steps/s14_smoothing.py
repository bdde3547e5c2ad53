"""Step 14: SmoothQuant: move a channel's width from the activations into the weights."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from random import Random

from foldmark.exact.rulers import relative_error
from foldmark.exact.smoothing import smooth as exact_smooth
from foldmark.exact.smoothing import smoothing_factors as exact_factors
from foldmark.lab import rules
from foldmark.lab.draws import gaussian
from foldmark.lab.exercise import (
    Arguments,
    Function,
    Mistake,
    Number,
    Parameter,
    Place,
    Sentence,
    Step,
)
from foldmark.lab.steps.s04_ruler import CLOSE
from foldmark.lab.steps.s06_rows import Matrix, quantize_per_tensor

_REAL = Number("float", -1e4, 1e4)
_FACTOR = Number("float", 1e-3, 1e3)
# The factors come out of a square root, whose last bit may differ from one way to another.
_LAST_BITS = 1e-12


def smoothing_factors(activations: Matrix, weights: Matrix) -> list[float]:
    """Return sqrt(max|X| / max|W|) for every channel; 1 where either is 0."""
    return exact_factors(activations, weights)


def smooth(activations: Matrix, weights: Matrix, factors: list[float]) -> tuple[Matrix, Matrix]:
    """Return activations divided and weights multiplied by the channels' factors."""
    return exact_smooth(activations, weights, factors)


def smoothed_errors(activations: Matrix, weights: Matrix) -> tuple[float, float]:
    """Return the relative error of X @ W folded per tensor: as it is, and smoothed."""
    right = _product(activations, weights)
    thin, wide = smooth(activations, weights, smoothing_factors(activations, weights))
    before = _product(_unfolded(activations), _unfolded(weights))
    after = _product(_unfolded(thin), _unfolded(wide))
    return relative_error(right, before), relative_error(right, after)


def _product(activations: Matrix, weights: Matrix) -> list[float]:
    """Return X @ W as one list, row after row."""
    columns = list(zip(*weights, strict=True))
    return [_dot(row, column) for row in activations for column in columns]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    products = (Fraction(x) * Fraction(y) for x, y in zip(one, other, strict=True))
    return float(sum(products, Fraction(0)))


def _unfolded(matrix: Matrix) -> Matrix:
    codes, scale = quantize_per_tensor(matrix)
    return [rules.unfold(row, scale) for row in codes]


def _scenes(random: Random) -> Iterator[Arguments]:
    yield ([[8.0, 1.0]], [[0.5], [1.0]])
    yield ([[0.0, 2.0], [0.0, -1.0]], [[1.0], [0.5]])
    yield ([[3.0, 2.0]], [[0.0, 0.0], [0.5, 0.25]])
    for _ in range(18):
        channels = random.choice((2, 2, 3))
        widths = [random.choice((1.0, 1.0, 20.0, 60.0)) for _ in range(channels)]
        activations = [
            [round(random.gauss(0, width), 4) for width in widths]
            for _ in range(random.randint(1, 4))
        ]
        out = random.randint(1, 3)
        yield (activations, [gaussian(random, out) for _ in range(channels)])


def _given(random: Random) -> Iterator[Arguments]:
    for activations, weights in _scenes(random):
        yield (activations, weights, [round(random.uniform(0.2, 9.0), 3) for _ in weights])


def _fair(activations: Matrix, weights: Matrix) -> bool:
    """Say whether a last bit in the factors leaves every code as it is."""
    factors = smoothing_factors(activations, weights)
    results = {
        repr([quantize_per_tensor(part)[0] for part in smooth(activations, weights, moved)])
        for change in (-_LAST_BITS, 0.0, _LAST_BITS)
        for moved in [[factor * (1 + change) for factor in factors]]
    }
    return len(results) == 1


def _whole(activations: Matrix, weights: Matrix, *_: object) -> bool:
    return bool(activations and activations[0] and weights and weights[0])


def _widths(activations: Matrix, weights: Matrix) -> list[tuple[float, float]]:
    return [
        (max(abs(row[j]) for row in activations), max(map(abs, weights[j])))
        for j in range(len(weights))
    ]


def _ratios(activations: Matrix, weights: Matrix) -> list[float]:
    return [a / w if a and w else 1.0 for a, w in _widths(activations, weights)]


def _upside_down(activations: Matrix, weights: Matrix) -> list[float]:
    return [math.sqrt(w / a) if a and w else 1.0 for a, w in _widths(activations, weights)]


def _products(activations: Matrix, weights: Matrix) -> list[float]:
    return [math.sqrt(a * w) if a and w else 1.0 for a, w in _widths(activations, weights)]


def _activations_only(activations: Matrix, weights: Matrix) -> list[float]:
    return [math.sqrt(a) if a and w else 1.0 for a, w in _widths(activations, weights)]


def _one_way(activations: Matrix, weights: Matrix, factors: list[float]) -> tuple[Matrix, Matrix]:
    return smooth(activations, weights, factors)[0], weights


def _other_way(activations: Matrix, weights: Matrix, factors: list[float]) -> tuple[Matrix, Matrix]:
    bigger = [[x * s for x, s in zip(row, factors, strict=True)] for row in activations]
    return bigger, [[w / s for w in row] for row, s in zip(weights, factors, strict=True)]


def _factor_work(arguments: Arguments, place: Place) -> tuple[Sentence, ...]:
    if not place:
        return ()
    wide, narrow = _widths(*arguments)[place[0]]
    result = smoothing_factors(*arguments)[place[0]]
    fields = {"channel": place[0], "wide": wide, "narrow": narrow, "result": result}
    return (Sentence("smoothing_factor", fields),)


def _smooth_work(arguments: Arguments, place: Place) -> tuple[Sentence, ...]:
    activations, weights, factors = arguments
    if len(place) != 3:
        return ()
    side, i, j = place
    if side == 0:
        x, factor = activations[i][j], factors[j]
        return (Sentence("divide", {"x": x, "scale": factor, "quotient": x / factor}),)
    w, factor = weights[i][j], factors[i]
    return (Sentence("unfold", {"code": w, "scale": factor, "value": w * factor}),)


def _errors_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    factors = smoothing_factors(*arguments)
    thin, wide = smooth(arguments[0], arguments[1], factors)
    before, after = smoothed_errors(*arguments)
    fields = {"factors": factors, "activations": thin, "weights": wide}
    return (Sentence("smoothed", {**fields, "before": before, "after": after}),)


_BOTH = (
    Parameter("activations", _REAL, ("samples", "channels")),
    Parameter("weights", _REAL, ("channels", "out")),
)

STEP = Step(
    14,
    "smoothing",
    (
        Function(
            smoothing_factors,
            _BOTH,
            "list[float]",
            _scenes,
            tolerance=CLOSE,
            mistakes=(
                Mistake("root_missing", _ratios),
                Mistake("upside_down", _upside_down),
                Mistake("product_for_ratio", _products),
                Mistake("weights_left_out", _activations_only),
            ),
            work=_factor_work,
            valid=_whole,
        ),
        Function(
            smooth,
            (*_BOTH, Parameter("factors", _FACTOR, ("channels",))),
            "tuple[list[list[float]], list[list[float]]]",
            _given,
            tolerance=CLOSE,
            mistakes=(
                Mistake("one_way_only", _one_way),
                Mistake("other_way_round", _other_way),
            ),
            work=_smooth_work,
            valid=_whole,
        ),
        Function(
            smoothed_errors,
            _BOTH,
            "tuple[float, float]",
            _scenes,
            tolerance=CLOSE,
            mistakes=(
                Mistake("swapped", lambda x, w: smoothed_errors(x, w)[::-1]),
                Mistake("not_smoothed", lambda x, w: smoothed_errors(x, w)[:1] * 2),
            ),
            work=_errors_work,
            fair=_fair,
            valid=_whole,
        ),
    ),
)
