"""What is measured at an output, as a number and as a piece of graph to differentiate.

Every metric is a ratio of two sums over samples,

    M = sum_i value_i / sum_i weight_i

whose weights depend on the float model alone. So entries of the account are sums over samples
too, and batches can be added.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import DataMismatch, OutputNotComparable
from foldmark.graphs.emitter import Emitter
from foldmark.ledger.layout import Layout, labels_that_fit_none

__all__ = ["Measured", "Metric", "Target", "emit_metric", "measure", "metric_target"]

_TINY = 1e-30


class Metric(Enum):
    """What moves when a model is quantized; the values are the names of --metric."""

    RELATIVE_ERROR = "mse"
    COSINE = "cosine"
    DIVERGENCE = "kl"
    CROSS_ENTROPY = "cross-entropy"
    MARGIN = "margin"

    @property
    def title(self) -> str:
        """What reports call it."""
        return {
            Metric.RELATIVE_ERROR: "relative squared error",
            Metric.COSINE: "1 - cosine",
            Metric.DIVERGENCE: "KL divergence",
            Metric.CROSS_ENTROPY: "cross-entropy",
            Metric.MARGIN: "class margin",
        }[self]

    @property
    def harm(self) -> float:
        """Sign of a change for the worse: +1, but -1 for the margin."""
        return -1.0 if self is Metric.MARGIN else 1.0

    @property
    def needs_classes(self) -> bool:
        """True when the last axis must hold classes."""
        return self not in (Metric.RELATIVE_ERROR, Metric.COSINE)


@dataclass(frozen=True)
class Measured:
    """A metric on some samples.

    Attributes:
        values: per sample, what the metric sums.
        weights: per sample, what it divides by.
    """

    values: NDArray[np.float64]
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class Target:
    """What one output is compared with on one batch; constant along the path.

    Attributes:
        metric: the comparison.
        layout: how the output is read as (samples, rows, classes).
        is_probability: the output is already a softmax.
        row_weight: (samples, rows, 1): 0 for padding.
        aim: (samples, rows, classes); what it holds depends on the metric: the float output
            (relative error), its direction (cosine), its probabilities (divergence), the
            labels (cross-entropy), label minus rival (margin).
        weights: per sample, what the metric divides by.
        scale: factor on values and weights alike, so that several outputs count alike.
    """

    metric: Metric
    layout: Layout
    is_probability: bool
    row_weight: NDArray[np.float64]
    aim: NDArray[np.float64]
    weights: NDArray[np.float64]
    scale: float = 1.0

    def feeds(self, output: str) -> dict[str, NDArray[np.float32]]:
        """Return the constants of the graph piece, by the names that `emit_metric` uses."""
        return {
            f"{output} is aimed at": self.aim.astype(np.float32),
            f"{output} rows count": (self.row_weight * self.scale).astype(np.float32),
        }


def metric_target(
    metric: Metric,
    layout: Layout,
    reference: NDArray[np.generic],
    *,
    is_probability: bool,
    row_weight: NDArray[np.float64] | None,
    labels: NDArray[np.integer] | None,
    quantized: NDArray[np.generic] | None = None,
    scale: float = 1.0,
) -> Target:
    """Return what an output is compared with.

    reference   the float model's output
    row_weight  (samples, rows), None when every row counts once
    labels      (samples,) or (samples, rows); negative labels are left out
    quantized   the quantized model's output: names the rival class of the margin

    Raises:
        DataMismatch: labels are needed and absent, or name classes that are not there.
        OutputNotComparable: the metric needs classes and the output has one.
    """
    samples, rows, classes = layout.rows
    if metric.needs_classes and classes < 2:
        raise OutputNotComparable(
            f"{metric.title} needs classes along the last axis", got=str(list(layout.whole))
        )
    if metric is Metric.COSINE and classes < 2:
        raise OutputNotComparable(
            "1 - cosine of single numbers says nothing",
            got=str(list(layout.whole)),
            expected="more than one number along the last axis",
            todo="compare with --metric mse",
        )
    outputs = layout.apply(reference)
    rows_count = np.ones((samples, rows)) if row_weight is None else row_weight
    spread = None
    if labels is not None and metric in (Metric.CROSS_ENTROPY, Metric.MARGIN):
        spread = _spread(labels, layout)
        rows_count = rows_count * (spread >= 0)
    if metric is Metric.DIVERGENCE and not is_probability:
        aim = np.exp(_log_softmax(outputs))
    elif metric is Metric.MARGIN:
        rivals = outputs if quantized is None else layout.apply(quantized)
        aim = _margin_aim(outputs, spread, rivals)
    else:
        aim = _aim(metric, outputs, spread)
    weights = rows_count.sum(1)
    if metric is Metric.RELATIVE_ERROR:
        weights = (rows_count * (outputs**2).sum(2)).sum(1)
    return Target(
        metric, layout, is_probability, rows_count[:, :, None], aim, weights * scale, scale
    )


def measure(target: Target, output: NDArray[np.generic]) -> Measured:
    """Return the metric per sample, in double precision."""
    y = target.layout.apply(output)
    match target.metric:
        case Metric.RELATIVE_ERROR:
            rows = ((y - target.aim) ** 2).sum(2)
        case Metric.COSINE:
            # 1 - cos = |u - v|^2 / 2 for unit vectors: no cancellation near 1.
            rows = ((_unit(y) - target.aim) ** 2).sum(2) / 2
        case Metric.DIVERGENCE:
            surprise = np.log(np.maximum(target.aim, _TINY)) - _log_softmax(_logits(target, y))
            rows = (target.aim * surprise).sum(2)
        case Metric.CROSS_ENTROPY:
            rows = -(target.aim * _log_softmax(_logits(target, y))).sum(2)
        case Metric.MARGIN:
            rows = (target.aim * y).sum(2)
        case _:
            assert_never(target.metric)
    return Measured((rows * target.row_weight[:, :, 0]).sum(1) * target.scale, target.weights)


def emit_metric(emitter: Emitter, targets: Mapping[str, Target]) -> str:
    """Append the sum over samples and outputs of the metric's values; return its name.

    The pieces take the arrays of `Target.feeds` as inputs. A constant that the derivative does
    not see (the entropy of the float probabilities) is left out.
    """
    pieces = [_emit(emitter, name, target) for name, target in targets.items()]
    total = pieces[0]
    for piece in pieces[1:]:
        total = emitter.add(total, piece)
    return total


def _emit(emitter: Emitter, name: str, target: Target) -> str:
    aim, count = f"{name} is aimed at", f"{name} rows count"
    y = target.layout.emit(emitter, name)
    match target.metric:
        case Metric.RELATIVE_ERROR:
            apart = emitter.subtract(y, aim)
            each = emitter.multiply(apart, apart)
        case Metric.COSINE:
            square = emitter.reduce_sum(emitter.multiply(y, y), [2], keep=1)
            tiny = emitter.constant(_TINY, np.float32)
            length = emitter.emit("Sqrt", emitter.add(square, tiny))
            apart = emitter.subtract(emitter.divide(y, length), aim)
            half = emitter.constant(0.5, np.float32)
            each = emitter.multiply(emitter.multiply(apart, apart), half)
        case Metric.DIVERGENCE | Metric.CROSS_ENTROPY:
            if target.is_probability:
                y = emitter.emit("Log", emitter.add(y, emitter.constant(_TINY, np.float32)))
            surprise = emitter.emit("Neg", emitter.emit("LogSoftmax", y, axis=2))
            each = emitter.multiply(surprise, aim)
        case Metric.MARGIN:
            each = emitter.multiply(y, aim)
        case _:
            assert_never(target.metric)
    return emitter.reduce_sum(emitter.multiply(each, count), [0, 1, 2])


def _aim(
    metric: Metric, outputs: NDArray[np.float64], labels: NDArray[np.integer] | None
) -> NDArray[np.float64]:
    if metric is Metric.COSINE:
        return _unit(outputs)
    if metric is not Metric.CROSS_ENTROPY:
        return outputs
    if labels is None:
        raise DataMismatch("cross-entropy needs labels", todo="give --labels, or another --metric")
    return _one_hot(labels, outputs.shape[2])


def _margin_aim(
    outputs: NDArray[np.float64],
    labels: NDArray[np.integer] | None,
    rivals: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return +1 at the class itself and -1 at the strongest other one of `rivals`."""
    own = outputs.argmax(2) if labels is None else labels
    others = rivals.copy()
    np.put_along_axis(others, np.maximum(own, 0)[:, :, None], -np.inf, axis=2)
    classes = outputs.shape[2]
    return _one_hot(own, classes) - _one_hot(others.argmax(2), classes)


def _spread(labels: NDArray[np.integer], layout: Layout) -> NDArray[np.integer]:
    samples, rows, classes = layout.rows
    if not layout.takes(labels):
        raise labels_that_fit_none(labels, [layout])
    spread = np.broadcast_to(labels.reshape(samples, -1), (samples, rows))
    if spread.max() >= classes:
        raise DataMismatch(
            "a label names no class",
            where="labels",
            got=str(spread.max()),
            expected=f"below {classes}, counted from 0",
        )
    return spread


def _one_hot(labels: NDArray[np.integer], classes: int) -> NDArray[np.float64]:
    known = labels[:, :, None] == np.arange(classes)
    return known.astype(np.float64)


def _logits(target: Target, y: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(np.maximum(y, 0) + _TINY) if target.is_probability else y


def _unit(y: NDArray[np.float64]) -> NDArray[np.float64]:
    return y / np.sqrt((y**2).sum(2, keepdims=True) + _TINY)


def _log_softmax(y: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = y - y.max(2, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(2, keepdims=True))
