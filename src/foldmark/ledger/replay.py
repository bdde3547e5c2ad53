"""Replay: the quantized run's errors, added to the float model by any amount.

The simulated quantized model is run once a batch and every site's error recorded. The float
skeleton with those errors injected is then a smooth function of their amounts, so

    M(1) - M(0) = sum over sites of integral_0^1 < dM/dx_s at t, delta_s > dt

and each integral is that site's entry. The integral is taken by Gauss-Legendre nodes, each one
run of a graph that holds the model and its derivative; its cost does not depend on the number
of sites. Relu and its like are not smooth: of them a node takes the mean slope over the part of
the path that it stands for, for one more forward run.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from foldmark.graphs.derivative.gradient import so_far, total_of
from foldmark.graphs.derivative.kinks import find_kinks
from foldmark.graphs.derivative.prepare import prepare
from foldmark.graphs.derivative.samples import Apart
from foldmark.graphs.injection import AMOUNT, MetricPiece, Place, inject
from foldmark.graphs.light import lighten, sharing
from foldmark.graphs.sites import QuantizedGraph, Site
from foldmark.ledger.across import Across
from foldmark.ledger.added import AddedErrors
from foldmark.ledger.built import SHARE, Built
from foldmark.ledger.derivatives import Derivatives
from foldmark.ledger.integral import Integral
from foldmark.ledger.looking import Looking
from foldmark.ledger.mean_slopes import MeanSlopes
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
from foldmark.ledger.telling_apart import TellingApart
from foldmark.runtimes.onnxruntime import Array, Optimization, Session, Weights

__all__ = ["Replay"]


class Replay:
    """Runs one quantized graph batch by batch.

    Args:
        graph: the quantized model taken apart.
        threads: threads of one operator; all that the process may use when None.

    Attributes:
        graph: the quantized model taken apart.
        sites: its sites.
        places: where their errors are added; sites may share one.
        has_kinks: True when there are functions of which nodes take mean slopes.

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
        self._stored = tuple(s for s in graph.sites if is_stored(s))
        self._seen = tuple(s for s in graph.sites if not is_stored(s))
        skeleton = prepare(graph.skeleton)
        simulated = sharing(lighten(graph.simulated), skeleton)
        self._weights, self._weight_errors = stored_errors(skeleton, simulated, self._stored)
        self._outputs = tuple(value.name for value in graph.skeleton.graph.output)
        injected = inject(skeleton, graph.sites)
        self.places: tuple[Place, ...] = injected.places
        self._across = Across(threads)
        self._added = AddedErrors(self.places, self._across)
        kinks = find_kinks(injected.model)
        self.has_kinks = bool(kinks)
        recording, self._before = with_errors(simulated, self._seen)
        self._simulated = Session(
            recording, optimization=Optimization.OFF, threads=threads, weights=Weights.SHARED
        )
        self._looking = Looking(injected, skeleton, self._added, threads=threads)
        self._skeleton = Session(skeleton, threads=threads, weights=Weights.SHARED)
        self._slopes = MeanSlopes(injected.model, kinks, self._added, self._across, threads=threads)
        self._derivatives = Derivatives(injected, kinks, self._looking, threads=threads)
        self._telling_apart = TellingApart(injected, self._looking)

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
        errors = self._added.some(
            recording, amount, without=without, only=only, instead=instead or {}
        )
        return self._looking.forward.run({**recording.feeds, **errors}, self._outputs)

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
        built = self._derivatives.of(recording, metric, inputs, apart)
        if not built.names:
            entries = dict.fromkeys((site.name for site in self.sites), 0.0)
            return Integral(stretch.nodes, {}, entries)
        sums: dict[str, Array] = {} if onto is None else dict(onto.sums)
        given: dict[str, Array] = {so_far(n): np.zeros((), np.float32) for n in built.names}
        if sums:
            given = {so_far(name): sums[total_of(name)] for name in built.names}
        fixed = {**recording.feeds, **self._added.of_activations(recording), **inputs}
        fixed |= {error: self._weight_errors[site] for site, error in built.errors.items()}
        slopes = self._slopes.over(recording, built.kinks, stretch)
        for point, share in zip(stretch.points, times * stretch.shares, strict=True):
            amount, part = np.array(point, np.float32), np.array(share, built.dtype)
            feeds = {**fixed, **given, **next(slopes), AMOUNT: amount, SHARE: part}
            feeds |= self._added.stored_at(recording, float(amount))
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

    def derive(
        self, recording: Recording, metric: MetricPiece, inputs: Mapping[str, Array]
    ) -> None:
        """Build the derivative for batches of these shapes, which integrating does by itself."""
        self._derivatives.of(recording, metric, inputs, None)

    def forget(self) -> None:
        """Let go of the derivatives of metrics that are done with."""
        self._derivatives.forget()

    def apart(self, feeds: Mapping[str, Array], samples: int) -> Apart | None:
        """Return what tells the samples of a batch apart (see `TellingApart`), None if nothing."""
        return self._telling_apart.apart(feeds, samples)

    def recorded_bytes(self, feeds: Mapping[str, Array]) -> int:
        """Return the size of the errors that a batch records."""
        return self._looking.recorded_bytes(feeds)
