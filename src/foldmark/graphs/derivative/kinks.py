"""Functions with kinks, on the stretch of a path for which one node of an integral stands.

Where a Relu opens on the way its slope jumps, and a slope taken at a single point is that of one
side or of the other. An integral needs the mean over the stretch, which is known from the
argument's values at its two ends. With it a network of Relus is integrated by as few nodes as a
smooth one; with slopes at points thousands of small jumps leave per cent of the integral with
sixteen nodes. Where a maximum changes places it is the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.graphs.derivative.contests import Between, Contest, PooledWinners, ReducedWinners
from foldmark.graphs.derivative.corners import Corner, Cornered, ExponentialBelow, Leaning
from foldmark.graphs.derivative.kink import Kink
from foldmark.graphs.light import LightModel

__all__ = ["find_kinks"]


def find_kinks(model: LightModel) -> dict[str, Kink]:
    """Return the model's functions with kinks by the name of their value."""
    stored = _Stored(model)
    found = {}
    for node in model.model.graph.node:
        known = _KINKS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        kink = known(_Function(node, stored)) if known is not None else None
        if kink is not None:
            found[node.output[0]] = kink
    return found


class _Stored:
    """The constants of a graph."""

    def __init__(self, model: LightModel) -> None:
        self.names = {tensor.name for tensor in model.model.graph.initializer}
        self.numbers: dict[str, float] = {}
        self.integers: dict[str, tuple[int, ...]] = {}
        for tensor in model.model.graph.initializer:
            if tensor.name in model.weights or len(tensor.dims) > 1:
                continue
            value: NDArray[np.generic] = onnx.numpy_helper.to_array(tensor)
            if not tensor.dims and np.issubdtype(value.dtype, np.floating):
                self.numbers[tensor.name] = float(value)
            elif value.dtype == np.int64:
                self.integers[tensor.name] = tuple(int(n) for n in value.reshape(-1))


@dataclass(frozen=True)
class _Function:
    """A node, and the constants of its graph."""

    node: onnx.NodeProto
    stored: _Stored

    @property
    def x(self) -> str:
        return self.node.input[0]

    @property
    def y(self) -> str:
        return self.node.output[0]

    def real(self, name: str, default: float) -> float:
        return next((a.f for a in self.node.attribute if a.name == name), default)

    def integer(self, name: str, default: int) -> int:
        return next((a.i for a in self.node.attribute if a.name == name), default)

    def cornered(self, first: float, corners: Sequence[Corner]) -> Cornered:
        return Cornered(self.x, self.y, first, tuple(corners))


_RELU = (Corner(0.0, 1.0),)


def _relu(of: _Function) -> Kink:
    return of.cornered(0.0, _RELU)


def _leaky_relu(of: _Function) -> Kink:
    below = of.real("alpha", 0.01)
    return of.cornered(below, [Corner(0.0, 1.0 - below)])


def _parametric_relu(of: _Function) -> Kink | None:
    below = of.node.input[1]
    return Leaning(of.x, of.y, 0.0, _RELU, below) if below in of.stored.names else None


def _thresholded_relu(of: _Function) -> Kink:
    limit = of.real("alpha", 1.0)
    return of.cornered(0.0, [Corner(limit, 1.0, step=limit)])


def _shrink(of: _Function) -> Kink | None:
    """x + bias below -lambd, x - bias above lambd, 0 between."""
    limit, bias = of.real("lambd", 0.5), of.real("bias", 0.0)
    if limit < 0:
        return None
    step = limit - bias
    return of.cornered(1.0, [Corner(-limit, -1.0, step=step), Corner(limit, 1.0, step=step)])


def _elu(of: _Function) -> Kink | None:
    below = of.real("alpha", 1.0)
    # Without a jump nodes see it better where they are.
    return None if below == 1 else ExponentialBelow(of.x, of.y, 0.0, _RELU, 1.0, below)


def _selu(of: _Function) -> Kink:
    alpha, gamma = of.real("alpha", 1.6732631921768188), of.real("gamma", 1.0507010221481323)
    return ExponentialBelow(of.x, of.y, 0.0, _RELU, gamma, alpha * gamma)


