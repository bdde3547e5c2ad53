"""`foldmark.explain`: two models and some inputs become an account."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import BadInput, DataMismatch
from foldmark.formats.onnx_file import ModelSource, read_model
from foldmark.ledger.account import TOLERANCE, Account, AccountTaker
from foldmark.ledger.choice import MetricChoice, check_same_outputs, choose_metric, has_elements
from foldmark.ledger.cures import find_cures
from foldmark.ledger.entries import Entry, Subtotal
from foldmark.ledger.findings import Cost
from foldmark.ledger.fixes import Fix
from foldmark.ledger.kernels import KernelDifference, kernel_differences
from foldmark.ledger.metrics import Metric
from foldmark.ledger.models import Models, Way
from foldmark.ledger.progress import Progress
from foldmark.ledger.room import check_batch, check_weights
from foldmark.report.explanation import Explanation
from foldmark.report.words import site_titles
from foldmark.runtimes.batches import Batch, Data, DataLike, open_data

__all__ = ["choice_for", "explain"]

_LARGEST_BATCH = 32
# A batch's errors may take so much memory; what else it takes is several times that. Small models
# gain most from batches, and of large ones a sample alone keeps the processor busy.
_BATCH_BYTES = 32_000_000
# Where samples of a batch can't be told apart, intervals are drawn over batches: up to so many
# samples each is a batch of its own.
_ALONE = 32
# Where scales are chosen at run time they depend on the batch, which had better be a large one.
_DYNAMIC_BATCHES = 8
# Several outputs are weighed against each other on so many samples.
_WEIGHED = 32
# Cures are priced on batches of so many, whose errors take no more than this.
_CURED = 16
_CURED_BYTES = 64_000_000
# So much of the time is spent when the account is taken and cures are to come.
_ACCOUNTED = 0.6
# From this part of the change on, it is asked which operators make up the kernel line.
_NOTABLE = 0.01


def explain(
    float_model: ModelSource | None,
    quantized_model: ModelSource,
    data: DataLike,
    *,
    labels: NDArray[np.integer] | str | Path | None = None,
    metric: Metric | str | None = None,
    outputs: Sequence[str] = (),
    samples: int | None = None,
    batch_size: int | None = None,
    label_name: str = "labels",
    cures: bool = True,
    on_progress: Callable[[float], None] | None = None,
) -> Explanation:
    """Say which quantization sites moved the output, by how much each, and why.

    float_model      path, bytes or ModelProto; None explains activations alone
    quantized_model  path, bytes or ModelProto
    data             see `open_data`; first axis = samples
    labels           integers, one per sample (or per row of the output), negative ones left out;
                     or the path of a file of them
    metric           what is compared; chosen by the output's name and shape when None
    outputs          names of the outputs that are compared; all of floats when empty
    samples          at most so many
    batch_size       samples that run at once; memory is one batch. By default as many as record
                     32 MB of errors, 32 at most; one up to 32 samples, more beyond, where the
                     samples of a batch can't be told apart and intervals are drawn over batches;
                     where scales are chosen at run time, from the whole batch, an eighth of the
                     samples
    label_name       array of `data` that holds the labels, where there is one
    cures            whether cures are priced and measured
    on_progress      called with the share of the work that is done, several times a sample

    The account:  total measured change = graph + sum of entries + kernel + quadrature

    Where an operator has no derivative, sites are switched off one at a time; a note says so.

    Raises:
        BadInput: a model, the data or the labels can't be used; see `foldmark.errors`.
    """
    exact = None if float_model is None else read_model(float_model, "the float model")
    if exact is not None:
        check_weights(exact)
    quantized = read_model(quantized_model, "the quantized model")
    models = Models(exact, quantized)
    opened = open_data(data, models.widest, labels, label_name, samples)
    count = opened.samples
    # What can't be read is said before anything long is run.
    looked_at = next(iter(opened.batches(1)))
    if label_name != "labels" and looked_at.labels is None:
        raise DataMismatch("no array of labels of this name", where=repr(label_name))
    _check_labels(opened)
    way = models.way(looked_at.feeds)
    size = batch_size or _batch_size(way, opened)
    check_batch(_recorded(way, looked_at), min(size, count))
    first, choice = choice_for(models, opened, size, metric, outputs)
    progress = Progress(on_progress or (lambda _: None))
    with progress.part(0.0, _ACCOUNTED if cures else 1.0):
        account = AccountTaker(models, choice, progress).take(opened, size)
    wanted = cures and account.refused is None
    # Samples can share a batch here: nothing is drawn from the cures of single samples.
    shared = size
    if not batch_size and not way.graph.is_dynamic:
        shared = max(size, min(_CURED, count, _fitting(way, looked_at, _CURED_BYTES)))
    fixes: tuple[Fix, ...] = ()
    if wanted:
        with progress.part(_ACCOUNTED, 1.0):
            fixes = find_cures(models, choice, account, opened, shared, progress=progress)
    kernels: tuple[KernelDifference, ...] = ()
    if abs(account.closure.kernel) > _NOTABLE * abs(account.closure.total):
        way = models.way(first.feeds)
        kernels = kernel_differences(way.graph.original, way.fed(first.feeds))
    dynamic = size if way.graph.is_dynamic else None
    return _explanation(models, account, opened, fixes, kernels, dynamic_batch=dynamic)


def _check_labels(data: Data) -> None:
    """Refuse labels none of which names a class."""
    most = data.largest_label
    if most is not None and most < 0:
        raise DataMismatch(
            "every label is negative, and such are left out",
            where=data.labels_stand_in,
            got=f"at most {most}",
            expected="classes counted from 0",
        )


def _batch_size(way: Way, data: Data) -> int:
    """Return how many samples run at once when nobody says so."""
    samples = data.samples
    if way.graph.is_dynamic:
        return min(_LARGEST_BATCH, max(1, samples // _DYNAMIC_BATCHES))
    pair = next(iter(data.batches(2)))
    if way.replay.apart(way.fed(pair.feeds), pair.samples) is None:
        return min(_LARGEST_BATCH, max(1, ceil(samples / _ALONE)))
    return min(_LARGEST_BATCH, samples, _fitting(way, pair, _BATCH_BYTES))


def _fitting(way: Way, batch: Batch, size: int) -> int:
    """Return how many samples record errors of so many bytes, one at least."""
    return max(1, size // max(1, _recorded(way, batch)))


def _recorded(way: Way, batch: Batch) -> int:
    """Return the bytes of the errors that a sample of a batch records."""
    return way.replay.recorded_bytes(way.fed(batch.feeds)) // batch.samples


def choice_for(
    models: Models, data: Data, size: int, metric: Metric | str | None, outputs: Sequence[str]
) -> tuple[Batch, MetricChoice]:
    """Return the first batch whose outputs have elements, and what is compared on all of them.

    Raises OutputNotComparable or ModelsDiffer when the outputs can't be laid side by side.
    """
    for batch in data.batches(size):
        exact = models.run_exact(batch.feeds)
        if has_elements(exact, outputs):
            break
    choice = choose_metric(
        models.exact or models.quantized,
        exact,
        samples=batch.samples,
        labels=batch.labels,
        metric=_metric(metric),
        outputs=outputs,
    )
    check_same_outputs(exact, models.run_real(batch.feeds), choice.outputs)
    if len(choice.outputs) > 1 and choice.metric is Metric.RELATIVE_ERROR:
        choice = replace(choice, powers=_powers(models, data, size, choice.outputs))
    return batch, choice


def _powers(models: Models, data: Data, size: int, outputs: Sequence[str]) -> dict[str, float]:
    """Return the sum of squares of each output, per sample, over the first samples."""
    sums, seen = dict.fromkeys(outputs, 0.0), 0
    for batch in data.batches(size):
        exact = models.run_exact(batch.feeds)
        for name in outputs:
            sums[name] += float((exact[name].astype(np.float64) ** 2).sum())
        seen += batch.samples
        if seen >= _WEIGHED and all(sums.values()):
            break
    return {name: power / seen for name, power in sums.items()}


def _metric(metric: Metric | str | None) -> Metric | None:
    names = {each.value: each for each in Metric}
    if metric is None or isinstance(metric, Metric):
        return metric
    if metric not in names:
        raise BadInput("no such metric", got=repr(metric), expected=f"one of {', '.join(names)}")
    return names[metric]


def _explanation(
    models: Models,
    account: Account,
    data: Data,
    fixes: tuple[Fix, ...],
    kernels: tuple[KernelDifference, ...],
    *,
    dynamic_batch: int | None,
) -> Explanation:
    entries = account.entries
    return Explanation(
        metric=account.change,
        closure=account.closure,
        cost=Cost(
            account.seconds, account.forward_seconds, account.nodes, account.samples, len(entries)
        ),
        entries=entries,
        fixes=fixes,
        layers=_subtotals(account, lambda entry: entry.site.layer),
        kinds=_subtotals(account, lambda entry: entry.site.kind.value),
        operators=_subtotals(account, lambda entry: entry.site.operator),
        softmaxes=account.softmaxes,
        labels=account.labels,
        kernels=kernels,
        unmatched=models.unmatched,
        data=data.description,
        is_random=data.is_random,
        first_holds=account.first_holds,
        replay_error=account.replay_error,
        notes=(*models.notes, *_notes(account, dynamic_batch), *_bias_notes(entries)),
    )


def _notes(account: Account, dynamic_batch: int | None) -> tuple[str, ...]:
    notes = []
    if dynamic_batch is not None:
        notes.append(
            f"Scales are chosen at run time from each whole batch: they depend on --batch-size, "
            f"here {dynamic_batch}, and intervals are over batches."
        )
    if account.refused is not None:
        notes.append(
            f"No derivative ({account.refused.sentence().partition('. ')[0]}): sites were switched "
            "off one at a time, and an entry is what that saves. Such entries need not sum to the "
            "change."
        )
    elif TOLERANCE < abs(account.closure.relative_error) <= account.resolution:
        notes.append(
            f"The account closes to {account.closure.relative_error:+.1e} only: quantization "
            "moves the outputs by so little that what single precision rounds away shows."
        )
    elif abs(account.closure.relative_error) > TOLERANCE:
        notes.append(
            f"The account closes to {account.closure.relative_error:+.1e} only, with up to "
            f"{account.nodes} quadrature nodes: the path has kinks, or the effects of the samples "
            "cancel in the total."
        )
    return tuple(notes)


def _bias_notes(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Tell of biases that lie too low in the table to get a reason of their own."""
    odd = [entry for entry in entries if entry.bias_ratio is not None]
    if not odd:
        return ()
    worst = max(odd, key=lambda entry: abs(np.log(entry.bias_ratio or 1.0)))
    count = "One bias has" if len(odd) == 1 else f"{len(odd)} biases have"
    where = site_titles(entry.site for entry in entries)[worst.site.name]
    return (
        f"{count} a scale other than input scale * weight scale, "
        f"{where} {worst.bias_ratio:.4g} times it: integer kernels that add a bias "
        "to the product as it is read it wrong.",
    )


def _subtotals(account: Account, key: Callable[[Entry], str]) -> tuple[Subtotal, ...]:
    total, harm = account.closure.total, account.change.harm
    sums: dict[str, list[float]] = {}
    for entry in account.entries:
        sums.setdefault(key(entry), []).append(entry.amount)
    found = [
        Subtotal(name, sum(parts), sum(parts) / total if total else 0.0, len(parts))
        for name, parts in sums.items()
    ]
    return tuple(sorted(found, key=lambda each: -harm * each.amount))
