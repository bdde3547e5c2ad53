"""A stretch of the path from float to quantized, and the nodes that integrate along it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Stretch"]


@dataclass(frozen=True)
class Stretch:
    """Gauss-Legendre nodes from one place of the path to another.

    Attributes:
        nodes: how many.
        low: where it begins; 0 is the float model.
        high: where it ends; 1 is the quantized model.
    """

    nodes: int
    low: float = 0.0
    high: float = 1.0

    @property
    def points(self) -> NDArray[np.float64]:
        """Where the nodes lie."""
        abscissas, _ = np.polynomial.legendre.leggauss(self.nodes)
        points: NDArray[np.float64] = self.low + (abscissas + 1) / 2 * (self.high - self.low)
        return points

    @property
    def shares(self) -> NDArray[np.float64]:
        """What each node counts; they sum to the stretch's length."""
        _, weights = np.polynomial.legendre.leggauss(self.nodes)
        shares: NDArray[np.float64] = weights / 2 * (self.high - self.low)
        return shares

    @property
    def ends(self) -> NDArray[np.float64]:
        """Where the part that a node stands for begins, and one more: the stretch's end.

        Each part is as long as its node's share, and the node lies within it (the theorem of
        Chebyshev, Markov and Stieltjes on sums of Gauss weights).
        """
        ends = self.low + np.concatenate([[0.0], np.cumsum(self.shares)])
        ends[-1] = self.high
        return ends
