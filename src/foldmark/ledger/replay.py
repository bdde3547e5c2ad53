"""Replay: the quantized run's errors, added to the float model by any amount.

The simulated quantized model is run once a batch and every site's error recorded. The float
skeleton with those errors injected is then a smooth function of their amounts, so

    M(1) - M(0) = sum over sites of integral_0^1 < dM/dx_s at t, delta_s > dt

and each integral is that site's entry. The integral is taken by Gauss-Legendre nodes, each one
run of a graph that holds the model and its derivative; its cost does not depend on the number
of sites. Relu and its like are not smooth: of them a node takes the mean slope over the part of
the path that it stands for, for one more forward run.
"""

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import DataMismatch, NotSupported
from foldmark.graphs.derivative.facts import Fact, probe, shapes_follow_data
from foldmark.graphs.derivative.gradient import (
    Derivative,
    adding_up,
    gradient,
    so_far,
    total_of,
)
from foldmark.graphs.derivative.kinks import Kink, find_kinks
from foldmark.graphs.derivative.prepare import opset_of, prepare
from foldmark.graphs.derivative.samples import Apart, Meetings
from foldmark.graphs.derivative.tape import Tape
from foldmark.graphs.injection import AMOUNT, MetricPiece, Place, append_metric, inject
from foldmark.graphs.light import LightModel, lighten, sharing, with_outputs
from foldmark.graphs.sites import QuantizedGraph, Site
from foldmark.ledger.built import Built, error_input
from foldmark.ledger.recording import (
    Float32,
    Recording,
    as_float32,
    check_finite,
    dot,
    error_name,
    is_stored,
    stored_errors,
    with_errors,
)
from foldmark.ledger.stretch import Stretch
from foldmark.runtimes.onnxruntime import Array, Optimization, Session, Weights, available_threads

