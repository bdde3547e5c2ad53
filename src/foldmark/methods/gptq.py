"""GPTQ: round a weight column by column, and let the columns to come make up for the error.

Frantar et al. 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers" (arXiv 2210.17323), in the paper's letters: W (out, in), H = 2 X^T X (in, in).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from foldmark.errors import BadInput, NonFiniteValue

__all__ = ["GptqResult", "Grid", "gptq"]

Floats = NDArray[np.float64]
_BLOCK = 128  # columns updated lazily together, as in the paper; changes the speed alone
_STRONGEST = 1.0  # of the mean diagonal: beyond this the data says next to nothing


@dataclass(frozen=True)
class Grid:
    """The codes that a row's values may get: scale and zero point per row.

    Attributes:
        scale: (out, 1).
        zero_point: (out, 1).
        lowest, highest: codes.
    """

    scale: Floats
    zero_point: Floats
    lowest: int
    highest: int


@dataclass(frozen=True)
class GptqResult:
    """What GPTQ made of a weight.

    Attributes:
        codes: (out, in)  integers as floats, in the weight's own column order.
        grids: one grid per group of columns, in the weight's own order.
        dead: columns that the data never moved; their weights don't matter and become zero.
        damping: the multiple of the mean diagonal that was added to H's.
        loss: sum over rows of the squared output error that GPTQ accounts for, tr(E H E^T) / 2.
    """

    codes: NDArray[np.int64]
    grids: tuple[Grid, ...]
    dead: tuple[int, ...]
    damping: float
    loss: float


GridMaker = Callable[[Floats], Grid]
"""Chooses the grid of a group of columns (out, n)."""


def gptq(
    W: NDArray[np.floating],
    H: NDArray[np.floating],
    make_grid: GridMaker,
    *,
    group: int | None = None,
    damping: float = 0.01,
    act_order: bool = False,
) -> GptqResult:
    """Quantize a weight, spreading each column's error over the columns after it.

        q_j = quant(w_j);  e = (w_j - q_j) / U_jj;  W_{:, k} -= e U_{jk} for k > j
        with U the upper Cholesky factor of H^-1

    Args:
        W: (out, in)  the weight.
        H: (in, in)  second moment of its inputs; symmetric.
        make_grid: chooses scale and zero point of a group of columns.
        group: columns that share a grid, None for all. Grids are chosen from the weight as
            given (static groups), so that act_order changes no group.
        damping: multiple of the mean diagonal added to the diagonal; raised tenfold at a time,
            and reported, when H is not positive definite with it.
        act_order: columns of large input first.

    Raises:
        NonFiniteValue: W or H holds NaN or infinity.
        BadInput: H is of the wrong shape or not positive definite even with strong damping.
    """
    W, H = _checked(W, H)
    inner = W.shape[1]
    dead = np.flatnonzero(np.diag(H) == 0)
    H[dead, dead] = 1
    W[:, dead] = 0
    size = group or inner
    grids = tuple(make_grid(W[:, start : start + size]) for start in range(0, inner, size))
    order = np.argsort(-np.diag(H), kind="stable") if act_order else np.arange(inner)
    U, used = _inverse_factor(H[np.ix_(order, order)], damping)
    codes, loss = _rounded(W[:, order], U, grids, order // size)
    back = np.argsort(order, kind="stable")
    return GptqResult(
        codes[:, back].astype(np.int64), grids, tuple(int(j) for j in dead), used, loss
    )


def _rounded(
    W: Floats, U: Floats, grids: tuple[Grid, ...], group_of: NDArray[np.int64]
) -> tuple[Floats, float]:
    """Return the codes of all columns in the order given, and the loss; W is used up."""
    inner = W.shape[1]
    scales = np.concatenate([grid.scale for grid in grids], axis=1)[:, group_of]
    zeros = np.concatenate([grid.zero_point for grid in grids], axis=1)[:, group_of]
    scales, zeros = np.ascontiguousarray(scales), np.ascontiguousarray(zeros)
    lowest, highest = float(grids[0].lowest), float(grids[0].highest)
    W, codes, loss = np.ascontiguousarray(W), np.empty_like(W), 0.0
    for start in range(0, inner, _BLOCK):
        part = slice(start, min(start + _BLOCK, inner))
        block = np.ascontiguousarray(W[:, part])
        triangle = np.ascontiguousarray(U[part, part])
        errors = np.empty_like(block)
        codes[:, part] = _round_block(
            block, triangle, scales[:, part], zeros[:, part], (lowest, highest), errors
        )
        W[:, part.stop :] -= errors @ U[part, part.stop :]
        loss += float((errors**2).sum()) / 2
    return codes, loss


@numba.njit(cache=True, nogil=True)
def _round_block(  # noqa: PLR0917
    W: Floats, U: Floats, scale: Floats, zero: Floats, ends: tuple[float, float], errors: Floats
) -> Floats:
    """Round a block of columns in turn, each row on its own; fills in their errors."""
    codes = np.empty_like(W)
    for row in range(W.shape[0]):
        for j in range(W.shape[1]):
            step = scale[row, j] if scale[row, j] != 0 else 1.0
            code = min(max(np.rint(W[row, j] / step) + zero[row, j], ends[0]), ends[1])
            codes[row, j] = code
            error = (W[row, j] - (code - zero[row, j]) * scale[row, j]) / U[j, j]
            for k in range(j + 1, W.shape[1]):
                W[row, k] -= error * U[j, k]
            errors[row, j] = error
    return codes


def _checked(W: NDArray[np.floating], H: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Return copies in float64, checked."""
    inner = W.shape[1]
    if H.shape != (inner, inner):
        raise BadInput("H does not fit the weight", got=str(H.shape), expected=str((inner, inner)))
    for name, array in (("W", W), ("H", H)):
        if not np.isfinite(array).all():
            raise NonFiniteValue(f"{name} is not finite", where="gptq")
    return np.array(W, np.float64), np.array(H, np.float64)


def _inverse_factor(H: Floats, damping: float) -> tuple[Floats, float]:
    """Return the upper U with H^-1 = U^T U for the damped H, and the damping that it took."""
    mean, used = float(np.mean(np.diag(H))), damping
    while True:
        try:
            damped = H + used * mean * np.eye(len(H))
            lower = np.linalg.cholesky(damped)
            inverse = np.linalg.inv(lower)
            U = np.linalg.cholesky(inverse.T @ inverse).T
            if np.isfinite(U).all():
                return U, used
        except np.linalg.LinAlgError:
            pass
        used = max(used, 1e-4) * 10
        if used > _STRONGEST:
            raise BadInput(
                "H is not positive definite even with strong damping",
                where="gptq",
                got=f"rank {np.linalg.matrix_rank(H)} of {len(H)}",
                todo="give more samples",
            )
