"""Cures for the largest sites: priced by the account, the best applied and measured.

With G the path-averaged gradient at a site, delta its error and delta' the error that another
treatment would leave, change = delta - delta' and

    saving = 2 <G, change> - (M_only(change) - M(0))

where M_only adds the change alone to the float model: right to second order, one forward pass.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from foldmark.graphs.sites import QuantizedGraph, Site
from foldmark.ledger.account import Account
from foldmark.ledger.choice import MetricChoice
from foldmark.ledger.entries import Entry
from foldmark.ledger.fixes import Fix
from foldmark.ledger.grid import code_limits
from foldmark.ledger.integral import Integral
from foldmark.ledger.models import Models, is_constant
from foldmark.ledger.progress import Progress
from foldmark.ledger.recording import Float32, Recording, dot
from foldmark.ledger.replay import Replay
from foldmark.ledger.stretch import Stretch
from foldmark.ledger.targets import BatchTarget, Ruler
from foldmark.ledger.treated import treated_model
from foldmark.ledger.treatments import Treatment, candidates, smoothed
from foldmark.runtimes.batches import Data
from foldmark.runtimes.onnxruntime import Optimization, Session, Weights

__all__ = ["find_cures"]

_SITES = 5
_LEAST_SHARE = 0.02
# Cures are priced and measured on the first samples alone, so many or a batch.
_SAMPLES = 16
# The account closes to 1e-4 and prices need no more than per cents: so many nodes are enough.
_MOST_NODES = 16
_ALONE = 3
_LISTED = 10
# So many treatments of a site, the best to first order, are priced to second order.
_PRICED = 3
# So much of the time is spent when the samples are run, and when all is priced as well.
_SAMPLED = 0.3
_PRICED_ALL = 0.7
# A treatment is as good as the best when it saves this part of what that saves.
_AS_GOOD = 0.8


@dataclass
class _Candidate:
    """A treatment of one or two sites, and what was summed for it."""

    treatments: tuple[tuple[Site, Treatment], ...]
    change: str
    first_order: float = 0.0
    predicted: float = 0.0
    measured: float | None = None

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(site.name for site, _ in self.treatments)

    @property
    def bits(self) -> int:
        return max(treatment.bits for _, treatment in self.treatments)


@dataclass(frozen=True)
class _Sample:
    """A batch of the cures' data, recorded and integrated once."""

    replay: Replay
    recording: Recording
    target: BatchTarget
    integral: Integral
    count: int

    def present(self, candidate: _Candidate) -> list[tuple[Site, Treatment]]:
        """Return the candidate's sites that lie on the path of this batch."""
        return [each for each in candidate.treatments if each[0].name in self.recording.before]


@dataclass
class _Pricing:
    """Everything that candidates are priced and measured with.

    Attributes:
        samples: the cures' data.
        harm: sign of a change for the worse.
        on_batch: called after each batch of them that is run.
    """

    samples: Sequence[_Sample]
    harm: float
    on_batch: Callable[[], None] = lambda: None
    weight: float = field(init=False)
    moved: float = field(init=False)

    def __post_init__(self) -> None:
        """Sum the weights and the change once."""
        self.weight = sum(sample.target.weight for sample in self.samples) or 1.0
        moved = sum(
            sample.target.measure(sample.recording.simulated)
            - sample.target.measure(sample.recording.start)
            for sample in self.samples
        )
        self.moved = moved / self.weight

    @property
    def count(self) -> int:
        """How many samples there are."""
        return sum(sample.count for sample in self.samples)

    def guess(self, candidate: _Candidate) -> None:
        """Predict to first order, by the gradients that are there."""
        total = 0.0
        for sample in self.samples:
            total += self._linear(sample, self._changes(sample, candidate))
            self.on_batch()
        candidate.first_order = self.harm * total / self.weight

    def price(self, candidate: _Candidate) -> None:
        """Predict what a candidate saves."""
        total = 0.0
        for sample in self.samples:
            changes = self._changes(sample, candidate)
            if not changes:
                continue
            recording = sample.recording
            outputs = sample.replay.outputs(recording, 1.0, only=changes, instead=changes)
            own = sample.target.measure(outputs) - sample.target.measure(recording.start)
            total += 2 * self._linear(sample, changes) - own
            self.on_batch()
        candidate.predicted = self.harm * total / self.weight

    def _changes(self, sample: _Sample, candidate: _Candidate) -> dict[str, Float32]:
        """Return by how much a candidate changes the error of each of its sites."""
        changes = {}
        for site, treatment in sample.present(candidate):
            before = sample.recording.before[site.name]
            left = treatment.apply(before) - before
            changes[site.name] = np.ascontiguousarray(sample.recording.delta[site.name] - left)
        return changes

    def _linear(self, sample: _Sample, changes: Mapping[str, Float32]) -> float:
        gradients = sample.integral.gradients
        return sum(dot(gradients[name], c) for name, c in changes.items() if name in gradients)

    def measure(self, candidate: _Candidate) -> None:
        """Apply a candidate in simulation and measure what it saves."""
        total, sessions = 0.0, {}
        for sample in self.samples:
            graph, treatments = sample.replay.graph, sample.present(candidate)
            if not treatments:
                continue
            if id(graph) not in sessions:
                model = treated_model(graph, treatments, sample.recording)
                sessions[id(graph)] = Session(
                    model, optimization=Optimization.OFF, weights=Weights.of(model)
                )
            outputs = sessions[id(graph)].run(sample.recording.feeds)
            total += sample.target.measure(sample.recording.simulated)
            total -= sample.target.measure(outputs)
            self.on_batch()
        candidate.measured = self.harm * total / self.weight


