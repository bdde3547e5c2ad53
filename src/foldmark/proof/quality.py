"""How far a quantized model's outputs are from the float model's, and what its task loses."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import BadInput, DataMismatch, NonFiniteValue
from foldmark.runtimes.batches import Data
from foldmark.runtimes.runtime import Runnable
from foldmark.runtimes.timing import Interval

__all__ = ["OutputDistance", "Quality", "Score", "measure_quality"]

Outputs = Mapping[str, NDArray[np.generic]]
ScoreFunction = Callable[[Outputs, NDArray[np.generic] | None], float]
_RESAMPLES = 300


@dataclass(frozen=True)
class OutputDistance:
    """Distance of one output, over all samples.

    Attributes:
        name: the output.
        relative: root mean square of the difference over that of the float output.
        cosine: mean over samples of 1 - cosine of the flattened outputs.
        largest: largest absolute difference.
    """

    name: str
    relative: float
    cosine: float
    largest: float


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


@dataclass(frozen=True)
class Quality:
    """What quantization did to the outputs.

    Attributes:
        samples: samples seen.
        outputs: one distance per output.
        top1_agreement: part of the samples with the same best class, 0 to 1, and its interval;
            None when no output looks like class scores.
        score: the task score; None without labels or a score function.
    """

    samples: int
    outputs: tuple[OutputDistance, ...]
    top1_agreement: Interval | None
    score: Score | None


@dataclass
class _Sums:
    """Running sums over samples of one output."""

    difference: float = 0.0
    power: float = 0.0
    cosine: float = 0.0
    largest: float = 0.0


def measure_quality(
    float_session: Runnable,
    quantized_session: Runnable,
    data: Data,
    *,
    batch_size: int = 16,
    score: ScoreFunction | None = None,
    score_name: str = "score",
    together: int = 1,
) -> Quality:
    """Run both models on all samples and compare their outputs.

    Memory is one batch, except with `score`, which needs every sample's outputs at once.

    Args:
        float_session: the float model.
        quantized_session: the quantized model, with outputs of the same names.
        data: samples, with labels for an accuracy.
        batch_size: samples of one run.
        score: takes all outputs and the labels, returns a figure where more is better.
        score_name: what to call it.
        together: consecutive samples that the score takes together (2: the sentences of a pair);
            its interval draws them together.

    Raises NonFiniteValue when the float model gives NaN or infinity.
    """
    sums: dict[str, _Sums] = defaultdict(_Sums)
    agree: list[NDArray[np.bool_]] = []
    right: list[NDArray[np.bool_]] = []
    kept: list[tuple[Outputs, Outputs, NDArray[np.generic] | None]] = []
    samples = 0
    for batch in data.batches(batch_size):
        real = float_session.run(batch.feeds)
        other = quantized_session.run(batch.feeds, list(real))
        for name in real:
            _add(sums[name], name, real[name], other[name], batch.samples)
        classes = _class_scores(real, batch.samples)
        if classes is not None:
            best = real[classes].argmax(1), other[classes].argmax(1)
            agree.append(best[0] == best[1])
            if batch.labels is not None and batch.labels.ndim == 1:
                known = _known(batch.labels, real[classes].shape[1])
                hits = np.stack([best[0] == batch.labels, best[1] == batch.labels], 1)
                right.append(hits[known])
        if score is not None:
            kept.append((dict(real), other, batch.labels))
        samples += batch.samples
    return Quality(
        samples,
        tuple(_distance(name, each, samples) for name, each in sums.items()),
        _share(np.concatenate(agree)) if agree else None,
        _scored(kept, score, score_name, together)
        if score is not None
        else _accuracy(np.concatenate(right))
        if sum(map(len, right))
        else None,
    )


def _add(
    sums: _Sums,
    name: str,
    real: NDArray[np.generic],
    other: NDArray[np.generic],
    samples: int,
) -> None:
    if real.dtype.kind not in "fiu" or not real.size:
        return
    first, second = real.astype(np.float64), other.astype(np.float64)
    if not np.isfinite(first).all():
        raise NonFiniteValue("the float model gives NaN or infinity", where=f"output {name!r}")
    gap = second - first
    sums.difference += float((gap**2).sum())
    sums.power += float((first**2).sum())
    sums.largest = max(sums.largest, float(np.abs(gap).max()))
    rows = samples if real.ndim and real.shape[0] % samples == 0 else 1
    a, b = first.reshape(rows, -1), second.reshape(rows, -1)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    same = np.where(norms > 0, (a * b).sum(1) / np.where(norms > 0, norms, 1), 1.0)
    sums.cosine += float((1 - same).mean()) * samples


def _distance(name: str, sums: _Sums, samples: int) -> OutputDistance:
    relative = (sums.difference / sums.power) ** 0.5 if sums.power else float(sums.difference > 0)
    return OutputDistance(name, relative, sums.cosine / samples, sums.largest)


def _class_scores(outputs: Outputs, samples: int) -> str | None:
    """Return the output that looks like a score per class: float, (samples, more than one)."""
    for name, array in outputs.items():
        is_table = array.ndim == 2 and array.shape[0] == samples and array.shape[1] > 1
        if is_table and array.dtype.kind == "f" and not _are_embeddings(array):
            return name
    return None


def _are_embeddings(array: NDArray[np.generic]) -> bool:
    """Return whether every row has length 1: directions, not scores of classes."""
    rows = array.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    return bool((np.abs(lengths - 1) < 1e-3).all() and (rows < 0).any())


def _known(labels: NDArray[np.integer], classes: int) -> NDArray[np.bool_]:
    """Return which samples have a label; a negative one says that nobody knows."""
    if labels.max(initial=0) >= classes:
        raise DataMismatch(
            "a label names a class that the model has not",
            got=str(labels.max()),
            expected=f"0 to {classes - 1}, or less than 0 for a sample without a label",
        )
    known: NDArray[np.bool_] = labels >= 0
    return known


def _share(hits: NDArray[np.bool_]) -> Interval:
    """Return a proportion with Wilson's 95 % interval."""
    n, p, z = len(hits), float(hits.mean()), 1.959964
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * ((p * (1 - p) + z * z / (4 * n)) / n) ** 0.5 / (1 + z * z / n)
    return Interval(p, max(0.0, middle - half), min(1.0, middle + half))


