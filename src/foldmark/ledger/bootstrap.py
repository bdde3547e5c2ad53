"""How sure the entries are: the account drawn again from its own samples, batch by batch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Resampled", "resample"]

# Fewer batches than this say nothing about spread.
LEAST_BATCHES = 4
_DRAWS = 1000


@dataclass(frozen=True)
class Resampled:
    """Entries over bootstrap draws of the batches.

    Attributes:
        low: 5th percentile of each entry.
        high: 95th percentile.
        first_holds: share of the draws in which the largest entry stays the largest.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    first_holds: float

    def interval(self, entry: int, sign: float) -> tuple[float, float]:
        """Return (low, high) of an entry, of its negative when `sign` is -1."""
        low, high = sorted((sign * float(self.low[entry]), sign * float(self.high[entry])))
        return low, high


def resample(amounts: NDArray[np.float64], weights: NDArray[np.float64]) -> Resampled | None:
    """Return the spread of entries over samples, None when there are too few batches.

    amounts   (batches, sites)   harm: sum over the batch's samples, before division by weights
    weights   (batches,)         what the metric divides by

    Each draw takes as many batches with replacement and forms sum(amounts) / sum(weights). The
    generator is seeded: the same account has the same intervals.
    """
    batches, sites = amounts.shape
    if batches < LEAST_BATCHES or sites == 0:
        return None
    picks = np.random.default_rng(0).integers(0, batches, (_DRAWS, batches))
    counts = np.stack([np.bincount(pick, minlength=batches) for pick in picks]).astype(np.float64)
    totals = counts @ weights
    # Outputs of nothing but zeros weigh nothing: their entries stay undivided, as in the account.
    drawn = (counts @ amounts) / np.where(totals > 0, totals, 1.0)[:, None]
    first = int(amounts.sum(0).argmax())
    holds = float((drawn.argmax(1) == first).mean())
    return Resampled(np.quantile(drawn, 0.05, axis=0), np.quantile(drawn, 0.95, axis=0), holds)
