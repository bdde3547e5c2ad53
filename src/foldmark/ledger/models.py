"""The two models of an account, ready to run in every way that the account needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import NotSupported
from foldmark.graphs.reading.read import read_quantized
from foldmark.graphs.sites import QuantizedGraph, Site, SiteKind, UnmatchedWeight
from foldmark.ledger.replay import Recording, Replay
from foldmark.ledger.softmax import softmax_nodes
from foldmark.runtimes.onnxruntime import Optimization, Session

__all__ = ["Inner", "Models", "is_constant"]

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Inner:
    """Values inside the two runs.

    Attributes:
        exact: site name -> its tensor in the float run; activations only.
        softmaxes: name -> scores and probabilities in the float run, then in the quantized run.
    """

    exact: Mapping[str, NDArray[np.floating]]
    softmaxes: Mapping[str, tuple[NDArray[np.floating], ...]]


class Models:
    """A float model and a quantized copy of it.

    Args:
        exact: the float model as given; None when only the quantized one is there.
        quantized: the quantized model as given.
    """

    def __init__(self, exact: onnx.ModelProto | None, quantized: onnx.ModelProto) -> None:
        self.exact = exact
        self.quantized = quantized
        self.graph: QuantizedGraph = read_quantized(quantized, exact)
        self._notes: list[str] = []
        if exact is None:
            self._notes.append(
                "Without the float model weights are not explained: only activations are."
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of how the models were run."""
        return tuple(self._notes)

    @property
    def unmatched(self) -> tuple[UnmatchedWeight, ...]:
        """Weights whose float original was not found."""
        return self.graph.unmatched

    def replay(self, feeds: Arrays) -> Replay:  # noqa: ARG002
        """Return the replay for these feeds."""
        return self._replay

    def run_exact(self, feeds: Arrays) -> Arrays:
        """Run the float model as given; the skeleton where there is none."""
        return self._exact_session.run(feeds)

    def run_real(self, feeds: Arrays) -> Arrays:
        """Run the quantized model on its real kernels; in simulation where none takes it."""
        return self._real_session.run(feeds)

    def run_inner(self, replay: Replay, recording: Recording) -> Inner:
        """Run both once more for the values inside them."""
        exact = _floats({**recording.feeds, **self._inner_exact.run(recording.feeds)})
        tensors = {
            site.name: exact[site.before]
            for site in replay.sites
            if not is_constant(site) and site.before in exact
        }
        softmaxes = {}
        if self._softmax_values:
            moved = _floats(self._inner_quantized.run(recording.feeds))
            for name, (scores, probabilities) in self._softmax_values.items():
                if scores in moved and probabilities in moved:
                    softmaxes[name] = (
                        exact[scores],
                        exact[probabilities],
                        moved[scores],
                        moved[probabilities],
                    )
        return Inner(tensors, softmaxes)

    @cached_property
    def _replay(self) -> Replay:
        return Replay(self.graph)

    @cached_property
    def _exact_session(self) -> Session:
        return Session(self.graph.skeleton if self.exact is None else self.exact)

    @cached_property
    def _real_session(self) -> Session:
        try:
            return Session(self.quantized)
        except NotSupported as refused:
            self._notes.append(
                f"ONNX Runtime does not run the quantized model ({refused.what}): the kernel line "
                "is not measured."
            )
            return Session(self.graph.simulated, optimization=Optimization.OFF)

    @cached_property
    def _softmax_values(self) -> dict[str, tuple[str, str]]:
        made = {name for node in self.graph.simulated.graph.node for name in node.output}
        made |= {value.name for value in self.graph.simulated.graph.input}
        return {
            node.name or node.output[0]: (node.input[0], node.output[0])
            for node in softmax_nodes(self.graph.skeleton)
            if node.input[0] in made and node.output[0] in made
        }

    @cached_property
    def _inner_exact(self) -> Session:
        fed = {value.name for value in self.graph.skeleton.graph.input}
        made = {name for node in self.graph.skeleton.graph.node for name in node.output}
        taps = [site.before for site in self.graph.sites if not is_constant(site)]
        taps += [name for pair in self._softmax_values.values() for name in pair]
        return Session(self.graph.skeleton, taps=[t for t in taps if t in made - fed])

    @cached_property
    def _inner_quantized(self) -> Session:
        fed = {value.name for value in self.graph.simulated.graph.input}
        taps = [name for pair in self._softmax_values.values() for name in pair]
        return Session(
            self.graph.simulated,
            taps=[tap for tap in taps if tap not in fed],
            optimization=Optimization.OFF,
        )


def is_constant(site: Site) -> bool:
    """Return True for weights and biases."""
    return site.kind in (SiteKind.WEIGHT, SiteKind.BIAS)


def _floats(arrays: Arrays) -> dict[str, NDArray[np.floating]]:
    return {n: a.astype(np.float32, copy=False) for n, a in arrays.items() if a.dtype.kind == "f"}