def find_cures(
    models: Models,
    choice: MetricChoice,
    account: Account,
    data: Data,
    batch_size: int,
    *,
    progress: Progress | None = None,
) -> tuple[Fix, ...]:
    """Return the cures of the largest sites, largest predicted saving first.

    They are priced and measured on the first samples alone. Savings are in the metric's unit.
    `progress` is told the share of the work that is done.
    """
    progress = progress or Progress()
    harm = account.change.harm
    worst = [
        entry
        for entry in account.entries[:_SITES]
        if entry.amount * harm > _LEAST_SHARE * abs(account.closure.sites)
    ]
    if not worst:
        return ()
    models.forget()
    nodes = min(account.nodes, _MOST_NODES)
    with progress.part(0.0, _SAMPLED):
        samples = _samples(models, choice, data, batch_size, nodes, progress=progress)
        pricing = _Pricing(samples, harm)
    by_site, priced, preferred = [], [], []
    for entry in worst:
        met = [s for s in pricing.samples if entry.site.name in s.recording.before]
        if met:
            by_site.append(_candidates(entry, met[0]))
    runs = sum(len(found) + _PRICED for found in by_site) * len(samples)
    pricing.on_batch = lambda: progress.approach(_PRICED_ALL, 1 / runs)
    for found in by_site:
        promising = _promising(pricing, found)
        for candidate in promising:
            pricing.price(candidate)
        preferred.append(_preferred(promising))
        priced.append(promising)
    preferred = [each for each in preferred if each.predicted > 0]
    if not by_site:
        return ()
    # The first site in float as well: what any treatment of it can save at most.
    pricing.on_batch = lambda: progress.approach(1.0, 1 / ((_ALONE + 2) * len(samples)))
    for candidate in [*preferred[:_ALONE], priced[0][0]]:
        if candidate.measured is None:
            pricing.measure(candidate)
    listed = [candidate for found in priced for candidate in found]
    if len(preferred) > 1:
        together = _together(preferred)
        pricing.price(together)
        pricing.measure(together)
        listed.append(together)
    return tuple(_fix(each, pricing) for each in _ranked(listed, preferred))


def _promising(pricing: _Pricing, found: Sequence[_Candidate]) -> list[_Candidate]:
    """Return the site in float, which bounds the others, and the best to first order."""
    in_float, others = found[0], list(found[1:])
    for candidate in others:
        pricing.guess(candidate)
    others.sort(key=lambda each: -each.first_order)
    return [in_float, *others[:_PRICED]]


def _samples(
    models: Models,
    choice: MetricChoice,
    data: Data,
    batch_size: int,
    nodes: int,
    *,
    progress: Progress,
) -> list[_Sample]:
    ruler, samples, samples_in_all = Ruler(choice), [], min(_SAMPLES, data.samples)

    def on_node() -> None:
        progress.approach(1.0, batch_size / (nodes * samples_in_all))

    for batch in data.batches(batch_size):
        way = models.way(batch.feeds)
        replay = way.replay
        recording = way.record(batch.feeds)
        exact = models.run_exact(batch.feeds)
        target = ruler.target(batch, exact, recording.simulated)
        integral = replay.add_nodes(
            recording, target.piece, target.feeds, Stretch(nodes), on_node=on_node
        )
        samples.append(_Sample(replay, recording, target, integral, batch.samples))
        if sum(sample.count for sample in samples) >= _SAMPLES:
            break
    return samples


