"""The derivatives of one graph: built for batches of new shapes, kept for the next."""

from collections.abc import Mapping

import onnx

from foldmark.graphs.derivative.facts import Fact, probe
from foldmark.graphs.derivative.gradient import Derivative, adding_up, gradient
from foldmark.graphs.derivative.kink import Kink
from foldmark.graphs.derivative.samples import Apart
from foldmark.graphs.injection import Injected, MetricPiece, append_metric
from foldmark.graphs.light import LightModel
from foldmark.ledger.built import SHARE, Built
from foldmark.ledger.looking import SHAPES_KEPT, Looking
from foldmark.ledger.recording import Recording
from foldmark.runtimes.onnxruntime import Array, Session

__all__ = ["Derivatives"]


class Derivatives:
    """Builds what gives every place's gradient, or finds it again.

    Args:
        injected: the float graph that takes errors.
        kinks: its functions with kinks by the name of their value (see `find_kinks`).
        looking: sees its shapes.
        threads: threads of one operator; all that the process may use when None.
    """

    def __init__(
        self,
        injected: Injected,
        kinks: Mapping[str, Kink],
        looking: Looking,
        *,
        threads: int | None,
    ) -> None:
        self._injected = injected
        self._kinks = kinks
        self._looking = looking
        self._threads = threads
        self._kept: list[Built] = []

    def of(
        self,
        recording: Recording,
        metric: MetricPiece,
        inputs: Mapping[str, Array],
        apart: Apart | None,
    ) -> Built:
        """Return the derivative for a batch of these shapes, building it when it is new.

        Raises NoDerivative when an operator between a site and the metric has none.
        """
        known = self._looking.facts(recording)
        arrays = {**recording.feeds, **inputs}
        shapes: dict[str, object] = {n: (a.shape, a.dtype.str) for n, a in arrays.items()}
        if self._looking.reprobes:
            shapes |= {name: fact.key for name, fact in known.items()}
        for built in self._kept:
            if (built.metric, built.apart, built.shapes) == (metric, apart, shapes):
                return built
        measured, scalar = append_metric(self._injected.model, metric, inputs)
        facts = {**known, **self._metric_facts(metric, inputs, recording.start)}
        values = [place.value for place in self._injected.places]
        derivative = gradient(
            measured, scalar, values, facts, seed=SHARE, kinks=self._kinks, apart=apart
        )
        self._kept.append(
            Built(
                metric,
                shapes,
                Session(adding_up(derivative, facts), threads=self._threads),
                self._gradients(derivative),
                tuple(dict.fromkeys((*derivative.gradients.values(), *derivative.parts.values()))),
                facts[scalar].dtype,
                derivative.kinks,
                apart,
                derivative.parts,
            )
        )
        del self._kept[:-SHAPES_KEPT]
        return self._kept[-1]

    def forget(self) -> None:
        """Let go of all that were built, and of the memory that they keep for their next run."""
        self._kept.clear()

    def _metric_facts(
        self, metric: MetricPiece, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> dict[str, Fact]:
        """Return the facts of the metric's own values, seen by running it alone."""
        model = self._injected.model.model
        empty = onnx.helper.make_model(
            onnx.helper.make_graph([], "metric", [], []),
            opset_imports=model.opset_import,
            ir_version=model.ir_version,
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
            for place in self._injected.places
            if place.value in derivative.gradients
            for site in place.sites
        }
