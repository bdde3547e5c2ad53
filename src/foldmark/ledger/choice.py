"""Which outputs are compared, and how: asked for, or read off their shape and name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import ModelsDiffer, OutputNotComparable
from foldmark.ledger.layout import Layout, labels_that_fit_none
from foldmark.ledger.metrics import Metric

__all__ = ["MetricChoice", "check_same_outputs", "choose_metric", "has_elements"]

_LOGIT_NAMES = ("logit", "prob", "score", "class", "softmax")
_VECTOR_NAMES = ("embed", "pool", "feature", "hidden", "vector")
# What a decoder hands to its next run: keys and values, not answers.
_CACHE_NAMES = ("present", "past_")


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
    samples: int = 1,
    labels: NDArray[np.generic] | None = None,
    metric: Metric | None = None,
    outputs: Sequence[str] = (),
) -> MetricChoice:
    """Choose outputs and metric.

    Of several outputs, labels are of the one that has a row of classes for each of them; what a
    decoder keeps for its next run is left out.

    model    the float model, for the operators behind its outputs
    results  its outputs on a first batch
    samples  how many that batch holds
    labels   its labels

    Raises:
        OutputNotComparable: an output asked for that is not there or not of floats; none of
            floats at all; not one element in them.
        DataMismatch: labels that fit no output.
    """
    comparable = [name for name, array in results.items() if array.dtype.kind == "f"]
    for name in outputs:
        if name not in comparable:
            raise OutputNotComparable(
                "no such output of floats", where=f"output {name!r}", expected=_listed(results)
            )
    if not comparable:
        raise OutputNotComparable("no output holds floats", got=_listed(results))
    chosen = tuple(dict.fromkeys(outputs)) or _compared(comparable, results, samples, labels)
    if not any(results[name].size for name in chosen):
        raise OutputNotComparable(
            "no element to compare in any sample's outputs", got=_listed(results)
        )
    if labels is not None:
        _check_labels(chosen, results, samples, labels)
    probable = frozenset(name for name in chosen if _is_softmax(model, name))
    if metric is not None:
        return MetricChoice(
            metric, chosen, probable, f"{metric.title[0].upper()}{metric.title[1:]}, as asked for."
        )
    found, reason = _guess(chosen, results, samples, labels)
    left = len(comparable) - len(chosen)
    if left and not outputs:
        others = "another output is" if left == 1 else f"{left} other outputs are"
        reason = f"{reason[:-1]}; {others} left out (--output)."
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


def _compared(
    names: Sequence[str],
    results: Mapping[str, NDArray[np.generic]],
    samples: int,
    labels: NDArray[np.generic] | None,
) -> tuple[str, ...]:
    """Return the outputs that are compared when none is asked for."""
    answers = [name for name in names if not name.lower().startswith(_CACHE_NAMES)]
    if labels is not None and len(answers) > 1:
        labelled = [name for name in answers if _has_row_each(results[name], samples, labels)]
        named = [name for name in labelled if _is_named(name, _LOGIT_NAMES)]
        if labelled:
            return tuple(named or labelled)[:1]
    return tuple(answers or names)


def _has_row_each(output: NDArray[np.generic], samples: int, labels: NDArray[np.generic]) -> bool:
    """Return whether an output has one row of classes for every label, no more."""
    if output.ndim < 2 or output.shape[0] != samples:
        return False
    layout = Layout.of("", output.shape, samples)
    _, rows, classes = layout.rows
    return classes > 1 and labels.size == samples * rows


def _check_labels(
    names: Sequence[str],
    results: Mapping[str, NDArray[np.generic]],
    samples: int,
    labels: NDArray[np.generic],
) -> None:
    layouts = [Layout.of(name, results[name].shape, samples) for name in names]
    if not any(layout.takes(labels) or layout.rows[2] < 2 for layout in layouts):
        raise labels_that_fit_none(labels, layouts)


def _is_named(name: str, parts: Sequence[str]) -> bool:
    return any(part in name.lower() for part in parts)


def _guess(
    names: tuple[str, ...],
    results: Mapping[str, NDArray[np.generic]],
    samples: int,
    labels: NDArray[np.generic] | None,
) -> tuple[Metric, str]:
    if len(names) > 1:
        return Metric.RELATIVE_ERROR, (
            f"Relative squared error, since {len(names)} outputs are compared together."
        )
    name, array = names[0], results[names[0]]
    shape = list(array.shape)
    table = array.ndim == 2 and array.shape[1] > 1
    if labels is not None and (table or _has_row_each(array, samples, labels)):
        return Metric.CROSS_ENTROPY, f"Cross-entropy, since labels are given for {name!r} {shape}."
    if _is_named(name, _LOGIT_NAMES) and array.ndim >= 2 and array.shape[-1] > 1:
        return Metric.DIVERGENCE, f"KL divergence, since {name!r} {shape} looks like class scores."
    if _is_named(name, _VECTOR_NAMES) and array.ndim >= 2 and array.shape[-1] > 1:
        return Metric.COSINE, f"1 - cosine, since {name!r} {shape} looks like an embedding."
    return Metric.RELATIVE_ERROR, (
        f"Relative squared error, since nothing says what {name!r} {shape} is."
    )


def _is_softmax(model: onnx.ModelProto, name: str) -> bool:
    return any(name in node.output and node.op_type == "Softmax" for node in model.graph.node)


def _listed(results: Mapping[str, NDArray[np.generic]]) -> str:
    return ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in results.items()) or "none"