__all__ = ["Integral", "Recording", "Replay", "dot"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Integral:
    """A path integral over one batch.

    Attributes:
        nodes: number of nodes.
        gradients: site name -> average along the path of d(metric) / d(what is injected), of
            the site's shape. A site that the metric does not depend on is absent.
        entries: site name -> < gradient, delta >, summed in double precision.
        sums: the arrays that further nodes are added to.
        parts: site name -> its entry sample by sample; empty where that was not asked for.
    """

    nodes: int
    gradients: Mapping[str, Float32]
    entries: Mapping[str, float]
    sums: Mapping[str, Array] = field(default_factory=dict, repr=False)
    parts: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """The sum of the entries: M(1) - M(0) but for what the nodes leave."""
        return sum(self.entries.values())


class Replay:
    """Runs one quantized graph batch by batch.

    Args:
        graph: the quantized model taken apart.
        threads: threads of one operator; all that the process may use when None.

    Attributes:
        graph: the quantized model taken apart.
        sites: its sites.
        places: where their errors are added; sites may share one.

    Use:
        replay = Replay(graph)
        recording = replay.record(feeds)
        replay.outputs(recording, 1.0)                 # the quantized model again
        replay.outputs(recording, 1.0, without=names)  # with these sites left in float
        replay.integrate(recording, metric, inputs, nodes=2).entries
    """

    def __init__(self, graph: QuantizedGraph, *, threads: int | None = None) -> None:
        self.graph = graph
        self.sites: tuple[Site, ...] = graph.sites
        self._threads = threads
        self._stored = tuple(s for s in graph.sites if is_stored(s))
        self._seen = tuple(s for s in graph.sites if not is_stored(s))
        skeleton = prepare(graph.skeleton)
        simulated = sharing(lighten(graph.simulated), skeleton)
        self._weights, self._weight_errors = stored_errors(skeleton, simulated, self._stored)
        self._outputs = tuple(value.name for value in graph.skeleton.graph.output)
        self._injected = inject(skeleton, graph.sites)
        self.places: tuple[Place, ...] = self._injected.places
        self._probe = probe(self._injected.model)
        self._kinks = find_kinks(self._injected.model)
        recording, self._before = with_errors(simulated, self._seen)
        self._simulated = Session(
            recording, optimization=Optimization.OFF, threads=threads, weights=Weights.SHARED
        )
        self._forward = Session(self._probe.model, threads=threads)
        self._skeleton = Session(skeleton, threads=threads, weights=Weights.SHARED)
        self._reprobes = shapes_follow_data(skeleton)
        self._facts: list[tuple[object, Mapping[str, Fact]]] = []
        self._moved: dict[float, Mapping[str, Float32]] = {}
        self._whole: dict[str, tuple[weakref.ref[Recording], Float32]] = {}
        self._slopes: dict[str, Float32] = {}
        self._derivatives: list[Built] = []
        self._apart: Apart | object | None = _UNKNOWN
        self._pool = ThreadPoolExecutor(threads or available_threads())

    @property
    def has_kinks(self) -> bool:
        """True when there are functions of which nodes take mean slopes."""
        return bool(self._kinks)

    def record(self, feeds: Mapping[str, Array]) -> Recording:
        """Run the simulated model on a batch, and the float skeleton, and keep every error.

        Raises NonFiniteValue when a site's error is NaN or infinite, naming the site and the
        first index.
        """
        results = self._simulated.run(feeds)
        before, delta = dict(self._weights), dict(self._weight_errors)
        for site in self._seen:
            before[site.name] = as_float32(results[self._before[site.name]])
            delta[site.name] = as_float32(results[error_name(site)])
        self._across(
            lambda site: check_finite(site, before[site.name], delta[site.name]), self._seen
        )
        start = self._skeleton.run(feeds)
        return Recording(
            feeds=dict(feeds),
            simulated={name: results[name] for name in self._outputs},
            start=start,
            before=before,
            delta=delta,
        )

    def outputs(
        self,
        recording: Recording,
        amount: float,
        *,
        without: Iterable[str] = (),
        only: Iterable[str] | None = None,
        instead: Mapping[str, Float32] | None = None,
    ) -> dict[str, Array]:
        """Return the model's outputs with the recorded errors added.

        Args:
            recording: of this replay.
            amount: how much of every error is added: 0 float, 1 quantized.
            without: names of sites left in float.
            only: names of sites that add their error; all when None.
            instead: site name -> another error to add in place of the recorded one.
        """
        on = self._switched_on(without, only)
        inputs: dict[str, Array] = {**recording.feeds, AMOUNT: np.array(amount, np.float32)}
        for place in self.places:
            errors = self._errors(recording, place, on, instead or {})
            if place.stored is None:
                inputs[place.errors] = np.zeros((), np.float32) if errors is None else errors
            elif errors is None:
                inputs[place.value] = place.stored
            elif errors is self._whole_error(recording, place):
                inputs[place.value] = self._weights_at(recording, amount)[place.value]
            else:
                inputs[place.value] = place.stored + np.float32(amount) * errors
        return self._forward.run(inputs, self._outputs)

    def integrate(
        self,
        recording: Recording,
        metric: MetricPiece,
        inputs: Mapping[str, Array],
        *,
        nodes: int,
    ) -> Integral:
        """Return every site's entry for the metric on a batch.

        Args:
            recording: of this replay.
            metric: appends the metric's nodes (see `append_metric`). A batch on which it would
                append other nodes must give `inputs` of other shapes.
            inputs: what the metric reads beside the model's outputs.
            nodes: number of Gauss-Legendre nodes.

        Raises NoDerivative when an operator between a site and the metric has none.
        """
        return self.add_nodes(recording, metric, inputs, Stretch(nodes))

    def add_nodes(
        self,
        recording: Recording,
        metric: MetricPiece,
        inputs: Mapping[str, Array],
        stretch: Stretch,
        *,
        times: int = 1,
        onto: Integral | None = None,
        apart: Apart | None = None,
        on_node: Callable[[], None] = lambda: None,
    ) -> Integral:
        """Return an integral by the nodes of a stretch, on top of another of this batch.

        Args:
            recording, metric, inputs: as `integrate` takes them.
            stretch: where along the path.
            times: how often it is counted; -1 takes it back.
            onto: what is added to; its arrays become those of the result.
            apart: as `Replay.apart` returns it, for entries sample by sample.
            on_node: called after each node.
        """
        built = self._derivative(recording, metric, inputs, apart)
        if not built.names:
            entries = dict.fromkeys((site.name for site in self.sites), 0.0)
            return Integral(stretch.nodes, {}, entries)
        sums: dict[str, Array] = {} if onto is None else dict(onto.sums)
        given: dict[str, Array] = {so_far(n): np.zeros((), np.float32) for n in built.names}
        if sums:
            given = {so_far(name): sums[total_of(name)] for name in built.names}
        fixed = {**recording.feeds, **self._all_errors(recording), **inputs}
        fixed |= {error: self._weight_errors[site] for site, error in built.errors.items()}
        slopes = self._mean_slopes(recording, built, stretch)
        for point, share in zip(stretch.points, times * stretch.shares, strict=True):
            amount, part = np.array(point, np.float32), np.array(share, built.dtype)
            feeds = {**fixed, **given, **next(slopes), AMOUNT: amount, _SHARE: part}
            feeds |= self._weights_at(recording, float(amount))
            if sums:
                built.session.run_into(feeds, sums)
            else:
                # The runtime's own memory, which it has at hand from the batch before.
                sums = built.session.run(feeds, [total_of(name) for name in built.names])
                given = {so_far(name): sums[total_of(name)] for name in built.names}
            on_node()
        gradients = {
            site: as_float32(sums[total_of(name)]) for site, name in built.gradients.items()
        }
        met = [site.name for site in self.sites if site.name in gradients]
        products = self._across(lambda name: dot(gradients[name], recording.delta[name]), met)
        entries = dict.fromkeys((site.name for site in self.sites), 0.0)
        entries |= zip(met, products, strict=True)
        taken = 0 if onto is None else onto.nodes
        parts = {} if apart is None else self._parts(recording, built, gradients, sums, entries)
        return Integral(taken + times * stretch.nodes, gradients, entries, sums, parts)

    def _parts(
        self,
        recording: Recording,
        built: Built,
        gradients: Mapping[str, Float32],
        sums: Mapping[str, Array],
        entries: Mapping[str, float],
    ) -> dict[str, NDArray[np.float64]]:
        """Return every entry sample by sample, nothing where one of them can't be had so."""
        met = list(gradients)
        if any(name in self._weight_errors and name not in built.errors for name in met):
            return {}

        def parts(name: str) -> NDArray[np.float64]:
            if name in built.errors:
                found = sums[total_of(built.parts[built.errors[name]])].astype(np.float64)
            else:
                rows = zip(gradients[name], recording.delta[name], strict=True)
                found = np.array([dot(gradient, delta) for gradient, delta in rows])
            # Single precision may lose a little of what the samples sum to.
            return found + (entries[name] - found.sum()) / len(found)

        return dict(zip(met, self._across(parts, met), strict=True))

    def _mean_slopes(
        self, recording: Recording, built: Built, stretch: Stretch
    ) -> Iterator[dict[str, Array]]:
        """Yield, for each node, the mean slopes of functions with kinks over the node's part."""
        if not built.slopes:
            yield from ({} for _ in range(stretch.nodes))
            return
        begin, *ends = stretch.ends
        low = self._arguments(recording, float(begin))
        for end in ends:
            high = self._arguments(recording, float(end))

            def mean(kink: Kink, low: _Arrays = low, high: _Arrays = high) -> Array:
                ends = low[kink.argument], high[kink.argument]
                memory = self._slopes.get(kink.result)
                if memory is None or memory.shape != ends[0].shape:
                    memory = np.empty(ends[0].shape, np.float32)
                    self._slopes[kink.result] = memory
                slope = kink.mean_slope(*map(as_float32, ends), out=memory)
                return slope.astype(ends[0].dtype, copy=False)

            yield dict(zip(built.slopes, self._across(mean, built.slopes.values()), strict=True))
            low = high

    def _arguments(self, recording: Recording, amount: float) -> _Arrays:
        """Return the arguments of functions with kinks at a place of the path."""
        inputs = {
            **recording.feeds,
            **self._all_errors(recording),
            **self._weights_at(recording, amount),
            AMOUNT: np.array(amount, np.float32),
        }
        arguments = list(dict.fromkeys(kink.argument for kink in self._kinks.values()))
        return self._bends.run(inputs, arguments)

    @cached_property
    def _bends(self) -> Session:
        """The skeleton with errors, and the arguments of functions with kinks as outputs."""
        arguments = [kink.argument for kink in self._kinks.values()]
        return Session(with_outputs(self._injected.model, arguments), threads=self._threads)

    def derive(
        self, recording: Recording, metric: MetricPiece, inputs: Mapping[str, Array]
    ) -> None:
        """Build the derivative for batches of these shapes, which integrating does by itself."""
        self._derivative(recording, metric, inputs, None)

    def _across(self, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """Do independent work on large arrays on every processor; numpy lets threads by."""
        return list(self._pool.map(work, items))

    def _switched_on(self, without: Iterable[str], only: Iterable[str] | None) -> set[str]:
        """Return the names of the sites that add their error."""
        every = {site.name for site in self.sites}
        off = set(without)
        kept = every if only is None else set(only)
        if unknown := (off | kept) - every:
            raise DataMismatch("no such site", where=repr(sorted(unknown)[0]))
        return kept - off

    def _errors(
        self,
        recording: Recording,
        place: Place,
        on: Collection[str],
        instead: Mapping[str, Float32],
    ) -> Float32 | None:
        """Return what a place adds when these sites are on, None for nothing."""
        names = [name for name in place.sites if name in on]
        changed = [name for name in names if name in instead]
        if not changed and len(names) == len(place.sites):
            return self._whole_error(recording, place)
        if not names:
            return None
        errors = [instead.get(name, recording.delta[name]) for name in names]
        return errors[0] if len(errors) == 1 else _summed(errors, np.empty_like(errors[0]))

    def _all_errors(self, recording: Recording) -> dict[str, Float32]:
        """Return what every place of activations adds when all sites are on."""
        places = [place for place in self.places if place.stored is None]
        errors = self._across(lambda place: self._whole_error(recording, place), places)
        return dict(zip((place.errors for place in places), errors, strict=True))

    def _weights_at(self, recording: Recording, amount: float) -> Mapping[str, Float32]:
        """Return every stored tensor with this amount of its errors, the same in every batch."""
        if amount in self._moved:
            return self._moved[amount]
        places = [place for place in self.places if place.stored is not None]
        size = sum(place.stored.nbytes for place in places if place.stored is not None)
        memory: Mapping[str, Float32] = {}
        if (len(self._moved) + 1) * size > _KEPT_BYTES and self._moved:
            memory = self._moved.pop(next(iter(self._moved)))

        def move(place: Place) -> Float32:
            assert place.stored is not None
            errors = self._whole_error(recording, place)
            moved = memory[place.value] if memory else np.empty_like(errors)
            np.multiply(errors, np.float32(amount), out=moved)
            return np.add(moved, place.stored, out=moved)

        weights = self._across(move, places)
        self._moved[amount] = dict(zip((p.value for p in places), weights, strict=True))
        return self._moved[amount]

    def _whole_error(self, recording: Recording, place: Place) -> Float32:
        """Return the sum of a place's errors, added up once a recording."""
        first = recording.delta[place.sites[0]]
        if len(place.sites) == 1:
            return first
        of, total = self._whole.get(place.value, (None, None))
        if of is not None and of() is recording and total is not None:
            return total
        # Memory of the recording before: touching memory anew costs more than the sum.
        if total is None or total.shape != first.shape:
            total = np.empty_like(first)
        _summed([recording.delta[name] for name in place.sites], total)
        self._whole[place.value] = (weakref.ref(recording), total)
        return total

    def apart(self, feeds: Mapping[str, Array], samples: int) -> Apart | None:
        """Return what tells the samples of a batch apart, None where nothing does.

        It must be that outputs do not depend on what else is in the batch, that the first axis
        of every tensor with a site counts the samples, and that stored tensors enter linearly.
        """
        if samples < _LEAST_APART or self._reprobes:
            return None
        if self._apart is not _UNKNOWN:
            return self._apart  # type: ignore[return-value]
        self._apart = None
        one = {name: array[:1] if array.ndim else array for name, array in feeds.items()}
        try:
            (many, outputs), (single, alone) = self._look(feeds), self._look(one)
        except DataMismatch:
            return None  # the model takes so many samples and no others
        sampled = frozenset(
            name
            for name, fact in many.items()
            if name in single
            and fact.shape[:1] == (samples,)
            and single[name].shape == (1, *fact.shape[1:])
        )
        errors = {
            error_input(site): place.value
            for place in self.places
            for site in place.sites
            if place.stored is not None
        }
        found = Apart(sampled, errors)
        try:
            Meetings(found, self._nodes, Tape(many, opset_of(self._injected.model.model)))
        except NotSupported:
            return None
        with_samples = [place.value for place in self.places if place.stored is None]
        if sampled.issuperset((*with_samples, *self._outputs)) and all(
            np.allclose(outputs[name][:1], alone[name], rtol=1e-3, atol=_APART * _size(alone[name]))
            for name in self._outputs
        ):
            self._apart = found
        return self._apart

    def recorded_bytes(self, feeds: Mapping[str, Array]) -> int:
        """Return the size of the errors that a batch records."""
        facts, _ = self._look(feeds)
        places = [place for place in self.places if place.stored is None]
        return sum(4 * prod(facts[place.value].shape) * len(place.sites) for place in places)

    @property
    def _nodes(self) -> Sequence[onnx.NodeProto]:
        return self._injected.model.model.graph.node

    def _look(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Fact], Mapping[str, Array]]:
        """Return the facts of the injected graph on a batch, and its outputs, without errors.

        Without errors shapes are the same, and nothing needs to be added up.
        """
        nothing = np.zeros((), np.float32)
        inputs = {
            **feeds,
            **{p.errors: nothing for p in self.places if p.stored is None},
            **{p.value: p.stored for p in self.places if p.stored is not None},
            AMOUNT: nothing,
        }
        results = self._forward.run(inputs, [*self._probe.outputs, *self._outputs])
        facts = self._probe.facts(inputs, results)
        for place in self.places:
            if place.stored is None:
                facts[place.errors] = facts[place.value]
        return facts, results

    def _observed(self, recording: Recording) -> Mapping[str, Fact]:
        """Return the facts of the injected graph on a batch, by a run when they aren't known."""
        shapes = {name: array.shape for name, array in recording.feeds.items()}
        for seen, facts in self._facts:
            if seen == shapes and not self._reprobes:
                return facts
        facts, _ = self._look(recording.feeds)
        self._facts = [(shapes, facts), *self._facts[: _DERIVATIVES_KEPT - 1]]
        return facts

    def _derivative(
        self,
        recording: Recording,
        metric: MetricPiece,
        inputs: Mapping[str, Array],
        apart: Apart | None,
    ) -> Built:
        """Return the derivative for a batch of these shapes, building it when it is new."""
        known = self._observed(recording)
        arrays = {**recording.feeds, **inputs}
        shapes: dict[str, object] = {n: (a.shape, a.dtype.str) for n, a in arrays.items()}
        if self._reprobes:
            shapes |= {name: fact.key for name, fact in known.items()}
        for built in self._derivatives:
            if (built.metric, built.apart, built.shapes) == (metric, apart, shapes):
                return built
        measured, scalar = append_metric(self._injected.model, metric, inputs)
        facts = {**known, **self._metric_facts(metric, inputs, recording.start)}
        values = [place.value for place in self.places]
        derivative = gradient(
            measured, scalar, values, facts, seed=_SHARE, kinks=self._kinks, apart=apart
        )
        self._derivatives.append(
            Built(
                metric,
                shapes,
                Session(adding_up(derivative, facts), threads=self._threads),
                self._gradients(derivative),
                tuple(dict.fromkeys((*derivative.gradients.values(), *derivative.parts.values()))),
                facts[scalar].dtype,
                derivative.slopes,
                apart,
                derivative.parts,
            )
        )
        del self._derivatives[:-_DERIVATIVES_KEPT]
        return self._derivatives[-1]

    def _metric_facts(
        self, metric: MetricPiece, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> dict[str, Fact]:
        """Return the facts of the metric's own values, seen by running it alone."""
        empty = onnx.helper.make_model(
            onnx.helper.make_graph([], "metric", [], []),
            opset_imports=self._injected.model.model.opset_import,
            ir_version=self._injected.model.model.ir_version,
        )
        arrays = {**outputs, **inputs}
        alone, _ = append_metric(LightModel(empty, {}), metric, arrays)
        read = {name for node in alone.model.graph.node for name in node.input}
        for value in list(alone.model.graph.input):
            if value.name not in read:
                alone.model.graph.input.remove(value)
        probing = probe(alone)
        feeds = {name: array for name, array in arrays.items() if name in read}
        return probing.facts(feeds, Session(probing.model).run(feeds))

    def _gradients(self, derivative: Derivative) -> dict[str, str]:
        """Return the name of every site's gradient."""
        return {
            site: derivative.gradients[place.value]
            for place in self.places
            if place.value in derivative.gradients
            for site in place.sites
        }


def _summed(arrays: Sequence[Float32], total: Float32) -> Float32:
    """Return the sum of several arrays, written into `total`."""
    np.add(arrays[0], arrays[1], out=total)
    for more in arrays[2:]:
        np.add(total, more, out=total)
    return total


_DERIVATIVES_KEPT = 4
_UNKNOWN = object()
# A batch of at least so many samples can be told apart.
_LEAST_APART = 2
# Outputs of a sample alone and in a batch differ by no more, in parts of the largest.
_APART = 1e-3
# Stored tensors with their errors are kept for the last amounts, as many as fit; one at least.
_KEPT_BYTES = 200_000_000
# The input that scales a node's gradients by the node's share of the integral.
_SHARE = "share of the integral"


def _size(array: Array) -> float:
    """Return the largest absolute value."""
    return float(np.abs(array.astype(np.float64)).max(initial=0.0))
