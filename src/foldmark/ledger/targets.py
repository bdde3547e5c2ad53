"""The chosen metric on one batch, over all chosen outputs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import NonFiniteValue, OutputNotComparable
from foldmark.graphs.emitter import Emitter
from foldmark.ledger.choice import MetricChoice
from foldmark.ledger.layout import Layout
from foldmark.ledger.metrics import (
    Measured,
    Target,
    emit_metric,
    measure,
    metric_target,
)
from foldmark.runtimes.batches import Batch

__all__ = ["BatchTarget", "Ruler"]

_Outputs = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class BatchTarget:
    """What a batch's outputs are measured against.

    Attributes:
        targets: by output.
        piece: appends the metric's nodes; the same object for batches of the same shapes.
    """

    targets: Mapping[str, Target]
    piece: Callable[[Emitter], str]

    @property
    def feeds(self) -> dict[str, NDArray[np.generic]]:
        """The arrays that `piece` reads beside the outputs."""
        return {
            name: array
            for output, target in self.targets.items()
            for name, array in target.feeds(output).items()
        }

    @property
    def weight(self) -> float:
        """What the batch adds to the metric's divisor."""
        return float(sum(target.weights.sum() for target in self.targets.values()))

    def measure(self, outputs: _Outputs) -> float:
        """Return what the batch adds to the metric's sum."""
        return float(self.per_sample(outputs).values.sum())

    def per_sample(self, outputs: _Outputs) -> Measured:
        """Return values and weights per sample, summed over outputs.

        Raises OutputNotComparable when an output has another number of elements than in float.
        """
        for name, target in self.targets.items():
            if outputs[name].size != prod(target.layout.whole):
                raise OutputNotComparable(
                    "its length follows the data, and differs between float and quantized",
                    where=f"output {name!r}",
                    got=str(list(outputs[name].shape)),
                    expected=str(list(target.layout.whole)),
                    todo="compare another output (--output)",
                )
        each = [measure(target, outputs[name]) for name, target in self.targets.items()]
        values, weights = [m.values for m in each], [m.weights for m in each]
        return Measured(np.sum(values, axis=0), np.sum(weights, axis=0))


@dataclass
class Ruler:
    """Makes every batch's target; several outputs are scaled so that they count alike."""

    choice: MetricChoice
    _pieces: dict[object, Callable[[Emitter], str]] = field(default_factory=dict)

    def target(self, batch: Batch, exact: _Outputs, quantized: _Outputs) -> BatchTarget:
        """Return what a batch is measured against.

        exact      the float model's outputs
        quantized  the quantized model's; they name the rivals of the class margin

        Raises NonFiniteValue when a model gives NaN or infinity.
        """
        targets = {}
        for name in self.choice.outputs:
            _check_finite(name, "the float model", exact[name], batch)
            _check_finite(name, "the quantized model", quantized[name], batch)
            layout = Layout.of(name, exact[name].shape, batch.samples)
            targets[name] = metric_target(
                self.choice.metric,
                layout,
                exact[name],
                is_probability=name in self.choice.probabilities,
                row_weight=_row_weight(batch, layout),
                labels=batch.labels,
                quantized=quantized[name],
                scale=1.0 / (self.choice.powers.get(name) or 1.0),
            )
        shapes = tuple((name, target.layout) for name, target in targets.items())
        piece = self._pieces.setdefault(shapes, partial(emit_metric, targets=targets))
        return BatchTarget(targets, piece)


def _check_finite(name: str, model: str, output: NDArray[np.generic], batch: Batch) -> None:
    if np.isfinite(output).all():
        return
    index = [int(i) for i in np.argwhere(~np.isfinite(output))[0]]
    value = output[tuple(index)]
    if index and len(output) == batch.samples:
        index[0] += batch.first
    raise NonFiniteValue(
        f"{model} gives NaN or infinity",
        where=f"output {name!r}",
        got=f"first {value} at {index}",
        expected="finite numbers, which can be compared",
        todo="leave that sample out, or compare another output (--output)",
    )


def _row_weight(batch: Batch, layout: Layout) -> NDArray[np.float64] | None:
    """Return 0 for padded tokens, where an input is a mask of the output's rows."""
    samples, rows, _ = layout.rows
    for name, array in batch.feeds.items():
        if "mask" in name.lower() and rows > 1 and array.shape == (samples, rows):
            return (array != 0).astype(np.float64)
    return None
