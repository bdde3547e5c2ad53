"""With labels: accuracy before and after, and which sites took the margin of flipped samples."""

from dataclasses import dataclass

__all__ = ["Flip", "LabelReport", "MarginLoss"]


@dataclass(frozen=True)
class MarginLoss:
    """What one site took from a sample's margin.

    Attributes:
        site: the site's name.
        amount: change of the margin, in the output's unit; negative took some away.
    """

    site: str
    amount: float


@dataclass(frozen=True)
class Flip:
    """A sample whose class the quantized model changed.

    Attributes:
        sample: its index in the data.
        label: its label.
        exact: the float model's class.
        quantized: the quantized model's class.
        margin_exact: the float model's score of `exact` minus that of `quantized`.
        margin_quantized: the same in the quantized model; negative.
        losses: the sites that took most of the margin; empty when the flip was not explained.
    """

    sample: int
    label: int
    exact: int
    quantized: int
    margin_exact: float
    margin_quantized: float
    losses: tuple[MarginLoss, ...]


@dataclass(frozen=True)
class LabelReport:
    """What labels add.

    Attributes:
        samples: labelled rows.
        correct_exact: of them, how many the float model gets right.
        correct_quantized: how many the quantized model gets right.
        flips: rows whose class changed, in order.
    """

    samples: int
    correct_exact: int
    correct_quantized: int
    flips: tuple[Flip, ...]

    @property
    def accuracy_exact(self) -> float:
        """correct_exact / samples."""
        return self.correct_exact / max(self.samples, 1)

    @property
    def accuracy_quantized(self) -> float:
        """correct_quantized / samples."""
        return self.correct_quantized / max(self.samples, 1)
