"""One quantized tensor beside its float weights: its rule, or what made it instead."""

from dataclasses import dataclass

import numpy as np

from foldmark.compare.infer import Inference, infer_rule
from foldmark.compare.observed import Observation, observe
from foldmark.compare.residuals import Residuals, Suspect, find_residuals
from foldmark.errors import NotSupported
from foldmark.exact.catalog import FLOAT32
from foldmark.formats.stored import StoredTensor
from foldmark.formats.values import Array, Layout, Values

__all__ = ["Fit", "fit_tensor", "holds", "shrinkage"]


@dataclass(frozen=True, eq=False)
class Fit:
    """What is known of how a tensor was made.

    Attributes:
        tensor: where it lies.
        values: its codes and scales.
        seen: it beside its weights, block by block; None when no affine rule can be behind it.
        inference: the rules it is consistent with; None likewise.
        residuals: what the codes show where rounding alone does not explain them.
        shrunk: how scales lie to the block's own range where no rule of ranges gives them.
        error: mean squared error against the float weights.
    """

    tensor: StoredTensor
    values: Values
    seen: Observation | None
    inference: Inference | None
    residuals: Residuals | None
    shrunk: str
    error: float

    @property
    def layout(self) -> Layout:
        """How it is stored."""
        return self.tensor.layout


def fit_tensor(tensor: StoredTensor, weights: Array) -> Fit:
    """Search the rule behind a tensor.

    Args:
        tensor: quantized.
        weights: its float original, in its layout.
    """
    values = tensor.load()
    with np.errstate(all="ignore"):
        numbers = values.dequantize().astype(np.float64)
        error = float(np.mean((numbers - weights) ** 2)) if weights.size else 0.0
    try:
        seen = observe(values, tensor.layout, weights)
    except NotSupported:
        return Fit(tensor, values, None, None, None, "", error)
    inference = infer_rule(seen)
    residuals = None
    if not inference.affine.is_exact:
        codes = seen.codes_format
        residuals = find_residuals(values, weights, codes.minimum, codes.maximum)
    shrunk = "" if inference.scale.options else shrinkage(seen)
    if residuals is not None and residuals.suspect in _CHANGED_WEIGHTS:
        shrunk = ""  # the ranges of these weights say nothing about those that were quantized
    return Fit(tensor, values, seen, inference, residuals, shrunk, error)


_CHANGED_WEIGHTS = (Suspect.SCALED_CHANNELS, Suspect.ROTATION, Suspect.OTHER_WEIGHTS)


def holds(fit: Fit) -> bool:
    """Say whether one rule explains all that was looked at."""
    return fit.inference is not None and fit.inference.is_exact


# Searches of a range shrink it in steps of a hundredth or a twentieth.
_GRID = 0.01
# Float32 arithmetic in another order moves a weight, and so a scale, by so many units at most.
_LAST_PLACES = 4


def shrinkage(seen: Observation) -> str:
    """Say how scales lie to what the range of each block would give; "" when they don't."""
    half = 1 << (seen.codes_format.bits - 1)
    magnitude = np.maximum(np.abs(seen.low), np.abs(seen.high))
    span = np.maximum(seen.high, 0) - np.minimum(seen.low, 0)
    best: tuple[float, str] | None = None
    for name, extent, steps in (
        (f"absmax / {half - 1}", magnitude, half - 1),
        (f"absmax / {half - 0.5}", magnitude, half - 0.5),
        (f"absmax / {half}", magnitude, half),
        (f"(max - min) / {2 * half - 1}", span, 2 * half - 1),
    ):
        alive = (extent > 0) & np.isfinite(seen.scale) & (seen.scale != 0)
        if not alive.any():
            return ""
        part = np.abs(seen.scale[alive]) * steps / extent[alive]
        units = _last_places(seen.scale[alive], extent[alive] / steps)
        if seen.scale_format == FLOAT32 and 0 < units <= _LAST_PLACES:
            return (
                f"{name} to within {units} units in the last place: these weights are not to the "
                "last bit those that were quantized, or the scale is worked out in another order"
            )
        off = np.abs(part / _GRID - np.rint(part / _GRID)) * _GRID
        on_grid = float((off < 2e-4).mean())
        low, high = float(part.min()), float(part.max())
        words = _words(name, low, high, on_grid, len(part))
        score = (on_grid if len(part) > 3 else 0.0) - abs(min(high, 2) - 1) - (high > 1 + 1e-4)
        if best is None or score > best[0]:
            best = (score, words)
    return best[1] if best is not None else ""


def _last_places(scale: Array, nearest: Array) -> int:
    """Return by how many float32 numbers the scales are off at most."""
    one, other = (
        np.abs(a).astype(np.float32).view(np.int32).astype(np.int64) for a in (scale, nearest)
    )
    return int(np.abs(one - other).max())


def _words(name: str, low: float, high: float, on_grid: float, blocks: int) -> str:
    if blocks == 1:
        return f"{low:.4g} of {name}: the range was clipped" if low < 1 else f"{low:.4g} of {name}"
    words = f"{low:.3g} to {high:.3g} of {name}"
    if low >= 1 - 1e-6:
        return f"{words}, never less"
    if on_grid > 0.95 and high <= 1 + 1e-4:
        return f"{words}, in steps of {_GRID:g}: a search for the best clipping"
    return f"{words}: clipped, or chosen by a search" if high <= 1 + 1e-4 else words
