"""The mean slopes of functions with kinks over the part of the path that a node stands for."""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property

from foldmark.graphs.derivative.contests import with_winners
from foldmark.graphs.derivative.kink import Kink
from foldmark.graphs.light import LightModel, with_outputs
from foldmark.ledger.across import Across
from foldmark.ledger.added import AddedErrors
from foldmark.ledger.recording import Float32, Recording
from foldmark.ledger.stretch import Stretch
from foldmark.runtimes.onnxruntime import Array, Session

__all__ = ["MeanSlopes"]

_Arrays = Mapping[str, Array]


class MeanSlopes:
    """Finds functions' arguments at the ends of a node's part of the path, and their mean slopes.

    Args:
        model: the float graph that takes errors.
        kinks: its functions with kinks by the name of their value (see `find_kinks`).
        added: what is added to it.
        across: spreads the work.
        threads: threads of one operator; all that the process may use when None.
    """

    def __init__(
        self,
        model: LightModel,
        kinks: Mapping[str, Kink],
        added: AddedErrors,
        across: Across,
        *,
        threads: int | None,
    ) -> None:
        self._model = model
        self._kinks = kinks
        self._added = added
        self._across = across
        self._threads = threads
        self._memory: dict[str, Float32] = {}

    def over(
        self, recording: Recording, kinks: Collection[Kink], stretch: Stretch
    ) -> Iterator[dict[str, Array]]:
        """Yield, for each node of a stretch, the means of some of the functions."""
        if not kinks:
            yield from ({} for _ in range(stretch.nodes))
            return
        begin, *ends = stretch.ends
        low = self._seen(recording, float(begin))
        for end in ends:
            high = self._seen(recording, float(end))

            def means(kink: Kink, low: _Arrays = low, high: _Arrays = high) -> dict[str, Array]:
                return kink.means(low, high, self._memory)

            found: dict[str, Array] = {}
            for part in self._across(means, kinks):
                found |= part
            yield found
            low = high

    def _seen(self, recording: Recording, amount: float) -> _Arrays:
        """Return what functions with kinks look at, at a place of the path."""
        inputs = {**recording.feeds, **self._added.everything(recording, amount)}
        given = {name: inputs[name].copy() for name in self._looked_at if name in inputs}
        asked = [name for name in self._looked_at if name not in given]
        return {**given, **(self._bends.run(inputs, asked) if asked else {})}

    @cached_property
    def _looked_at(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for kink in self._kinks.values() for name in kink.seen))

    @cached_property
    def _bends(self) -> Session:
        """The graph with what functions with kinks look at as outputs."""
        model = with_outputs(with_winners(self._model), self._looked_at)
        return Session(model, threads=self._threads)
