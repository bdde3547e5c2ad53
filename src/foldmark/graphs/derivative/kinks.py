"""Functions with kinks, on the stretch of a path for which one node of an integral stands.

Where a Relu opens on the way its slope jumps, and a slope taken at a single point is that of one
side or of the other. An integral needs the mean over the stretch. On the straight line from a to
b, the argument's values at the two ends of the stretch, that mean is known exactly:

    mean of [x > c] = (max(b - c, 0) - max(a - c, 0)) / (b - a)

and the slope of each function here is a sum of such terms. With it a network of Relus is
integrated by as few nodes as a smooth one; with slopes at points thousands of small jumps leave
per cent of the integral with sixteen nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.graphs.light import LightModel

__all__ = ["Corner", "Kink", "find_kinks"]

Float32 = NDArray[np.float32]

# Elements whose temporary arrays stay in a processor's cache.
_BLOCK = 1 << 14


@dataclass(frozen=True)
class Corner:
    """A term [x > limit] (jump + bend (x - limit)) of a slope."""

    limit: float
    jump: float
    bend: float = 0.0


@dataclass(frozen=True)
class Kink:
    """A function of one tensor, element by element, whose slope jumps.

    Attributes:
        argument: name of the tensor.
        result: name of the function's value.
        first: slope below every limit.
        corners: what is added to it beyond each limit.
    """

    argument: str
    result: str
    first: float
    corners: tuple[Corner, ...]

    def mean_slope(self, low: Float32, high: Float32, *, out: Float32 | None = None) -> Float32:
        """Return the slope's mean along the line from `low` to `high`, of their shape.

        It is written into `out` when that is given: touching fresh memory costs more than the
        arithmetic.
        """
        slope = np.empty(low.shape, np.float32) if out is None else out
        flat = slope.reshape(-1), low.reshape(-1), high.reshape(-1)
        # Where nothing moves the quotient is 0 / 0 or infinite, and right once it is bounded.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for start in range(0, slope.size, _BLOCK):
                self._turn(*(array[start : start + _BLOCK] for array in flat))
        return slope

    def _turn(self, slope: Float32, low: Float32, high: Float32) -> None:
        """Write the slope: what it is below every corner, and what each adds."""
        slope.fill(self.first)
        top = np.maximum(low, high)
        width = np.abs(high - low)
        for corner in self.corners:
            limit = np.float32(corner.limit)
            share = (top - limit) / width
            np.fmin(np.fmax(share, 0, out=share), 1, out=share)  # these let go of NaN
            if corner.bend:
                middle = (np.maximum(low - limit, 0) + np.maximum(high - limit, 0)) / 2
                slope += share * (np.float32(corner.bend) * middle)
            slope += share if corner.jump == 1 else np.float32(corner.jump) * share


def find_kinks(model: LightModel) -> dict[str, Kink]:
    """Return the model's functions with kinks by the name of their value."""
    numbers = _numbers(model)
    found = {}
    for node in model.model.graph.node:
        known = _SLOPES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        slope = known(_Function(node, numbers)) if known is not None else None
        if slope is not None:
            argument, first, corners = slope
            found[node.output[0]] = Kink(argument, node.output[0], first, tuple(corners))
    return found


# Argument, slope below every limit, corners; None where a limit is not a stored number.
_Slope = tuple[str, float, Sequence[Corner]] | None


@dataclass(frozen=True)
class _Function:
    """A node, and the stored numbers of its graph."""

    node: onnx.NodeProto
    numbers: Mapping[str, float]

    @property
    def x(self) -> str:
        return self.node.input[0]

    def real(self, name: str, default: float) -> float:
        return next((a.f for a in self.node.attribute if a.name == name), default)


def _relu(of: _Function) -> _Slope:
    return of.x, 0.0, [Corner(0.0, 1.0)]


def _leaky_relu(of: _Function) -> _Slope:
    below = of.real("alpha", 0.01)
    return of.x, below, [Corner(0.0, 1.0 - below)]


def _abs(of: _Function) -> _Slope:
    return of.x, -1.0, [Corner(0.0, 2.0)]


def _hard_sigmoid(of: _Function) -> _Slope:
    """max(0, min(1, alpha x + beta))."""
    alpha, beta = of.real("alpha", 0.2), of.real("beta", 0.5)
    if alpha <= 0:
        return None
    return of.x, 0.0, [Corner(-beta / alpha, alpha), Corner((1 - beta) / alpha, -alpha)]


def _hard_swish(of: _Function) -> _Slope:
    """x max(0, min(1, x/6 + 1/2)): x/3 + 1/2 between -3 and 3."""
    return of.x, 0.0, [Corner(-3.0, -0.5, 1 / 3), Corner(3.0, -0.5, -1 / 3)]


def _clip(of: _Function) -> _Slope:
    low, high = [*of.node.input[1:], "", ""][:2]
    if any(bound and bound not in of.numbers for bound in (low, high)):
        return None
    corners = [Corner(of.numbers[low], 1.0)] if low else []
    if high:
        corners.append(Corner(of.numbers[high], -1.0))
    is_empty = bool(low and high) and of.numbers[low] >= of.numbers[high]
    return None if is_empty else (of.x, 0.0 if low else 1.0, corners)


def _max(of: _Function) -> _Slope:
    """max(x, c) of a stored number c."""
    found = _variable(of)
    return None if found is None else (found[0], 0.0, [Corner(found[1], 1.0)])


def _min(of: _Function) -> _Slope:
    found = _variable(of)
    return None if found is None else (found[0], 1.0, [Corner(found[1], -1.0)])


def _variable(of: _Function) -> tuple[str, float] | None:
    """Return which of two inputs is no stored number, and the number that the other is."""
    numbers = [of.numbers[name] for name in of.node.input if name in of.numbers]
    others = [name for name in of.node.input if name not in of.numbers]
    return (others[0], numbers[0]) if len(numbers) == len(others) == 1 else None


_SLOPES: Mapping[str, Callable[[_Function], _Slope]] = {
    "Abs": _abs,
    "Clip": _clip,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "LeakyRelu": _leaky_relu,
    "Max": _max,
    "Min": _min,
    "Relu": _relu,
}


def _numbers(model: LightModel) -> dict[str, float]:
    """Return the stored floats that are scalars."""
    numbers = {}
    for tensor in model.model.graph.initializer:
        if not tensor.dims and tensor.name not in model.weights:
            value = onnx.numpy_helper.to_array(tensor)
            if np.issubdtype(value.dtype, np.floating):
                numbers[tensor.name] = float(value)
    return numbers
