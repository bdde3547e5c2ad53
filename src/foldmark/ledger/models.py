"""The two models of an account, ready to run in every way that the account needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import ModelsDiffer, NothingQuantized, NotSupported
from foldmark.graphs.labels import Labels
from foldmark.graphs.reading.outputs import with_float_outputs
from foldmark.graphs.reading.read import read_quantized
from foldmark.graphs.sites import QuantizedGraph, Site, SiteKind, UnmatchedWeight
from foldmark.ledger.bias import bias_ratios
from foldmark.ledger.paths import FlatPair, flatten_pair
from foldmark.ledger.recording import Recording
from foldmark.ledger.replay import Replay
from foldmark.ledger.softmax import softmax_nodes
from foldmark.runtimes.inputs import describe_inputs, model_inputs
from foldmark.runtimes.onnxruntime import Optimization, Session, Weights

__all__ = ["Inner", "Models", "Way", "is_constant"]

# So many scales that are no normal positive numbers are named.
_ODD = 3

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


class Way:
    """One path through the models: all there is without If, Loop and Scan.

    Args:
        pair: both models made flat by the data of the path.
        has_exact: False when only the quantized model is there.
    """

    def __init__(self, pair: FlatPair, has_exact: bool) -> None:
        self.pair = pair
        self.graph: QuantizedGraph = read_quantized(
            pair.quantized, pair.exact if has_exact else None
        )

    @cached_property
    def replay(self) -> Replay:
        """The replay of this path."""
        return Replay(self.graph)

    def record(self, feeds: Arrays) -> Recording:
        """Record a batch, without the inputs that only the float model takes."""
        return self.replay.record(self.fed(feeds))

    def fed(self, feeds: Arrays) -> dict[str, NDArray[np.generic]]:
        """Return those of the feeds that the quantized model takes."""
        taken = {value.name for value in self.graph.skeleton.graph.input}
        return {name: array for name, array in feeds.items() if name in taken}

    @cached_property
    def skeleton(self) -> Session:
        """The float skeleton, optimized: what stands for a float model that is not there."""
        return Session(
            self.graph.skeleton,
            weights=Weights.of(self.graph.skeleton),
            title="the quantized model without quantization",
        )

    @cached_property
    def simulated(self) -> Session:
        """The simulated quantized model."""
        return Session(
            self.graph.simulated,
            optimization=Optimization.OFF,
            weights=Weights.of(self.graph.simulated),
        )

    def takes(self, feeds: Arrays) -> bool:
        """Return True when these feeds go down this path."""
        try:
            self.pair.check(feeds, "")
        except NotSupported:
            return False
        return True

    def run_inner(self, recording: Recording) -> Inner:
        """Run both models once more for the values inside them."""
        fed = recording.feeds
        exact = _floats({**fed, **self._inner_exact.run(_fed(self._inner_exact, fed))})
        tensors = {
            site.name: exact[site.before]
            for site in self.graph.sites
            if not is_constant(site) and site.before in exact
        }
        softmaxes = {}
        if self._softmax_values:
            moved = _floats(self._inner_quantized.run(_fed(self._inner_quantized, fed)))
            for name, (scores, probabilities) in self._softmax_values.items():
                if scores in moved and probabilities in moved:
                    softmaxes[name] = (
                        exact[scores],
                        exact[probabilities],
                        moved[scores],
                        moved[probabilities],
                    )
        return Inner(tensors, softmaxes)

    def softmax_layer(self, name: str) -> str:
        """Return the module path of a softmax, "" when the graph does not let us recover it."""
        return self._labels.around(self._softmax_values[name][1])

    @cached_property
    def _labels(self) -> Labels:
        graph = self.graph.skeleton.graph
        return Labels(graph.node, [tensor.name for tensor in graph.initializer])

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
        return Session(
            self.graph.skeleton,
            taps=[t for t in taps if t in made - fed],
            weights=Weights.of(self.graph.skeleton),
        )

    @cached_property
    def _inner_quantized(self) -> Session:
        fed = {value.name for value in self.graph.simulated.graph.input}
        taps = [name for pair in self._softmax_values.values() for name in pair]
        return Session(
            self.graph.simulated,
            taps=[tap for tap in taps if tap not in fed],
            optimization=Optimization.OFF,
            weights=Weights.of(self.graph.simulated),
        )


class Models:
    """A float model and a quantized copy of it.

    Args:
        exact: the float model as given; None when only the quantized one is there.
        quantized: the quantized model as given.
    """

    def __init__(self, exact: onnx.ModelProto | None, quantized: onnx.ModelProto) -> None:
        self.exact = exact
        self.quantized = quantized
        self._ways: list[Way] = []
        self._notes: list[str] = []
        if exact is not None and (said := _check_interfaces(exact, quantized)):
            self._notes.append(said)

    @property
    def widest(self) -> onnx.ModelProto:
        """The model that takes all inputs that any of the two takes."""
        if self.exact is None or len(model_inputs(self.exact)) < len(model_inputs(self.quantized)):
            return self.quantized
        return self.exact

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of how the models were run."""
        paths = f"The samples take {len(self._ways)} paths through the models."
        notes = [*self._notes, paths] if len(self._ways) > 1 else self._notes
        parted = {way.graph.parted for way in self._ways} - {""}
        notes = [*notes, *(f"The two networks part: {where}." for where in sorted(parted))]
        if self.exact is None:
            notes = [_without_weights(len(self.unmatched)), *notes]
        odd = {each.name: str(each) for way in self._ways for each in way.graph.odd_scales}
        told = [*odd.values()][:_ODD]
        if len(odd) > _ODD:
            told.append(f"{len(odd) - _ODD} more scales are no normal positive numbers.")
        return (*notes, *told)

    @property
    def unmatched(self) -> tuple[UnmatchedWeight, ...]:
        """Weights whose float original was not found, on any path."""
        found = {each.name: each for way in self._ways for each in way.graph.unmatched}
        return tuple(found.values())

    @property
    def bias_ratios(self) -> Mapping[str, float]:
        """Biases whose scale is not that of their product, on any path; see `bias_ratios`."""
        return {name: r for way in self._ways for name, r in bias_ratios(way.graph).items()}

    def way(self, feeds: Arrays) -> Way:
        """Return the path that these feeds take; the graphs are read when it is a new one.

        Raises:
            ModelsDiffer: the two models take different paths.
            NothingQuantized: there is no site that can be explained.
        """
        for way in self._ways:
            if way.takes(feeds):
                return way
        pair = flatten_pair(self.exact or self.quantized, self.quantized, feeds)
        try:
            way = Way(pair, self.exact is not None)
        except ModelsDiffer:
            if self.exact is not None and _is_quantized(self.exact):
                raise ModelsDiffer(
                    "the float model is quantized itself",
                    todo="give the model that it was made from first",
                ) from None
            raise
        except NothingQuantized:
            if self.exact is not None:
                raise
            raise NothingQuantized(
                "nothing in it is quantized",
                where="the quantized model",
                todo="is it the float model? Give a quantized copy too, or instead",
            ) from None
        if self.exact is None and not way.graph.sites:
            raise NothingQuantized(
                "only weights are quantized, and their errors show against the float model alone",
                where="the quantized model",
                todo="give the float model too",
            )
        self._ways.append(way)
        return way

    def forget(self) -> None:
        """Let go of the derivatives of metrics that are done with, on every path."""
        for way in self._ways:
            way.replay.forget()

    def run_exact(self, feeds: Arrays) -> Arrays:
        """Run the float model as given; the skeleton where there is none."""
        if self._exact_session is None:
            session = self.way(feeds).skeleton
            return session.run(_fed(session, feeds))
        return self._exact_session.run(_fed(self._exact_session, feeds))

    def run_real(self, feeds: Arrays) -> Arrays:
        """Run the quantized model on its real kernels; in simulation where none takes it."""
        if self._real_session is None:
            session = self.way(feeds).simulated
            return session.run(_fed(session, feeds))
        return self._real_session.run(_fed(self._real_session, feeds))

    @cached_property
    def _exact_session(self) -> Session | None:
        if self.exact is None:
            return None
        return Session(self.exact, weights=Weights.of(self.exact), title="the float model")

    @cached_property
    def _real_session(self) -> Session | None:
        try:
            return Session(with_float_outputs(self.quantized), title="the quantized model")
        except NotSupported as refused:
            self._notes.append(
                f"ONNX Runtime does not run the quantized model ({refused.what}): the kernel line "
                "is not measured."
            )
            return None


