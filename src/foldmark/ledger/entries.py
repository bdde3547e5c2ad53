"""The lines of the account: one entry a site, and the sums that close it."""

from collections.abc import Mapping
from dataclasses import dataclass

from foldmark.graphs.sites import Site
from foldmark.ledger.causes import Cause
from foldmark.ledger.facts import SiteFacts

__all__ = ["Closure", "Entry", "Group", "MetricChange", "Origin", "Subtotal"]


@dataclass(frozen=True)
class MetricChange:
    """What moved.

    Attributes:
        name: the metric's name, as --metric takes it.
        title: what reports call it.
        harm: sign of a change for the worse.
        outputs: the outputs that are compared.
        reason: why this metric, in one sentence.
        exact: its value for the float model.
        quantized: its value for the quantized model, run on its real kernels.
    """

    name: str
    title: str
    harm: float
    outputs: tuple[str, ...]
    reason: str
    exact: float
    quantized: float

    @property
    def change(self) -> float:
        """The measured total: quantized - exact."""
        return self.quantized - self.exact

    @property
    def is_worse(self) -> bool:
        """True when the quantized model does worse."""
        return self.change * self.harm > 0


@dataclass(frozen=True)
class Closure:
    """The account's lines; total = sites + graph + kernel + quadrature.

    Attributes:
        sites: sum of the entries.
        graph: what else converters changed: M(skeleton) - M(float model).
        kernel: M(real integer kernels) - M(simulated arithmetic).
        quadrature: what is left of M(simulated) - M(skeleton) beside the entries.
        total: the measured change.
        unsigned: what the nodes leave of single pieces of the path and single batches, added up
            without signs: how far entries may be off although their sum closes.
    """

    sites: float
    graph: float
    kernel: float
    quadrature: float
    total: float
    unsigned: float = 0.0

    @property
    def relative_error(self) -> float:
        """(sites + graph + kernel) / total - 1; 0 when nothing moved at all."""
        lines = self.sites + self.graph + self.kernel
        if self.total == 0:
            return 0.0 if lines == 0 else float("inf")
        return lines / self.total - 1


@dataclass(frozen=True)
class Group:
    """Part of an entry along one axis of its tensor.

    Attributes:
        axis: what the axis is: "channel", "token", "head", "row", ...
        index: place along it.
        amount: the part, in the metric's unit.
    """

    axis: str
    index: int
    amount: float


@dataclass(frozen=True)
class Origin:
    """Where the error in a tensor comes from, as shares of the float tensor's norm.

    Attributes:
        born: norm of the error that its own site adds.
        arrived: norm of the error already in it, from sites upstream.
    """

    born: float
    arrived: float

    @property
    def is_carrier(self) -> bool:
        """True when most of its error arrived from upstream."""
        return self.arrived > 2 * self.born


@dataclass(frozen=True)
class Entry:
    """What one site moved.

    Attributes:
        site: the site.
        amount: its part of the measured change, in the metric's unit.
        share: amount / total.
        interval: 90 % bootstrap interval of the amount over samples; None with too few samples.
        causes: parts of the amount by cause; they sum to it.
        groups: its largest parts along each axis that has a name.
        facts: what was seen of the tensor.
        origin: born here or arrived from upstream; None for weights, where all is born here.
        bias_ratio: for a bias whose scale is not that of the product it is added to:
            bias_scale / (s_x * s_w), of its worst channel; None where it is, and elsewhere.
    """

    site: Site
    amount: float
    share: float
    interval: tuple[float, float] | None
    causes: Mapping[Cause, float]
    groups: tuple[Group, ...]
    facts: SiteFacts
    origin: Origin | None
    bias_ratio: float | None = None


@dataclass(frozen=True)
class Subtotal:
    """The sum of some entries.

    Attributes:
        name: what they have in common: a layer, a kind, an operator.
        amount: their sum.
        share: amount / total.
        sites: how many they are.
    """

    name: str
    amount: float
    share: float
    sites: int
