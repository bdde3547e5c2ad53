"""The two models of a comparison, ready to run with other weights than their own."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx

from foldmark.compare.mixing import Mixture
from foldmark.formats.values import Array
from foldmark.graphs.light import LightModel, lighten
from foldmark.graphs.sites import Encoding, QuantizedGraph, Site, SiteKind
from foldmark.ledger.models import Models, is_constant
from foldmark.ledger.recording import Recording
from foldmark.ledger.replay import Replay
from foldmark.runtimes.onnxruntime import Optimization, Session

__all__ = ["Runnable", "Side", "fitted"]

Arrays = Mapping[str, Array]


class Side:
    """One of the two models, ready to run with other weights than its own.

    place: 0 for A, 1 for B.
    """

    def __init__(
        self,
        exact: onnx.ModelProto,
        model: onnx.ModelProto | None,
        mixtures: Sequence[Mixture],
        place: int,
    ) -> None:
        self.place = place
        numbers = {m.name: (m.left, m.right)[place].numbers for m in mixtures}
        self.models = Models(exact, _weights_in(exact, numbers) if model is None else model)
        self._plain = _plain_graph(exact, numbers) if model is None else None
        self._known: list[Runnable] = []

    def runnable(self, feeds: Arrays) -> "Runnable":
        """Return the path that these feeds take through the model, ready to run."""
        if self._plain is not None:
            if not self._known:
                self._known.append(Runnable(self._plain))
            return self._known[0]
        graph = self.models.way(feeds).graph
        for each in self._known:
            if each.graph is graph:
                return each
        self._known.append(Runnable(graph))
        return self._known[-1]


class Runnable:
    """A quantized graph whose weights are inputs."""

    def __init__(self, graph: QuantizedGraph) -> None:
        self.graph = graph
        self.sites = {site.name: site for site in graph.sites}
        self.replay = Replay(graph)
        self._sessions: dict[str, Session] = {}

    def _session(self, site: str = "") -> Session:
        """Return the simulation whose weights, and the value behind one site, are inputs."""
        if site not in self._sessions:
            names = [each.after for each in self.graph.sites if is_constant(each)]
            opened = _opened(
                self.graph.simulated, [*names, self.sites[site].after] if site else names
            )
            self._sessions[site] = Session(opened, optimization=Optimization.OFF)
        return self._sessions[site]

    def record(self, feeds: Arrays) -> Recording:
        """Record a batch."""
        return self.replay.record(self._fed(feeds))

    def run(self, recording: Recording, weights: Arrays) -> dict[str, Array]:
        """Run in simulation with other weights, by name in the float model; the rest its own."""
        return self._run(self._session(), self._given(recording, weights))

    def run_with(self, recording: Recording, site: str, value: Array) -> dict[str, Array]:
        """Run in simulation with another value behind one activation's site; the rest its own."""
        given = self._given(recording, {}) | {self.sites[site].after: value}
        return self._run(self._session(site), given)

    def _given(self, recording: Recording, weights: Arrays) -> dict[str, Array]:
        given = dict(recording.feeds)
        for site in self.graph.sites:
            if not is_constant(site):
                continue
            before = recording.before[site.name]
            own = before + recording.delta[site.name]
            value = weights.get(site.name)
            given[site.after] = own if value is None else fitted(value, before.shape)
        return given

    @staticmethod
    def _run(session: Session, given: Arrays) -> dict[str, Array]:
        takes = {each.name for each in session.inputs}
        return session.run({n: a for n, a in given.items() if n in takes})

    def _fed(self, feeds: Arrays) -> dict[str, Array]:
        taken = {value.name for value in self.graph.skeleton.graph.input}
        return {name: array for name, array in feeds.items() if name in taken}


def fitted(value: Array, shape: tuple[int, ...]) -> Array:
    """Return a weight in the skeleton's layout: as it is, or transposed."""
    if value.shape == shape:
        return value
    turned = value.T if value.shape[::-1] == shape else value.reshape(shape)
    return np.ascontiguousarray(turned)


def _opened(model: onnx.ModelProto | LightModel, names: Iterable[str]) -> LightModel:
    """Return the model with these values turned into inputs."""
    light = lighten(model)
    wanted = set(names)
    opened = onnx.ModelProto()
    opened.CopyFrom(light.model)
    graph = opened.graph
    types = {t.name: (t.data_type, list(t.dims)) for t in graph.initializer}
    kept = [tensor for tensor in graph.initializer if tensor.name not in wanted]
    copies = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
    del graph.initializer[:]
    graph.initializer.extend(copies)
    for node in graph.node:
        renamed = [f"{name} as it was" if name in wanted else name for name in node.output]
        node.output[:] = renamed
    known = {value.name for value in graph.input}
    for name in sorted(wanted - known):
        kind, dims = types.get(name, (onnx.TensorProto.FLOAT, None))
        graph.input.append(onnx.helper.make_tensor_value_info(name, kind, dims))
    left = {name: array for name, array in light.weights.items() if name not in wanted}
    return LightModel(opened, left)


def _weights_in(exact: onnx.ModelProto, numbers: Mapping[str, Array]) -> onnx.ModelProto:
    """Return the float model with other weights."""
    model = onnx.ModelProto()
    model.CopyFrom(exact)
    for tensor in model.graph.initializer:
        if tensor.name in numbers:
            array = numbers[tensor.name].reshape(tuple(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return model


def _plain_graph(exact: onnx.ModelProto, numbers: Mapping[str, Array]) -> QuantizedGraph:
    """Return the float model with other weights as a quantized graph that has no activations."""
    changed = _weights_in(exact, numbers)
    readers = {name: node for node in exact.graph.node for name in node.input}
    sites = tuple(
        Site(
            name=tensor.name,
            kind=SiteKind.WEIGHT,
            operator=readers[tensor.name].op_type if tensor.name in readers else "",
            layer="",
            tensor=tensor.name,
            before=tensor.name,
            after=tensor.name,
            encoding=Encoding("float32"),
        )
        for tensor in exact.graph.initializer
        if tensor.name in numbers
    )
    return QuantizedGraph(changed, changed, exact, sites, ())
