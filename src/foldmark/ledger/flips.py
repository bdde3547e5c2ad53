"""With labels: accuracy before and after, and which sites took the margin of flipped samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from foldmark.graphs.emitter import Emitter
from foldmark.ledger.layout import Layout
from foldmark.ledger.metrics import Metric, Target, emit_metric, metric_target
from foldmark.ledger.models import Models
from foldmark.ledger.stretch import Stretch
from foldmark.runtimes.batches import Batch

__all__ = ["Flip", "FlipFinder", "LabelReport", "MarginLoss"]

# So many flips, the first ones, get a margin account of their own.
EXPLAINED = 16
_NODES = 8
_LOSSES_KEPT = 5


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
        row: which of its rows (token, pixel), 0 where it has one.
        label: its label.
        exact: the float model's class.
        quantized: the quantized model's class.
        margin_exact: the float model's score of `exact` minus that of `quantized`.
        margin_quantized: the same in the quantized model; negative.
        losses: the sites that took most of the margin; empty when the flip was not explained.
    """

    sample: int
    row: int
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
        rows: rows of a sample, 1 where a label is a sample's.
        correct_exact: of them, how many the float model gets right.
        correct_quantized: how many the quantized model gets right.
        flips: rows whose class changed, in order.
    """

    samples: int
    rows: int
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


@dataclass
class FlipFinder:
    """Counts right answers and accounts for the margins of flipped samples.

    Attributes:
        models: the two models.
        output: the output that holds the scores.
    """

    models: Models
    output: str
    _samples: int = 0
    _rows: int = 1
    _exact: int = 0
    _quantized: int = 0
    _flips: list[Flip] = field(default_factory=list)
    _feeds: dict[int, dict[str, NDArray[np.generic]]] = field(default_factory=dict)
    _pieces: dict[Layout, Callable[[Emitter], str]] = field(default_factory=dict)

    def add(
        self,
        batch: Batch,
        exact: Mapping[str, NDArray[np.generic]],
        quantized: Mapping[str, NDArray[np.generic]],
    ) -> None:
        """Add one batch; does nothing where it has no labels or the output no classes."""
        if batch.labels is None:
            return
        layout = Layout.of(self.output, exact[self.output].shape, batch.samples)
        samples, rows, _ = layout.rows
        if not layout.takes(batch.labels):
            return
        labels = np.broadcast_to(batch.labels.reshape(samples, -1), (samples, rows))
        before, after = layout.apply(exact[self.output]), layout.apply(quantized[self.output])
        own, new = before.argmax(2), after.argmax(2)
        known = labels >= 0
        self._rows = max(self._rows, rows)
        self._samples += int(known.sum())
        self._exact += int((known & (own == labels)).sum())
        self._quantized += int((known & (new == labels)).sum())
        for sample, row in np.argwhere(known & (own != new)):
            first, second = own[sample, row], new[sample, row]
            flip = Flip(
                batch.first + int(sample),
                int(row),
                int(labels[sample, row]),
                int(first),
                int(second),
                float(before[sample, row, first] - before[sample, row, second]),
                float(after[sample, row, first] - after[sample, row, second]),
                (),
            )
            if len(self._flips) < EXPLAINED:
                self._feeds[len(self._flips)] = _alone(batch, int(sample))
            self._flips.append(flip)

    def report(
        self, *, explain: bool, on_node: Callable[[float], None] = lambda _: None
    ) -> LabelReport | None:
        """Return all that was counted, None when no label was seen.

        explain   whether the first flips get an account of their margin
        on_node   called after each node of such an account with its share of all of them
        """
        if not self._samples:
            return None
        share = 1 / (_NODES * max(1, len(self._feeds)))
        for place, feeds in self._feeds.items() if explain else ():
            flip = self._flips[place]
            losses = self._losses(feeds, flip, lambda: on_node(share))
            self._flips[place] = replace(flip, losses=losses)
        return LabelReport(
            self._samples, self._rows, self._exact, self._quantized, tuple(self._flips)
        )

    def _losses(
        self, feeds: dict[str, NDArray[np.generic]], flip: Flip, on_node: Callable[[], None]
    ) -> tuple[MarginLoss, ...]:
        """Return the margin account of one row of one sample, run alone."""
        way = self.models.way(feeds)
        replay, recording = way.replay, way.record(feeds)
        start = recording.start[self.output]
        layout = Layout.of(self.output, start.shape, 1)
        rivals = np.zeros(layout.rows)
        rivals[0, flip.row, flip.quantized] = 1.0
        own = np.full(layout.rows[:2], -1)
        own[0, flip.row] = flip.exact
        target = metric_target(
            Metric.MARGIN,
            Layout(layout.rows, (0, 1, 2)),
            layout.apply(start),
            is_probability=False,
            row_weight=None,
            labels=own,
            quantized=rivals,
        )
        target = replace(target, layout=layout)
        integral = replay.add_nodes(
            recording,
            self._piece(target),
            target.feeds(self.output),
            Stretch(_NODES),
            on_node=on_node,
        )
        taken = sorted(integral.entries.items(), key=lambda item: item[1])[:_LOSSES_KEPT]
        return tuple(MarginLoss(site, amount) for site, amount in taken if amount < 0)

    def _piece(self, target: Target) -> Callable[[Emitter], str]:
        # One object for all flips: the derivative is built once.
        if target.layout not in self._pieces:
            self._pieces[target.layout] = partial(emit_metric, targets={self.output: target})
        return self._pieces[target.layout]


def _alone(batch: Batch, sample: int) -> dict[str, NDArray[np.generic]]:
    """Return the feeds of one sample of a batch."""
    if batch.samples == 1:
        return batch.feeds
    return {
        name: array[sample : sample + 1] if array.ndim else array
        for name, array in batch.feeds.items()
    }
