"""The mean slopes of functions with kinks over the part of the path that a node stands for."""

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np

from foldmark.graphs.derivative.kinks import Kink
from foldmark.graphs.light import LightModel, with_outputs
from foldmark.ledger.across import Across
from foldmark.ledger.added import AddedErrors
from foldmark.ledger.recording import Float32, Recording, as_float32
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
        self, recording: Recording, slopes: Mapping[str, Kink], stretch: Stretch
    ) -> Iterator[dict[str, Array]]:
        """Yield, for each node of a stretch, the mean slopes by the input that takes each.

        slopes   input -> function
        """
        if not slopes:
            yield from ({} for _ in range(stretch.nodes))
            return
        begin, *ends = stretch.ends
        low = self._arguments(recording, float(begin))
        for end in ends:
            high = self._arguments(recording, float(end))

            def mean(kink: Kink, low: _Arrays = low, high: _Arrays = high) -> Array:
                ends = low[kink.argument], high[kink.argument]
                memory = self._memory.get(kink.result)
                if memory is None or memory.shape != ends[0].shape:
                    memory = np.empty(ends[0].shape, np.float32)
                    self._memory[kink.result] = memory
                slope = kink.mean_slope(*map(as_float32, ends), out=memory)
                return slope.astype(ends[0].dtype, copy=False)

            yield dict(zip(slopes, self._across(mean, slopes.values()), strict=True))
            low = high

    def _arguments(self, recording: Recording, amount: float) -> _Arrays:
        """Return the arguments of functions with kinks at a place of the path."""
        inputs = {**recording.feeds, **self._added.everything(recording, amount)}
        arguments = list(dict.fromkeys(kink.argument for kink in self._kinks.values()))
        return self._bends.run(inputs, arguments)

    @cached_property
    def _bends(self) -> Session:
        """The graph with the arguments of functions with kinks as outputs."""
        arguments = [kink.argument for kink in self._kinks.values()]
        return Session(with_outputs(self._model, arguments), threads=self._threads)