def _abs(of: _Function) -> Kink:
    return of.cornered(-1.0, [Corner(0.0, 2.0)])


def _hard_sigmoid(of: _Function) -> Kink | None:
    """max(0, min(1, alpha x + beta))."""
    alpha, beta = of.real("alpha", 0.2), of.real("beta", 0.5)
    if alpha <= 0:
        return None
    return of.cornered(0.0, [Corner(-beta / alpha, alpha), Corner((1 - beta) / alpha, -alpha)])


def _hard_swish(of: _Function) -> Kink:
    """x max(0, min(1, x/6 + 1/2)): x/3 + 1/2 between -3 and 3."""
    return of.cornered(0.0, [Corner(-3.0, -0.5, 1 / 3), Corner(3.0, -0.5, -1 / 3)])


def _clip(of: _Function) -> Kink | None:
    low, high = [*of.node.input[1:], "", ""][:2]
    numbers = of.stored.numbers
    if any(bound and bound not in numbers for bound in (low, high)):
        return None
    corners = [Corner(numbers[low], 1.0)] if low else []
    if high:
        corners.append(Corner(numbers[high], -1.0))
    is_empty = bool(low and high) and numbers[low] >= numbers[high]
    return None if is_empty else of.cornered(0.0 if low else 1.0, corners)


def _max(of: _Function) -> Kink | None:
    """max(x, c) of a stored number c, or of two tensors."""
    found = _variable(of)
    if found is None:
        return _between(of, is_largest=True)
    return Cornered(found[0], of.y, 0.0, (Corner(found[1], 1.0),))


def _min(of: _Function) -> Kink | None:
    found = _variable(of)
    if found is None:
        return _between(of, is_largest=False)
    return Cornered(found[0], of.y, 1.0, (Corner(found[1], -1.0),))


def _variable(of: _Function) -> tuple[str, float] | None:
    """Return which of two inputs is no stored number, and the number that the other is."""
    numbers = [of.stored.numbers[name] for name in of.node.input if name in of.stored.numbers]
    others = [name for name in of.node.input if name not in of.stored.numbers]
    return (others[0], numbers[0]) if len(numbers) == len(others) == 1 else None


def _between(of: _Function, *, is_largest: bool) -> Kink | None:
    if len(set(of.node.input)) != 2 or of.stored.names.intersection(of.node.input):
        return None
    one, other = of.node.input
    return Between((one, other), of.y, is_largest)


def _max_pool(of: _Function) -> Kink | None:
    if of.integer("storage_order", 0) or len(of.node.output) > 1:
        return None  # indices that run column by column, or that somebody else reads
    return Contest(of.x, of.y, PooledWinners(of.y))


def _global_max_pool(of: _Function) -> Kink:
    return Contest(of.x, of.y, ReducedWinners(None, is_largest=True))


def _reduce_max(of: _Function) -> Kink | None:
    return _reduced(of, is_largest=True)


def _reduce_min(of: _Function) -> Kink | None:
    return _reduced(of, is_largest=False)


def _reduced(of: _Function, *, is_largest: bool) -> Kink | None:
    """An extreme over axes that are stored with the graph."""
    given = next((tuple(a.ints) for a in of.node.attribute if a.name == "axes"), None)
    if given is None and len(of.node.input) > 1:
        given = of.stored.integers.get(of.node.input[1])
    return Contest(of.x, of.y, ReducedWinners(given, is_largest=is_largest)) if given else None


_KINKS: Mapping[str, Callable[[_Function], Kink | None]] = {
    "Abs": _abs,
    "Clip": _clip,
    "Elu": _elu,
    "GlobalMaxPool": _global_max_pool,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "LeakyRelu": _leaky_relu,
    "Max": _max,
    "MaxPool": _max_pool,
    "Min": _min,
    "PRelu": _parametric_relu,
    "ReduceMax": _reduce_max,
    "ReduceMin": _reduce_min,
    "Relu": _relu,
    "Selu": _selu,
    "Shrink": _shrink,
    "ThresholdedRelu": _thresholded_relu,
}
