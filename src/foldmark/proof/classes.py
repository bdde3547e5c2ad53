"""Best classes counted: how often two models agree, and how often each is right."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import DataMismatch
from foldmark.runtimes.batches import Batch, Data
from foldmark.runtimes.timing import Interval

__all__ = ["ClassCounts", "Outputs", "Score"]

Outputs = Mapping[str, NDArray[np.generic]]
Counts = NDArray[np.int64]
_SIGMAS = 1.959964  # of a normal distribution, 95 % of which they hold


@dataclass(frozen=True)
class Score:
    """A task score of both models on the same samples.

    Attributes:
        name: "accuracy", or the name of the caller's function.
        float_score: the float model's.
        quantized_score: the quantized model's.
        change: quantized - float, with its 95 % interval over the samples (paired).
    """

    name: str
    float_score: float
    quantized_score: float
    change: Interval


@dataclass
class ClassCounts:
    """Counts best classes, batch by batch.

    Args:
        data: whose labels are counted against, for messages.
        is_judged: whether labels are classes; a score of the caller's own may read them otherwise.

    Attributes:
        rows: rows of a sample that have a class each: tokens, pixels, or 1.
    """

    data: Data
    is_judged: bool
    rows: int = 1
    _same: list[Counts] = field(default_factory=list)
    _right: list[Counts] = field(default_factory=list)

    def add(self, batch: Batch, real: Outputs, other: Outputs) -> None:
        """Count a batch; does nothing where no output looks like scores of classes.

        Raises DataMismatch when the labels fit no output, or name a class that is not there.
        """
        labels = batch.labels if self.is_judged else None
        found = _class_scores(real, batch.samples, labels)
        if found is None:
            if labels is not None and self.data.labels is not None:
                raise self._misfit(labels, real)
            return
        name, axis = found
        best = real[name].argmax(axis), other[name].argmax(axis)
        self._same.append(_counts(best[0] == best[1]))
        self.rows = max(self.rows, best[0][:1].size)
        if labels is None:
            return
        if labels.size != best[0].size:
            raise self._misfit(labels, {name: real[name]})
        labels = labels.reshape(best[0].shape)
        known = _known(labels, real[name].shape[axis])
        hits = [_counts(known & (each == labels))[:, 0] for each in best]
        self._right.append(np.stack([*hits, _counts(known)[:, 0]], 1))

    def agreement(self) -> Interval | None:
        """Return the part of all rows with the same best class, with Wilson's 95 % interval."""
        if not self._same:
            return None
        hits, n = (int(each) for each in np.concatenate(self._same).sum(0))
        p, z = hits / n, _SIGMAS
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * ((p * (1 - p) + z * z / (4 * n)) / n) ** 0.5 / (1 + z * z / n)
        return Interval(p, max(0.0, middle - half), min(1.0, middle + half))

    def accuracy(self) -> Score | None:
        """Return the accuracies and their paired difference; None without a single label.

        Rows of one sample are not independent, so the interval is over samples:

            change = sum gap / sum rows
            half   = 1.96 sqrt(n / (n - 1) sum (gap - change rows)^2) / sum rows
        """
        right = np.concatenate([np.zeros((0, 3), np.int64), *self._right])
        right = right[right[:, 2] > 0]
        if not len(right):
            return None
        exact, other, rows = right.T.astype(np.float64)
        count, gap, samples = float(rows.sum()), other - exact, len(rows)
        change = float(gap.sum()) / count
        spread = float(((gap - change * rows) ** 2).sum())
        half = 1.0  # nothing is known from one sample
        if samples > 1:
            half = _SIGMAS * (spread * samples / (samples - 1)) ** 0.5 / count
        return Score(
            "accuracy",
            float(exact.sum()) / count,
            float(other.sum()) / count,
            Interval(change, change - half, change + half),
        )

    def _misfit(self, labels: NDArray[Any], outputs: Outputs) -> DataMismatch:
        return DataMismatch(
            "the labels fit no output",
            where=self.data.labels_stand_in,
            got=f"labels {list(labels.shape)} beside "
            + ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items()),
            expected="one class for each sample, token or pixel that an output has scores for",
            todo="one-hot labels become classes with .argmax(-1); other tasks need --score",
        )


def _class_scores(
    outputs: Outputs, samples: int, labels: NDArray[Any] | None
) -> tuple[str, int] | None:
    """Return the output that looks like scores of classes, and the axis of its classes.

    (samples, classes); (samples, tokens, classes) where its name says logits; and, where labels
    are one a row, whatever has a row for each: (samples, classes, height, width) among them.
    """
    for name, array in outputs.items():
        if array.dtype.kind != "f" or array.ndim < 2 or len(array) != samples:
            continue
        is_table = array.ndim == 2 and not _are_embeddings(array)
        is_tokens = array.ndim == 3 and "logit" in name.lower() and labels is None
        for axis in (array.ndim - 1, 1):
            rows = array.shape[:axis] + array.shape[axis + 1 :]
            fits = labels is not None and labels.ndim > 1 and labels.shape == rows
            if array.shape[axis] > 1 and (fits or is_table or is_tokens):
                return name, axis
    return None


def _are_embeddings(array: NDArray[np.generic]) -> bool:
    """Return whether every row has length 1: directions, not scores of classes."""
    rows = array.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    return bool((np.abs(lengths - 1) < 1e-3).all() and (rows < 0).any())


def _counts(hits: NDArray[np.bool_]) -> Counts:
    """Return per sample how many rows hit, and how many there are.

    hits  (samples, ...)  ->  (samples, 2)
    """
    each = hits.reshape(len(hits), -1)
    return np.stack([each.sum(1), np.full(len(each), each.shape[1])], 1)


def _known(labels: NDArray[Any], classes: int) -> NDArray[np.bool_]:
    """Return which labels are known; a negative one says that nobody knows."""
    if labels.max(initial=0) >= classes:
        raise DataMismatch(
            "a label names a class that the model has not",
            got=str(labels.max()),
            expected=f"0 to {classes - 1}, or less than 0 for a sample without a label",
        )
    known: NDArray[np.bool_] = labels >= 0
    return known
