"""The account: every site's entry, and the lines that close it against what was measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, log
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import NoDerivative
from foldmark.graphs.derivative.samples import Apart
from foldmark.graphs.sites import Site
from foldmark.ledger.bootstrap import resample
from foldmark.ledger.choice import MetricChoice
from foldmark.ledger.entries import Closure, Entry, MetricChange
from foldmark.ledger.facts import SiteFactsCollector
from foldmark.ledger.flips import FlipFinder, LabelReport
from foldmark.ledger.integral import Integral
from foldmark.ledger.models import Models, Way, is_constant
from foldmark.ledger.panels import Panels
from foldmark.ledger.progress import Progress
from foldmark.ledger.recording import Recording
from foldmark.ledger.replay import Replay
from foldmark.ledger.softmax import SoftmaxGain, SoftmaxGains
from foldmark.ledger.stretch import Stretch
from foldmark.ledger.tally import SiteTally
from foldmark.ledger.targets import BatchTarget, Ruler
from foldmark.runtimes.batches import Batch, Data

__all__ = ["TOLERANCE", "Account", "AccountTaker"]

TOLERANCE = 1e-4
"""Largest |closure - 1| that the quadrature may leave."""

_FIRST_NODES = 2
# So many nodes over the whole path at most, and beyond a few only while more of them make what is
# left so much less.
_MOST_NODES = 16
_MOST_NODES_WITH_KINKS = 32
_MOST_STUCK = 4
_HELPED = 0.5
# Runs over panels: few when what is left is small beside the changes of single samples: where
# those cancel, their sum is a bad measure.
_MOST_RUNS = 240
_FEW_RUNS = 40
# What batches leave may add up, and the larger of two sizes is at most twice the mean.
_OWN = 0.5
# Below this part of the tolerance the next batch tries with fewer nodes.
_EASY = 0.2
# So much of a batch's time is spent when it is recorded, and when it is integrated as well.
_RECORDED = 0.1
_INTEGRATED = 0.9
# Single precision rounds what is summed by about so many of its steps.
_ROUNDINGS = 4.0
# So much of the time is spent when all batches are added and flips are still to be explained.
_BEFORE_FLIPS = 0.8
# What goes on inside (born or arrived, softmax gains) is looked at in so many samples.
_INNER_SAMPLES = 32
# And whether the replay is the quantized model in so many.
_REPLAY_SAMPLES = 4

_Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Account:
    """A closed account.

    Attributes:
        change: what moved.
        closure: the lines and their sum.
        entries: one per site, largest share first.
        softmaxes: gain of each softmax.
        first_holds: share of bootstrap draws in which the first entry stays first.
        nodes: largest number of quadrature nodes that a batch took.
        samples: how many samples were run.
        seconds: wall time.
        forward_seconds: of that, one pass of the float model.
        replay_error: largest |replay at t=1 - simulated| over the largest |simulated - float|.
        labels: right answers and flips; None without labels.
        refused: why sites were switched off one at a time, None when they were not.
        resolution: the part of the change that single precision may round away.
    """

    change: MetricChange
    closure: Closure
    entries: tuple[Entry, ...]
    softmaxes: tuple[SoftmaxGain, ...]
    first_holds: float | None
    nodes: int
    samples: int
    seconds: float
    forward_seconds: float
    replay_error: float
    labels: LabelReport | None
    refused: NoDerivative | None
    resolution: float


@dataclass
class _Sums:
    """The metric's sums over batches, at each end and in the middle."""

    exact: float = 0.0
    start: float = 0.0
    simulated: float = 0.0
    real: float = 0.0
    weight: float = 0.0
    samples: int = 0
    forward: float = 0.0
    weights: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    swings: list[float] = field(default_factory=list)
    left: float = 0.0
    unsigned: float = 0.0


