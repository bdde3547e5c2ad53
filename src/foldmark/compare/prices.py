"""What the decisions cost that two files make differently: the figures, as they are reported."""

from dataclasses import dataclass

from foldmark.compare.mixing import Unit
from foldmark.ledger.metrics import Metric

__all__ = ["ActivationPrice", "Price", "Prices"]


@dataclass(frozen=True)
class Price:
    """One decision at the output, in the metric's unit; positive where B's choice is worse.

    Attributes:
        unit: the decision.
        weights: how many weights it touches; 0 for the activations.
        predicted: by the what-if; None where there is no derivative.
        measured: the mean of the two swaps.
        into_left: what B's choice does to A; None where A's graph has no place for it.
        out_of_right: what A's choice, put into B, saves; None likewise.
        share: of the measured difference.
    """

    unit: Unit
    weights: int
    predicted: float | None
    measured: float
    into_left: float | None
    out_of_right: float | None
    share: float


@dataclass(frozen=True)
class ActivationPrice:
    """An activation that the two models quantize differently.

    Attributes:
        name: of the value.
        left, right: how each side does it, in words.
        amount: what its error moves the output by, B's less A's, by the two accounts.
        predicted: the mean of the two swaps of this one alone, by the what-if.
        measured: the same, run; None for all but the costliest, and for what one graph has not.
    """

    name: str
    left: str
    right: str
    amount: float
    predicted: float | None = None
    measured: float | None = None

    @property
    def worth(self) -> float:
        """What is known best of its price."""
        return self.amount if self.measured is None else self.measured


@dataclass(frozen=True)
class Prices:
    """What a difference costs, and which decision how much of it.

    Attributes:
        metric: how the outputs are compared.
        outputs: which of them.
        left, right: the metric of each file against the float model, on real kernels.
        prices: by size.
        together: what no decision does alone.
        kernel: what the real kernels of B add beyond its simulation, less A's.
        activations: the largest ones.
        samples: how many were run.
        data: where they come from.
        is_random: whether they were drawn.
        notes: what a reader must know.
    """

    metric: Metric
    outputs: tuple[str, ...]
    left: float
    right: float
    prices: tuple[Price, ...]
    together: float
    kernel: float
    activations: tuple[ActivationPrice, ...]
    samples: int
    data: str
    is_random: bool
    notes: tuple[str, ...]

    @property
    def difference(self) -> float:
        """M(B) - M(A), measured."""
        return self.right - self.left
