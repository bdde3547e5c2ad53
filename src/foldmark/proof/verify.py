"""The three claims of a quantized model, measured together: smaller, faster, as good."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import CheckFailed, ModelsDiffer, NoData
from foldmark.formats.onnx_file import read_model
from foldmark.proof.bound import SpeedBound, speed_bound
from foldmark.proof.kernels import Kernels, kernels_of
from foldmark.proof.layers import kernels_of_layers
from foldmark.proof.quality import Quality, ScoreFunction, measure_quality
from foldmark.proof.saturation import Saturation, SaturationCost, saturation_cost, saturations
from foldmark.proof.size import SizeAccount, account_of
from foldmark.runtimes.batches import Data, DataLike, open_data
from foldmark.runtimes.inputs import model_inputs
from foldmark.runtimes.machine import Machine, machine, measure_roofs
from foldmark.runtimes.onnxruntime import Optimization, available_threads
from foldmark.runtimes.openvino import executed_layers
from foldmark.runtimes.profile import execute
from foldmark.runtimes.runtime import Runnable, Runtime, open_session, runtime_name
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
        saturation_cost: what they would do to the outputs; None when no pair is cut short, or
            when the model can't be run so.
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
    saturation_cost: SaturationCost | None = None


def verify(
    quantized: str | Path,
    float_model: str | Path,
    data: DataLike,
    *,
    labels: NDArray[Any] | str | Path | None = None,
    label_name: str = "labels",
    batch_sizes: Sequence[int] = (1, 8),
    threads: int | None = None,
    seconds: float = 2.0,
    score: ScoreFunction | None = None,
    score_name: str = "score",
    together: int = 1,
    runtime: Runtime = Runtime.ONNXRUNTIME,
) -> Proof:
    """Measure size, quality, speed and kernels of a quantized model beside its float original.

    Args:
        quantized: path of the quantized model.
        float_model: path of the model that it was made from.
        data: samples; see `open_data`.
        labels: one class per sample, for an accuracy; what the score reads, with `score`; or
            the path of a file of them.
        label_name: name of the labels beside the inputs, without `labels`.
        batch_sizes: samples a run in the speed measurement.
        threads: threads of one operator, all when None.
        seconds: time spent on each batch size.
        score: the task's own score; takes all outputs and the labels, more is better.
        score_name: what to call it.
        together: consecutive samples that the score takes together, such as 2 for pairs.
        runtime: what runs both models.

    Raises:
        MissingExtra: the runtime is not installed.
        ModelsDiffer: the two have other inputs or outputs.
        NoData: no samples, or fewer than the smallest batch size.
    """
    float_path, path = Path(float_model), Path(quantized)
    real, made = read_model(float_path), read_model(path)
    _check_interfaces(real, made)
    samples = open_data(data, real, labels, label_name)
    if score is not None:
        samples = replace(samples, label_kinds="iuf")
    used = threads or available_threads()
    float_session = open_session(float_path, runtime, used)
    session = open_session(path, runtime, used)
    quality = measure_quality(
        float_session, session, samples, score=score, score_name=score_name, together=together
    )
    speeds = _speeds(float_session, session, samples, batch_sizes, seconds)
    feeds = next(iter(samples.batches(speeds[-1].samples))).feeds
    kernels, float_kernels = _kernels(runtime, (real, float_path), (made, path), feeds, used)
    fused = execute(
        made, feeds, folder=path.parent, threads=used, optimization=Optimization.EXTENDED, runs=1
    )
    cut = saturations(fused, samples, speeds[-1].samples)
    cost = None
    if any(each.saturated for each in cut):
        cost = saturation_cost(
            float_session,
            fused,
            samples,
            float_kernels.macs / speeds[-1].samples,
            threads=used,
            score=score,
            score_name=score_name,
            together=together,
        )
    return Proof(
        str(float_path),
        str(path),
        samples.description,
        samples.is_random,
        used,
        machine(),
        runtime_name(runtime),
        account_of(float_path),
        account_of(path),
        quality,
        speeds,
        kernels,
        speed_bound(float_kernels, measure_roofs(used)),
        cut,
        cost,
    )


def _kernels(
    runtime: Runtime,
    float_model: tuple[onnx.ModelProto, Path],
    quantized: tuple[onnx.ModelProto, Path],
    feeds: Mapping[str, NDArray[np.generic]],
    threads: int,
) -> tuple[Kernels, Kernels]:
    """Return what executed the quantized model, and what executed the float one."""
    (real, float_path), (made, path) = float_model, quantized
    if runtime is Runtime.OPENVINO:
        float_layers = executed_layers(float_path, feeds, threads=threads)
        layers = executed_layers(path, feeds, threads=threads)
        return kernels_of_layers(made, layers, float_layers), kernels_of_layers(real, float_layers)
    execution = execute(made, feeds, folder=path.parent, threads=threads)
    float_execution = execute(real, feeds, folder=float_path.parent, threads=threads)
    return kernels_of(made, execution, float_execution), kernels_of(real, float_execution)


def check(proof: Proof, demands: Demands) -> None:
    """Raise CheckFailed for the first demand that the proof does not meet."""
    if demands.max_drop is not None:
        drop, what = drop_of(proof.quality)
        if drop > demands.max_drop + 1e-9:  # 0.005 is a bit more to a float
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
    if demands.require_integer and proof.kernels.hidden:
        raise CheckFailed(
            "the runtime does not show what ran inside control flow",
            where=", ".join(proof.kernels.hidden),
            expected="every multiply-accumulate with a weight on integers",
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
        return 0.0 - quality.score.change.value, f"the drop in {quality.score.name}"
    if quality.top1_agreement is not None:
        return 1 - quality.top1_agreement.value, "the top-1 disagreement"
    return max(each.relative for each in quality.outputs), "the outputs' relative distance"


def _speeds(
    float_session: Runnable,
    session: Runnable,
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