class AccountTaker:
    """Takes the account of a quantized model, batch by batch.

    Args:
        models: the two models.
        choice: what is compared.
        progress: is told the share of the samples that is done.

    Attributes:
        refused: why there is no derivative; sites are then switched off one at a time, and an
            entry is what that saves. Such entries need not sum to the change: what is left
            stands in the line of the quadrature.
    """

    def __init__(
        self,
        models: Models,
        choice: MetricChoice,
        progress: Progress | None = None,
    ) -> None:
        self._models = models
        self._choice = choice
        self._ruler = Ruler(choice)
        self._progress = progress or Progress()
        self._tallies: dict[str, SiteTally] = {}
        self._softmaxes: dict[str, SoftmaxGains] = {}
        self._sums = _Sums()
        self._nodes = _FIRST_NODES
        self._tried = _FIRST_NODES
        self._most_nodes = 0
        self._ends = 0.0
        self.refused: NoDerivative | None = None
        self._replay_error = 0.0
        self._resolution = 0.0
        self._flips = FlipFinder(models, choice.outputs[0])

    def take(self, data: Data, batch_size: int) -> Account:
        """Run over the data once and return the account."""
        began = perf_counter()
        for number, batch in enumerate(data.batches(batch_size)):
            # Whether there are labels, and so flips to be explained, the batch itself tells.
            whole = 1.0 if batch.labels is None else _BEFORE_FLIPS
            begin, end = (
                whole * n / data.samples for n in (batch.first, batch.first + batch.samples)
            )
            with self._progress.part(begin, end):
                self._add(number, batch)
        return self._closed(perf_counter() - began)

    def _add(self, number: int, batch: Batch) -> None:
        way = self._models.way(batch.feeds)
        replay = way.replay
        recording = way.record(batch.feeds)
        self._progress.reach(_RECORDED)
        began = perf_counter()
        exact = self._models.run_exact(batch.feeds)
        self._sums.forward += perf_counter() - began
        real = self._models.run_real(batch.feeds)
        target = self._ruler.target(batch, exact, real)
        self._add_ends(batch, target, recording, exact, real)
        self._flips.add(batch, exact, real)
        if batch.first < _REPLAY_SAMPLES:
            self._check_replay(replay, recording)
        if self.refused is None:
            apart = replay.apart(recording.feeds, batch.samples)
            try:
                integral = self._integrate(replay, recording, target, apart)
            except NoDerivative as refused:
                if number:
                    raise
                self.refused = refused
        draw = len(self._sums.weights)
        for site in replay.sites:
            tensors = recording.before[site.name], recording.delta[site.name]
            tally = self._tally(site)
            if self.refused is None:
                gradient = integral.gradients.get(site.name)
                parts = integral.parts.get(site.name)
                tally.add(draw, batch.first, *tensors, gradient, parts=parts)
            else:
                without = target.measure(replay.outputs(recording, 1.0, without=[site.name]))
                self._progress.approach(1.0, 1 / len(replay.sites))
                tally.add_switched(draw, batch.first, *tensors, self._ends - without)
        is_apart = self.refused is None and bool(integral.parts)
        weights = target.per_sample(recording.start).weights if is_apart else [target.weight]
        self._sums.weights.extend(map(float, weights))
        if batch.first < _INNER_SAMPLES:
            self._add_inner(way, recording)

    def _add_ends(
        self,
        batch: Batch,
        target: BatchTarget,
        recording: Recording,
        exact: _Arrays,
        real: _Arrays,
    ) -> None:
        sums = self._sums
        starts = target.per_sample(recording.start).values
        ends = target.per_sample(recording.simulated).values
        start, end = float(starts.sum()), float(ends.sum())
        sums.swings.append(float(np.abs(ends - starts).sum()))
        self._ends = end
        sums.exact += target.measure(exact)
        sums.start += start
        sums.simulated += end
        sums.real += target.measure(real)
        sums.weight += target.weight
        sums.moved.append(end - start)
        sums.samples += batch.samples

    def _integrate(
        self,
        replay: Replay,
        recording: Recording,
        target: BatchTarget,
        apart: Apart | None,
    ) -> Integral:
        """Integrate with as many nodes as closing the account takes.

        A few nodes over the whole path, more where they help; where they don't, the path has
        kinks that `find_kinks` does not know, and is cut into panels.
        """
        best, nodes = np.inf, self._nodes
        while True:
            self._tried = nodes
            integral = replay.add_nodes(
                recording,
                target.piece,
                target.feeds,
                Stretch(nodes),
                apart=apart,
                on_node=self._on_node,
            )
            left = self._sums.moved[-1] - integral.total
            excess = self._excess(left)
            if excess <= 1:
                self._nodes = max(_FIRST_NODES, nodes * 2 // 3) if excess < _EASY else nodes
                break
            is_stuck = nodes > _MOST_STUCK and abs(left) > _HELPED * best
            if is_stuck and abs(left) <= self._rounded(recording) * abs(self._sums.moved[-1]):
                break
            most = _MOST_NODES_WITH_KINKS if replay.has_kinks else _MOST_NODES
            if nodes >= most or is_stuck:
                self._nodes = _FIRST_NODES
                del integral
                integral, left = self._integrate_panels(replay, recording, target, apart)
                break
            more = _more_nodes_with_kinks if replay.has_kinks else _more_nodes
            best, nodes = abs(left), more(nodes, excess)
        self._sums.left += left
        self._sums.unsigned += abs(left)
        self._most_nodes = max(self._most_nodes, integral.nodes)
        return integral

    def _rounded(self, recording: Recording) -> float:
        """Return the part of a batch's change that single precision may round away."""
        moved = 0.0
        for name in self._choice.outputs:
            start = recording.start[name].astype(np.float64)
            change = recording.simulated[name].astype(np.float64) - start
            moved = max(moved, float(np.linalg.norm(change) / (np.linalg.norm(start) or 1.0)))
        rounded = _ROUNDINGS * float(np.finfo(np.float32).eps) / (moved or 1.0)
        self._resolution = max(self._resolution, rounded)
        return rounded

    def _on_node(self) -> None:
        """Tell of a node: so many as are tried bring the end nearer by half."""
        self._progress.approach(_INTEGRATED, 1 - 0.5 ** (1 / self._tried))

    def _integrate_panels(
        self,
        replay: Replay,
        recording: Recording,
        target: BatchTarget,
        apart: Apart | None,
    ) -> tuple[Integral, float]:
        """Return the integral over panels, and what it leaves."""
        panels = Panels(
            lambda place: target.measure(replay.outputs(recording, place)),
            lambda stretch, times, onto: replay.add_nodes(
                recording,
                target.piece,
                target.feeds,
                stretch,
                times=times,
                onto=onto,
                apart=apart,
                on_node=self._on_node,
            ),
            (target.measure(recording.start), target.measure(recording.simulated)),
        )
        while self._excess(panels.left) > 1:
            is_small = abs(panels.left) <= TOLERANCE * self._sums.swings[-1]
            if panels.runs >= (_FEW_RUNS if is_small else _MOST_RUNS):
                break
            panels.split()
        left = self._sums.moved[-1] - panels.integral.total
        self._sums.unsigned += panels.unsigned - abs(left)
        return panels.integral, left

    def _excess(self, left: float) -> float:
        """Return how many times what is left exceeds the tolerance.

        It is held to the batch's own change, to the mean change where its samples cancel, or to
        the account so far, in which batches make up for each other.
        """
        sums, moved = self._sums, self._sums.moved[-1]
        size = max(abs(moved), float(np.mean(np.abs(sums.moved))))
        return min(
            abs(left) / (_OWN * TOLERANCE * size or 1e-300),
            abs(sums.left + left) / (TOLERANCE * abs(sum(sums.moved)) or 1e-300),
        )

    def _check_replay(self, replay: Replay, recording: Recording) -> None:
        end = replay.outputs(recording, 1.0)
        for name in self._choice.outputs:
            simulated = recording.simulated[name].astype(np.float64)
            moved = np.abs(simulated - recording.start[name].astype(np.float64)).max(initial=0.0)
            apart = np.abs(simulated - end[name].astype(np.float64)).max(initial=0.0)
            if moved > 0:
                self._replay_error = max(self._replay_error, float(apart / moved))

    def _add_inner(self, way: Way, recording: Recording) -> None:
        inner = way.run_inner(recording)
        for name, exact in inner.exact.items():
            self._tallies[name].add_origin(recording.before[name], recording.delta[name], exact)
        for name, values in inner.softmaxes.items():
            if name not in self._softmaxes:
                self._softmaxes[name] = SoftmaxGains(name, way.softmax_layer(name))
            self._softmaxes[name].add(*values)

    def _tally(self, site: Site) -> SiteTally:
        if site.name not in self._tallies:
            self._tallies[site.name] = SiteTally(site, SiteFactsCollector(site))
        return self._tallies[site.name]

    def _closed(self, seconds: float) -> Account:
        sums, choice = self._sums, self._choice
        weight = sums.weight or 1.0
        total = (sums.real - sums.exact) / weight
        entries, first_holds = self._entries(total)
        sites = sum(entry.amount for entry in entries)
        closure = Closure(
            sites=sites,
            graph=(sums.start - sums.exact) / weight,
            kernel=(sums.real - sums.simulated) / weight,
            quadrature=(sums.simulated - sums.start) / weight - sites,
            total=total,
            unsigned=sums.unsigned / weight,
        )
        change = MetricChange(
            choice.metric.value,
            choice.metric.title,
            choice.metric.harm,
            choice.outputs,
            choice.reason,
            sums.exact / weight,
            sums.real / weight,
        )
        return Account(
            change,
            closure,
            entries,
            tuple(gains.gain() for gains in self._softmaxes.values()),
            first_holds,
            self._most_nodes,
            sums.samples,
            seconds,
            sums.forward,
            self._replay_error,
            self._flips.report(
                explain=self.refused is None,
                on_node=lambda share: self._progress.approach(1.0, share),
            ),
            self.refused,
            self._resolution,
        )

    def _entries(self, total: float) -> tuple[tuple[Entry, ...], float | None]:
        tallies, weights = list(self._tallies.values()), np.array(self._sums.weights)
        for tally in tallies:
            tally.settle()
        weight = float(weights.sum()) or 1.0
        amounts = np.zeros((len(weights), len(tallies)))
        for column, tally in enumerate(tallies):
            for draw, amount in tally.amounts.items():
                amounts[draw, column] = amount
        spread = resample(amounts * self._choice.metric.harm, weights)
        ratios = self._models.bias_ratios
        entries = [
            Entry(
                site=tally.site,
                amount=float(amounts[:, i].sum()) / weight,
                share=float(amounts[:, i].sum()) / weight / total if total else 0.0,
                interval=None if spread is None else spread.interval(i, self._choice.metric.harm),
                causes={cause: part / weight for cause, part in tally.causes.items()},
                groups=tally.groups(weight),
                facts=tally.facts.facts(),
                origin=None if is_constant(tally.site) else tally.origin(),
                bias_ratio=ratios.get(tally.site.name),
            )
            for i, tally in enumerate(tallies)
        ]
        harm = self._choice.metric.harm
        entries.sort(key=lambda entry: -harm * entry.amount)
        return tuple(entries), None if spread is None else spread.first_holds


def _more_nodes(nodes: int, excess: float) -> int:
    """Return the next number where each node more makes what is left a fifth, roughly."""
    return min(_MOST_NODES, nodes + max(1, ceil(log(excess / 0.7, 5))))


def _more_nodes_with_kinks(nodes: int, excess: float) -> int:
    """Return the next number where what is left falls with the square of the number, roughly."""
    factor = min(12.0, max(1.5, 1.5 * excess**0.5))
    return min(_MOST_NODES_WITH_KINKS, int(nodes * factor))
