"""What a layer's inputs look like, streamed: the second moment that the methods need."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import NoData, NonFiniteValue

__all__ = ["InputSums", "Inputs"]

_ROWS = 512  # rows kept for searches that try outputs


@dataclass(frozen=True)
class Inputs:
    """What was seen of the inputs X (tokens, in) of a layer.

    Attributes:
        H: (in, in)  2 X^T X / tokens, the Hessian of the squared output error.
        largest: (in,)  max |X_j|.
        mean_size: (in,)  mean |X_j|.
        mean: (in,)  mean X_j.
        rows: (at most 512, in)  some of the inputs themselves.
        tokens: rows seen.
    """

    H: NDArray[np.float64]
    largest: NDArray[np.float64]
    mean_size: NDArray[np.float64]
    mean: NDArray[np.float64]
    rows: NDArray[np.float32]
    tokens: int


class InputSums:
    """Sums that grow a batch at a time; memory depends on the layer alone."""

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._square: NDArray[np.float64] | None = None
        self._tokens = 0
        self._rows: list[NDArray[np.float32]] = []

    def add(self, X: NDArray[np.floating]) -> None:
        """Take in inputs (..., in).

        Raises NonFiniteValue naming the layer's input.
        """
        rows = np.ascontiguousarray(X.reshape(-1, X.shape[-1]), np.float32)
        if not np.isfinite(rows).all():
            raise NonFiniteValue("an input is not finite", where=f"tensor {self._name!r}")
        if self._square is None:
            width = rows.shape[1]
            self._square = np.zeros((width, width))
            self._sum, self._size, self._largest = np.zeros(width), np.zeros(width), np.zeros(width)
        self._square += rows.T @ rows
        sizes = np.abs(rows)
        self._sum += rows.sum(0, dtype=np.float64)
        self._size += sizes.sum(0, dtype=np.float64)
        self._largest = np.maximum(self._largest, sizes.max(0))
        self._tokens += len(rows)
        have = sum(len(each) for each in self._rows)
        if have < _ROWS:
            step = max(1, len(rows) // max(1, _ROWS // 8))
            self._rows.append(rows[::step][: _ROWS - have].copy())

    def finish(self) -> Inputs:
        """Return what was seen. Raises NoData when nothing was."""
        if self._square is None or not self._tokens:
            raise NoData("nothing was seen of this input", where=f"tensor {self._name!r}")
        tokens = self._tokens
        return Inputs(
            2 * self._square / tokens,
            self._largest,
            self._size / tokens,
            self._sum / tokens,
            np.concatenate(self._rows),
            tokens,
        )