def _without_weights(count: int) -> str:
    told = "Without the float model weights are not explained: only activations are"
    if count == 0:
        return f"{told}."
    return f"{told}; {count} {'weight counts' if count == 1 else 'weights count'} as exact."


def _is_quantized(model: onnx.ModelProto) -> bool:
    return any(
        node.op_type.startswith(("DequantizeLinear", "DynamicQuantize", "QLinear"))
        for node in model.graph.node
    )


def is_constant(site: Site) -> bool:
    """Return True for weights and biases."""
    return site.kind in (SiteKind.WEIGHT, SiteKind.BIAS)


def _floats(arrays: Arrays) -> dict[str, NDArray[np.floating]]:
    return {n: a.astype(np.float32, copy=False) for n, a in arrays.items() if a.dtype.kind == "f"}


def _fed(session: Session, feeds: Arrays) -> dict[str, NDArray[np.generic]]:
    """Return those of the feeds that a model takes."""
    return {each.name: feeds[each.name] for each in session.inputs if each.name in feeds}


def _check_interfaces(exact: onnx.ModelProto, quantized: onnx.ModelProto) -> str:
    """Refuse models neither of which takes all that the other takes; say what only one takes.

    A converter may drop an input that it found constant, or add one.
    """
    one, other = ({each.name for each in model_inputs(m)} for m in (exact, quantized))
    if one == other:
        return ""
    if one < other:
        return f"The float model does not take {', '.join(sorted(other - one))}."
    if other < one:
        return f"The quantized model does not take {', '.join(sorted(one - other))}."
    raise ModelsDiffer(
        "the two models do not take the same inputs",
        got=f"quantized: {describe_inputs(model_inputs(quantized))}",
        expected=f"as in float: {describe_inputs(model_inputs(exact))}",
    )