def _candidates(entry: Entry, first: _Sample) -> list[_Candidate]:
    site, values = entry.site, first.recording.before[entry.site.name]
    found = [
        _Candidate(((site, treatment),), treatment.change)
        for treatment in candidates(site, entry.facts, values)
    ]
    partner = None if is_constant(site) else _weight_after(first.replay.graph, site)
    if partner is None:
        return found
    weight, row = partner
    pair = smoothed(
        site,
        entry.facts,
        weight,
        first.recording.before[weight.name],
        axes=(values.ndim - 1, row),
    )
    if pair is not None:
        found.append(_Candidate(((site, pair[0]), (weight, pair[1])), pair[0].change))
    return found


def _weight_after(graph: QuantizedGraph, site: Site) -> tuple[Site, int] | None:
    """Return the one weight that an activation meets next, and the weight's axis of channels."""
    readers = [node for node in graph.skeleton.graph.node if site.after in node.input]
    if len(readers) != 1 or readers[0].op_type not in ("MatMul", "Gemm"):
        return None
    node = readers[0]
    if node.input[0] != site.after:
        return None
    weights = {each.tensor: each for each in graph.sites if is_constant(each)}
    if node.input[1] not in weights:
        return None
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    return weights[node.input[1]], 1 if transposed else 0


def _preferred(found: Sequence[_Candidate]) -> _Candidate:
    """Return the treatment of fewest bits that saves about as much as the best."""
    best = max(candidate.predicted for candidate in found)
    # Where nothing saves, four fifths of the best is more than the best: take that one.
    least = min(best, _AS_GOOD * best)
    good = [candidate for candidate in found if candidate.predicted >= least]
    return min(good, key=lambda candidate: (candidate.bits, -candidate.predicted))


def _together(preferred: Sequence[_Candidate]) -> _Candidate:
    treatments: dict[str, tuple[Site, Treatment]] = {}
    for candidate in preferred:
        for site, treatment in candidate.treatments:
            treatments.setdefault(site.name, (site, treatment))
    return _Candidate(tuple(treatments.values()), "the best of each")


def _ranked(listed: Sequence[_Candidate], preferred: Sequence[_Candidate]) -> list[_Candidate]:
    """Return what is listed: everything that was measured, then the best of the others."""
    measured = [each for each in listed if each.measured is not None]
    others = [
        each
        for each in listed
        if each.measured is None and (each.predicted > 0 or each in preferred)
    ]
    others.sort(key=lambda each: -each.predicted)
    chosen = measured + others[: max(0, _LISTED - len(measured))]
    return sorted(chosen, key=lambda each: -each.predicted)


def _fix(candidate: _Candidate, pricing: _Pricing) -> Fix:
    harmed = pricing.harm * pricing.moved
    return Fix(
        candidate.sites,
        candidate.change,
        candidate.predicted,
        candidate.measured,
        candidate.predicted / harmed if harmed else 0.0,
        pricing.moved,
        pricing.count,
        _new_range(candidate),
        _more_bits(candidate),
    )


def _new_range(candidate: _Candidate) -> tuple[float, float] | None:
    """Return the ends of a candidate's grid when it is another range of one activation."""
    (site, treatment), *others = candidate.treatments
    encoding = treatment.encoding
    if others or is_constant(site) or encoding is None or treatment.smoothing is not None:
        return None
    if encoding.number_format != site.encoding.number_format or encoding.scale is None:
        return None
    if encoding.scale.size != 1 or encoding.axis is not None:
        return None
    scale = float(encoding.scale.item())
    zero = 0 if encoding.zero_point is None else int(encoding.zero_point.item())
    low, high = code_limits(encoding.number_format)
    return (low - zero) * scale, (high - zero) * scale


def _more_bits(candidate: _Candidate) -> str:
    """Return a candidate's number format when it is more bits of one activation, else ""."""
    (site, treatment), *others = candidate.treatments
    encoding = treatment.encoding
    if others or is_constant(site) or encoding is None or treatment.smoothing is not None:
        return ""
    whole = encoding.axis is None and encoding.block_size is None
    more = treatment.bits > int(site.encoding.number_format.lstrip("uint"))
    return encoding.number_format if whole and more else ""