def _accuracy(right: NDArray[np.bool_]) -> Score:
    """Return the accuracies and their paired difference.  right (samples, 2)."""
    gap = right[:, 1].astype(float) - right[:, 0]
    half = 1.959964 * float(gap.std(ddof=1)) / len(gap) ** 0.5 if len(gap) > 1 else 1.0
    change = float(gap.mean())
    accuracies = right.mean(0)
    return Score(
        "accuracy",
        float(accuracies[0]),
        float(accuracies[1]),
        Interval(change, change - half, change + half),
    )


def _scored(
    kept: list[tuple[Outputs, Outputs, NDArray[np.generic] | None]],
    score: ScoreFunction | None,
    name: str,
    together: int,
) -> Score:
    assert score is not None
    real, other = _joined([each[0] for each in kept]), _joined([each[1] for each in kept])
    given = [k[2] for k in kept if k[2] is not None]
    labels = np.concatenate(given) if len(given) == len(kept) else None
    samples = len(next(iter(real.values())))
    if samples % together:
        raise DataMismatch(
            "the samples are not whole groups",
            got=f"{samples}",
            expected=f"a multiple of {together}",
        )
    random = np.random.default_rng(0)
    draws = []
    for _ in range(_RESAMPLES):
        groups = random.integers(0, samples // together, samples // together)
        rows = (groups[:, None] * together + np.arange(together)).ravel()
        picked = None if labels is None else labels[rows]
        draws.append(
            _figure(score, {n: a[rows] for n, a in other.items()}, picked, name)
            - _figure(score, {n: a[rows] for n, a in real.items()}, picked, name)
        )
    before, after = _figure(score, real, labels, name), _figure(score, other, labels, name)
    if not np.isfinite([before, after]).all():
        raise NonFiniteValue("the score is not a number", where=name, got=f"{before} and {after}")
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return Score(name, before, after, Interval(after - before, float(low), float(high)))


def _figure(
    score: ScoreFunction, outputs: Outputs, labels: NDArray[np.generic] | None, name: str
) -> float:
    """Return what the user's function gives, or say what is wrong with it."""
    try:
        return float(score(outputs, labels))
    except Exception as error:
        raise BadInput(
            f"the score raised {type(error).__name__}: {error}",
            where=name,
            expected="a function of (outputs, labels) that returns a number",
        ) from error


def _joined(batches: list[Outputs]) -> dict[str, NDArray[np.generic]]:
    return {name: np.concatenate([each[name] for each in batches]) for name in batches[0]}
