"""Which outputs are compared, and how: asked for, or read off their shape and name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import ModelsDiffer, OutputNotComparable
from foldmark.ledger.metrics import Metric

__all__ = ["MetricChoice", "check_same_outputs", "choose_metric", "has_elements"]

_LOGIT_NAMES = ("logit", "prob", "score", "class", "softmax")
_VECTOR_NAMES = ("embed", "pool", "feature", "hidden", "vector")


@dataclass(frozen=True)
class MetricChoice:
    """What is compared.

    Attributes:
        metric: the comparison.
        outputs: the names of the outputs that are compared.
        probabilities: those of them that are already a softmax.
        reason: one sentence that says why.
        powers: sum of squares per sample of each of several outputs, which then count alike.
    """

    metric: Metric
    outputs: tuple[str, ...]
    probabilities: frozenset[str]
    reason: str
    powers: Mapping[str, float] = field(default_factory=dict)


def has_elements(results: Mapping[str, NDArray[np.generic]], outputs: Sequence[str]) -> bool:
    """Return True when one of the outputs (of those of floats when none are named) has any."""
    floats = [name for name, array in results.items() if array.dtype.kind == "f"]
    return any(name in results and results[name].size for name in outputs or floats)


def choose_metric(
    model: onnx.ModelProto,
    results: Mapping[str, NDArray[np.generic]],
    *,
    has_labels: bool,
    metric: Metric | None = None,
    outputs: Sequence[str] = (),
) -> MetricChoice:
    """Choose outputs and metric.

    model    the float model, for the operators behind its outputs
    results  its outputs on a first batch

    Raises:
        OutputNotComparable: an output asked for that is not there or not of floats; none of
            floats at all; not one element in them.
    """
    comparable = [name for name, array in results.items() if array.dtype.kind == "f"]
    for name in outputs:
        if name not in comparable:
            raise OutputNotComparable(
                "no such output of floats", where=f"output {name!r}", expected=_listed(results)
            )
    if not comparable:
        raise OutputNotComparable("no output holds floats", got=_listed(results))
    chosen = tuple(dict.fromkeys(outputs)) or tuple(comparable)
    if not any(results[name].size for name in chosen):
        raise OutputNotComparable(
            "no element to compare in any sample's outputs", got=_listed(results)
        )
    probable = frozenset(name for name in chosen if _is_softmax(model, name))
    if metric is not None:
        return MetricChoice(
            metric, chosen, probable, f"{metric.title[0].upper()}{metric.title[1:]}, as asked for."
        )
    found, reason = _guess(chosen, results, has_labels)
    return MetricChoice(found, chosen, probable, reason)


def check_same_outputs(
    exact: Mapping[str, NDArray[np.generic]],
    quantized: Mapping[str, NDArray[np.generic]],
    names: Sequence[str],
) -> None:
    """Refuse two models whose outputs can't be laid side by side.

    Raises:
        ModelsDiffer: an output is missing or of another shape in the quantized model.
    """
    for name in names:
        if name not in quantized:
            raise ModelsDiffer(
                f"the quantized model has no output {name!r}", got=_listed(quantized)
            )
        if exact[name].shape != quantized[name].shape:
            raise ModelsDiffer(
                f"output {name!r} has another shape in the quantized model",
                got=str(list(quantized[name].shape)),
                expected=str(list(exact[name].shape)),
            )


def _guess(
    names: tuple[str, ...], results: Mapping[str, NDArray[np.generic]], has_labels: bool
) -> tuple[Metric, str]:
    if len(names) > 1:
        return Metric.RELATIVE_ERROR, (
            f"Relative squared error, since {len(names)} outputs are compared together."
        )
    name, array = names[0], results[names[0]]
    low, shape = name.lower(), list(array.shape)
    classes = array.ndim == 2 and 2 <= array.shape[1] <= 100_000
    if has_labels and classes:
        return Metric.CROSS_ENTROPY, f"Cross-entropy, since labels are given for {name!r} {shape}."
    if any(part in low for part in _LOGIT_NAMES) and array.ndim >= 2 and array.shape[-1] > 1:
        return Metric.DIVERGENCE, f"KL divergence, since {name!r} {shape} looks like class scores."
    if any(part in low for part in _VECTOR_NAMES) and array.ndim >= 2 and array.shape[-1] > 1:
        return Metric.COSINE, f"1 - cosine, since {name!r} {shape} looks like an embedding."
    return Metric.RELATIVE_ERROR, (
        f"Relative squared error, since nothing says what {name!r} {shape} is."
    )


def _is_softmax(model: onnx.ModelProto, name: str) -> bool:
    return any(name in node.output and node.op_type == "Softmax" for node in model.graph.node)


def _listed(results: Mapping[str, NDArray[np.generic]]) -> str:
    return ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in results.items()) or "none"
