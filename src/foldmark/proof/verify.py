"""The three claims of a quantized model, measured together: smaller, faster, as good."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import CheckFailed, ModelsDiffer, NoData
from foldmark.formats.onnx_file import read_model
from foldmark.proof.bound import SpeedBound, speed_bound
from foldmark.proof.kernels import Kernels, kernels_of
from foldmark.proof.quality import Quality, ScoreFunction, measure_quality
from foldmark.proof.saturation import Saturation, saturations
from foldmark.proof.size import SizeAccount, account_of
from foldmark.runtimes.batches import Data, DataLike, open_data
from foldmark.runtimes.inputs import model_inputs
from foldmark.runtimes.machine import Machine, machine, measure_roofs
from foldmark.runtimes.onnxruntime import Optimization, Session, available_threads
from foldmark.runtimes.profile import execute
from foldmark.runtimes.timing import Comparison, compare_speed

__all__ = ["Demands", "Proof", "check", "verify"]


@dataclass(frozen=True)
class Demands:
    """What must hold, each None or False when nothing is demanded.

    Attributes:
        max_drop: the task score may fall by so much (accuracy: 0.01 is one point); without a
            score, the top-1 disagreement, or the relative distance of the worst output.
        min_speedup: at least so many times faster at every batch size, noise subtracted.
        require_integer: every multiply-accumulate with a weight must run on integers.
    """

    max_drop: float | None = None
    min_speedup: float | None = None
    require_integer: bool = False


@dataclass(frozen=True)
class Proof:
    """A quantized model beside its float original.

    Attributes:
        float_path: the float model.
        quantized_path: the quantized one.
        data: where the samples come from.
        data_is_random: True when they are not real data.
        threads: threads of one operator.
        machine: the processor.
        runtime: name and version of what ran the models.
        float_size: the float model's bytes.
        size: the quantized model's bytes.
        quality: outputs and score, on all samples.
        speeds: one comparison per batch size.
        kernels: what executed the quantized model.
        bound: how much faster it could be at all on this machine.
        saturations: per u8 x s8 operator, the pairs that processors without VNNI cut short.
    """

    float_path: str
    quantized_path: str
    data: str
    data_is_random: bool
    threads: int
    machine: Machine
    runtime: str
    float_size: SizeAccount
    size: SizeAccount
    quality: Quality
    speeds: tuple[Comparison, ...]
    kernels: Kernels
    bound: SpeedBound
    saturations: tuple[Saturation, ...]


def verify(
    quantized: str | Path,
    float_model: str | Path,
    data: DataLike,
    *,
    labels: NDArray[np.integer] | None = None,
    label_name: str = "labels",
    batch_sizes: Sequence[int] = (1, 8),
    threads: int | None = None,
    seconds: float = 2.0,
    score: ScoreFunction | None = None,
    score_name: str = "score",
) -> Proof:
    """Measure size, quality, speed and kernels of a quantized model beside its float original.

    Args:
        quantized: path of the quantized model.
        float_model: path of the model that it was made from.
        data: samples; see `open_data`.
        labels: one class per sample, for an accuracy.
        label_name: name of the labels beside the inputs, without `labels`.
        batch_sizes: samples a run in the speed measurement.
        threads: threads of one operator, all when None.
        seconds: time spent on each batch size.
        score: the task's own score; takes all outputs and the labels, more is better.
        score_name: what to call it.

    Raises:
        ModelsDiffer: the two have other inputs or outputs.
        NoData: no samples, or fewer than the smallest batch size.
    """
    float_path, path = Path(float_model), Path(quantized)
    real, made = read_model(float_path), read_model(path)
    _check_interfaces(real, made)
    samples = open_data(data, real, labels, label_name)
    used = threads or available_threads()
    float_session = Session(float_path, threads=used)
    session = Session(path, threads=used)
    quality = measure_quality(float_session, session, samples, score=score, score_name=score_name)
    speeds = _speeds(float_session, session, samples, batch_sizes, seconds)
    feeds = next(iter(samples.batches(speeds[-1].samples))).feeds
    run = partial(execute, feeds=feeds, threads=used)
    execution = run(made, folder=path.parent)
    float_execution = run(real, folder=float_path.parent)
    float_kernels = kernels_of(real, float_execution)
    fused = run(made, folder=path.parent, optimization=Optimization.EXTENDED, runs=1)
    roofs = measure_roofs(used)
    return Proof(
        str(float_path),
        str(path),
        samples.description,
        samples.is_random,
        used,
        machine(),
        _runtime(),
        account_of(real, float_path),
        account_of(made, path),
        quality,
        speeds,
        kernels_of(made, execution, float_execution),
        speed_bound(float_kernels, roofs),
        saturations(fused, samples, speeds[-1].samples),
    )


def check(proof: Proof, demands: Demands) -> None:
    """Raise CheckFailed for the first demand that the proof does not meet."""
    if demands.max_drop is not None:
        drop, what = drop_of(proof.quality)
        if drop > demands.max_drop:
            raise CheckFailed(
                f"{what} is too large", got=f"{drop:.4g}", expected=f"at most {demands.max_drop:g}"
            )
    if demands.min_speedup is not None:
        slowest = min(proof.speeds, key=lambda each: each.ratio.low)
        if slowest.ratio.low < demands.min_speedup:
            raise CheckFailed(
                f"not fast enough at batch size {slowest.samples}",
                got=f"{slowest.ratio.value:.2f} times, 95 % sure of {slowest.ratio.low:.2f}",
                expected=f"at least {demands.min_speedup:g}",
            )
    if demands.require_integer and proof.kernels.integer_share < 1:
        raise CheckFailed(
            "not every multiply-accumulate with a weight ran on integers",
            got=f"{100 * proof.kernels.integer_share:.1f} %",
            expected="100 %",
        )


def drop_of(quality: Quality) -> tuple[float, str]:
    """Return how much worse the quantized model is, and by which measure."""
    if quality.score is not None:
        return -quality.score.change.value, f"the drop in {quality.score.name}"
    if quality.top1_agreement is not None:
        return 1 - quality.top1_agreement.value, "the top-1 disagreement"
    return max(each.relative for each in quality.outputs), "the outputs' relative distance"


def _speeds(
    float_session: Session,
    session: Session,
    data: Data,
    batch_sizes: Sequence[int],
    seconds: float,
) -> tuple[Comparison, ...]:
    speeds: dict[int, Comparison] = {}
    for size in sorted(set(batch_sizes)):
        batch = next(iter(data.batches(size)))
        if batch.samples in speeds:
            continue  # the data, or an axis that the model fixes, allows no more
        speeds[batch.samples] = compare_speed(
            partial(float_session.run, batch.feeds),
            partial(session.run, batch.feeds, float_session.outputs),
            samples=batch.samples,
            seconds=seconds,
        )
    if not speeds:
        raise NoData("no batch size given", expected="at least one, such as 1")
    return tuple(speeds.values())


def _check_interfaces(real: onnx.ModelProto, made: onnx.ModelProto) -> None:
    wanted = {each.name: each.dtype for each in model_inputs(real)}
    given = {each.name: each.dtype for each in model_inputs(made)}
    if wanted != given:
        raise ModelsDiffer(
            "the two models take different inputs",
            got=", ".join(f"{n} {d}" for n, d in given.items()),
            expected=", ".join(f"{n} {d}" for n, d in wanted.items()),
        )
    outputs = [value.name for value in real.graph.output]
    missing = set(outputs) - {value.name for value in made.graph.output}
    if missing:
        raise ModelsDiffer(f"the quantized model lacks the output {min(missing)!r}")


def _runtime() -> str:
    import onnxruntime  # noqa: PLC0415  (only its version is wanted here)

    return f"ONNX Runtime {onnxruntime.__version__}, CPU"
