"""Types and shapes of everything in the float graph on a batch, by a run without errors."""

from collections.abc import Mapping
from math import prod

from foldmark.graphs.derivative.facts import Fact, probe, shapes_follow_data
from foldmark.graphs.injection import Injected
from foldmark.graphs.light import LightModel
from foldmark.ledger.added import AddedErrors
from foldmark.ledger.recording import Recording
from foldmark.runtimes.onnxruntime import Array, Session

__all__ = ["SHAPES_KEPT", "Looking"]

SHAPES_KEPT = 4
"""How many batches of different shapes are remembered."""


class Looking:
    """Runs the graph that takes errors, and sees its shapes.

    Args:
        injected: the float graph that takes errors.
        skeleton: the float graph that it was made of.
        added: what is added to it.
        threads: threads of one operator; all that the process may use when None.

    Attributes:
        forward: the graph, ready to run.
        reprobes: True when batches of equal shapes may meet inner values of different shapes.
    """

    def __init__(
        self,
        injected: Injected,
        skeleton: LightModel,
        added: AddedErrors,
        *,
        threads: int | None,
    ) -> None:
        self._injected = injected
        self._added = added
        self._probe = probe(injected.model)
        self._outputs = tuple(value.name for value in injected.model.model.graph.output)
        self._facts: list[tuple[object, Mapping[str, Fact]]] = []
        self.forward = Session(self._probe.model, threads=threads)
        self.reprobes = shapes_follow_data(skeleton)

    def look(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Fact], Mapping[str, Array]]:
        """Return the facts of the graph on a batch, and its outputs, without errors.

        Without errors shapes are the same, and nothing needs to be added up.
        """
        inputs = {**feeds, **self._added.nothing()}
        results = self.forward.run(inputs, [*self._probe.outputs, *self._outputs])
        facts = self._probe.facts(inputs, results)
        for place in self._injected.places:
            if place.stored is None:
                facts[place.errors] = facts[place.value]
        return facts, results

    def facts(self, recording: Recording) -> Mapping[str, Fact]:
        """Return the facts of the graph on a batch, by a run when they aren't known."""
        shapes = {name: array.shape for name, array in recording.feeds.items()}
        for seen, facts in self._facts:
            if seen == shapes and not self.reprobes:
                return facts
        found, _ = self.look(recording.feeds)
        self._facts = [(shapes, found), *self._facts[: SHAPES_KEPT - 1]]
        return found

    def recorded_bytes(self, feeds: Mapping[str, Array]) -> int:
        """Return the size of the errors that a batch records."""
        facts, _ = self.look(feeds)
        places = [place for place in self._injected.places if place.stored is None]
        return sum(4 * prod(facts[place.value].shape) * len(place.sites) for place in places)
