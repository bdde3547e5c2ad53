"""How far a quantized model's outputs are from the float model's, and what its task loses."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import BadInput, DataMismatch, NonFiniteValue
from foldmark.proof.classes import ClassCounts, Outputs, Score
from foldmark.runtimes.batches import Data
from foldmark.runtimes.runtime import Runnable
from foldmark.runtimes.timing import Interval

__all__ = ["OutputDistance", "Quality", "Score", "measure_quality"]

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
class Quality:
    """What quantization did to the outputs.

    Attributes:
        samples: samples seen.
        outputs: one distance per output.
        top1_agreement: part of the samples (rows, where labels are of rows: tokens, pixels) with
            the same best class, 0 to 1, and its interval; None when no output looks like class
            scores.
        rows: rows of a sample that have a class each, 1 for one class a sample.
        score: the task score; None without labels or a score function.
    """

    samples: int
    outputs: tuple[OutputDistance, ...]
    top1_agreement: Interval | None
    score: Score | None
    rows: int = 1


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
    classes = ClassCounts(data, is_judged=score is None)
    kept: list[tuple[Outputs, Outputs, NDArray[np.generic] | None]] = []
    samples = 0
    for batch in data.batches(batch_size):
        real = float_session.run(batch.feeds)
        other = quantized_session.run(batch.feeds, list(real))
        for name in real:
            _add(sums[name], name, real[name], other[name], batch.samples)
        classes.add(batch, real, other)
        if score is not None:
            kept.append((dict(real), other, batch.labels))
        samples += batch.samples
    return Quality(
        samples,
        tuple(_distance(name, each, samples) for name, each in sums.items()),
        classes.agreement(),
        classes.accuracy() if score is None else _scored(kept, score, score_name, together),
        classes.rows,
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
