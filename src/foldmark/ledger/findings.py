"""What `explain` found: the account, its reasons and the cures."""

from dataclasses import dataclass

from foldmark.graphs.sites import UnmatchedWeight
from foldmark.ledger.entries import Closure, Entry, MetricChange, Subtotal
from foldmark.ledger.fixes import Fix
from foldmark.ledger.flips import LabelReport
from foldmark.ledger.kernels import KernelDifference
from foldmark.ledger.softmax import SoftmaxGain

__all__ = ["Cost", "Findings"]


@dataclass(frozen=True)
class Cost:
    """What the account took.

    Attributes:
        seconds: wall time of the account, cures and checks not counted.
        forward_seconds: wall time of one pass of the float model over the same samples.
        nodes: largest number of quadrature nodes that a batch took; 0 when sites were switched
            off one by one.
        samples: how many samples were run.
        sites: how many sites there are.
    """

    seconds: float
    forward_seconds: float
    nodes: int
    samples: int
    sites: int

    @property
    def forward_equivalents(self) -> float:
        """seconds / forward_seconds."""
        return self.seconds / max(self.forward_seconds, 1e-9)


@dataclass(frozen=True)
class Findings:
    """Where the accuracy went.

    Attributes:
        metric: what moved, from where to where.
        closure: the lines of the account and their sum.
        cost: what the account took.
        entries: one per site, largest share first.
        fixes: cures, priced and the best of them measured; best first.
        layers: subtotals by layer, largest first.
        kinds: subtotals by kind.
        operators: subtotals by consuming operator.
        softmaxes: gain of each softmax.
        labels: accuracy and flipped samples, None without labels.
        kernels: operators that the runtime computes otherwise than the model says; looked for
            when the kernel line is not small.
        unmatched: weights whose float original was not found.
        data: where the samples came from.
        is_random: True when the samples were drawn.
        first_holds: share of bootstrap draws in which the first entry stays first; None with
            too few batches.
        replay_error: largest difference of replay and simulated output, over the largest change.
        notes: what else a reader must know, one sentence each.
    """

    metric: MetricChange
    closure: Closure
    cost: Cost
    entries: tuple[Entry, ...]
    fixes: tuple[Fix, ...]
    layers: tuple[Subtotal, ...]
    kinds: tuple[Subtotal, ...]
    operators: tuple[Subtotal, ...]
    softmaxes: tuple[SoftmaxGain, ...]
    labels: LabelReport | None
    kernels: tuple[KernelDifference, ...]
    unmatched: tuple[UnmatchedWeight, ...]
    data: str
    is_random: bool
    first_holds: float | None
    replay_error: float
    notes: tuple[str, ...]
