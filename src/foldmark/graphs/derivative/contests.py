"""The largest of several: which of them won, on the stretch for which one node stands.

Where values move on straight lines and i wins at the beginning, j at the end, the maximum follows
i until the two lines cross, and j from there. With a their values at the beginning and b at the
end, i holds the share

    (a_i - a_j) / ((a_i - a_j) + (b_j - b_i))

of the stretch, and share * (b_i - a_i) + (1 - share) * (b_j - a_j) is b_j - a_i exactly: the rise
of the maximum, whoever else may have won in between.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.graphs.derivative.corners import Corner, Cornered
from foldmark.graphs.derivative.facts import Fact, Facts
from foldmark.graphs.derivative.kink import Arrays, Float32
from foldmark.graphs.derivative.tape import Tape
from foldmark.graphs.light import LightModel

__all__ = ["Between", "Contest", "PooledWinners", "ReducedWinners", "with_winners"]


class Winners(Protocol):
    """How it is known which elements won."""

    @property
    def seen(self) -> tuple[str, ...]:
        """Names of the values that tell, beside the argument."""

    def find(self, tensor: NDArray[np.generic], seen: Arrays, /) -> NDArray[np.int64]:
        """Return the flat index in the tensor of each element of the result, flat."""


@dataclass(frozen=True)
class PooledWinners:
    """MaxPool says itself which element won each window.

    Attributes:
        result: name of the pooled value.
    """

    result: str

    @property
    def seen(self) -> tuple[str, ...]:
        """The output that `with_winners` gives the node."""
        return (_winners_of(self.result),)

    def find(self, _: NDArray[np.generic], seen: Arrays, /) -> NDArray[np.int64]:
        """Return what the runtime found."""
        return seen[self.seen[0]].reshape(-1).astype(np.int64, copy=False)


@dataclass(frozen=True)
class ReducedWinners:
    """The extreme over some axes.

    Attributes:
        axes: the axes; those from 2 on when None, as pooling over whole images has it.
        is_largest: False for the smallest.
    """

    axes: tuple[int, ...] | None
    is_largest: bool

    @property
    def seen(self) -> tuple[str, ...]:
        """Nothing beside the argument."""
        return ()

    def find(self, tensor: NDArray[np.generic], _: Arrays, /) -> NDArray[np.int64]:
        """Return the first of the extreme elements of each group."""
        axes = range(2, tensor.ndim) if self.axes is None else self.axes
        reduced = sorted(axis % tensor.ndim for axis in axes)
        order = [axis for axis in range(tensor.ndim) if axis not in reduced] + reduced
        size = prod(tensor.shape[axis] for axis in reduced)
        groups = tensor.transpose(order).reshape(-1, size)
        best = groups.argmax(1) if self.is_largest else groups.argmin(1)
        places = np.arange(tensor.size).reshape(tensor.shape).transpose(order).reshape(-1, size)
        return places[np.arange(len(best)), best]


@dataclass(frozen=True)
class Contest:
    """A value whose every element is one of several elements of a tensor.

    Attributes:
        argument: name of the tensor.
        result: name of the value.
        winners: finds which elements.
    """

    argument: str
    result: str
    winners: Winners

    @property
    def arguments(self) -> tuple[str, ...]:
        """The one tensor."""
        return (self.argument,)

    @property
    def seen(self) -> tuple[str, ...]:
        """The tensor, and what tells the winners."""
        return (self.argument, *self.winners.seen)

    @property
    def _names(self) -> tuple[str, str, str]:
        first, last = (f"{end} winners of {self.result}" for end in ("first", "last"))
        return first, last, f"share of the first winners of {self.result}"

    def inputs(self, facts: Facts) -> dict[str, Fact]:
        """Return the inputs: winners at both ends, and the share of the first, all flat."""
        shape = (prod(facts[self.result].shape),)
        whole = Fact(np.dtype(np.int64), shape)
        first, last, share = self._names
        return {first: whole, last: whole, share: Fact(facts[self.argument].dtype, shape)}

    def back(self, tape: Tape, gradient: str) -> dict[str, str]:
        """Append the gradient's shares, each added where its winner is."""
        first, last, share = self._names
        fact = tape.facts[self.argument]
        flat = tape.reshape(gradient, (-1,))
        own = tape.multiply(flat, share)
        spread = tape.zeros((prod(fact.shape),), fact.dtype)
        for winners, part in ((first, own), (last, tape.subtract(flat, own))):
            spread = tape.emit("ScatterElements", spread, winners, part, reduction="add")
        return {self.argument: tape.reshape(spread, fact.shape)}

    def means(
        self, low: Arrays, high: Arrays, _: MutableMapping[str, Float32], /
    ) -> dict[str, NDArray[np.generic]]:
        """Return the winners and the first one's share."""
        begin, end = low[self.argument], high[self.argument]
        first, last = self.winners.find(begin, low), self.winners.find(end, high)
        begin, end = begin.reshape(-1), end.reshape(-1)
        lead = np.abs(begin[first].astype(np.float32) - begin[last].astype(np.float32))
        loss = np.abs(end[last].astype(np.float32) - end[first].astype(np.float32))
        whole = lead + loss
        share = np.divide(lead, whole, out=np.ones_like(lead), where=whole > 0)
        return dict(zip(self._names, (first, last, share.astype(begin.dtype)), strict=True))


@dataclass(frozen=True)
class Between:
    """The larger or the smaller of two tensors, element by element.

    Attributes:
        pair: names of the two.
        result: name of the value.
        is_largest: False for the smaller.
    """

    pair: tuple[str, str]
    result: str
    is_largest: bool

    @property
    def arguments(self) -> tuple[str, ...]:
        """Both tensors."""
        return self.pair

    @property
    def seen(self) -> tuple[str, ...]:
        """Both tensors."""
        return self.pair

    @property
    def _share(self) -> str:
        return f"share of {self.pair[0]} in {self.result}"

    def inputs(self, facts: Facts) -> dict[str, Fact]:
        """Return the input that takes the first tensor's share of the stretch."""
        fact = facts[self.result]
        return {self._share: Fact(fact.dtype, fact.shape)}

    def back(self, tape: Tape, gradient: str) -> dict[str, str]:
        """Append gradient * share, and the rest for the other."""
        shape = tape.facts[self.result].shape
        own = tape.multiply(gradient, self._share)
        parts = own, tape.subtract(gradient, own)
        return {
            name: tape.sum_to(part, shape, tape.facts[name].shape)
            for name, part in zip(self.pair, parts, strict=True)
        }

    def means(
        self, low: Arrays, high: Arrays, _: MutableMapping[str, Float32], /
    ) -> dict[str, NDArray[np.generic]]:
        """Return the share of the line on which the first of the two is the one."""
        one, other = self.pair
        if not self.is_largest:
            one, other = other, one
        ahead: list[NDArray[Any]] = [np.subtract(seen[one], seen[other]) for seen in (low, high)]
        line = Cornered(self._share, self._share, 0.0, (Corner(0.0, 1.0),))
        share = line.mean_slope(*(array.astype(np.float32, copy=False) for array in ahead))
        return {self._share: share.astype(ahead[0].dtype, copy=False)}


def with_winners(model: LightModel) -> LightModel:
    """Return the model with the winners of each MaxPool that asks for none as a value of it."""
    told = onnx.ModelProto()
    told.CopyFrom(model.model)
    for node in told.graph.node:
        if node.op_type == "MaxPool" and len(node.output) == 1:
            node.output[:] = [node.output[0], _winners_of(node.output[0])]
    return LightModel(told, model.weights)


def _winners_of(result: str) -> str:
    return f"winners of {result}"
