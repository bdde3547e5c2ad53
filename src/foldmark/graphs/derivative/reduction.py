"""Reductions over axes, and running sums."""

import math
from collections.abc import Callable

import numpy as np

from foldmark.graphs.derivative.tape import Gradients, Step

__all__ = ["RULES"]


def _axes(at: Step) -> list[int]:
    """Return the axes reduced over, an attribute or an input by the operator's version."""
    rank = len(at.shape())
    given = at.integers("axes")
    if given is None:
        value = at.parameter(1)
        given = None if value is None else [int(n) for n in np.ravel(value)]
    if not given:
        return [] if at.integer("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(n % rank for n in given)


def _kept(at: Step, value: str) -> str:
    """Append the value of the output's shape with the reduced axes back as length 1."""
    axes = _axes(at)
    shape = [1 if i in axes else n for i, n in enumerate(at.shape())]
    return value if tuple(shape) == at.output_shape() else at.tape.reshape(value, shape)


def _spread(at: Step, value: str) -> str:
    """Append the kept value repeated to the input's shape."""
    kept = _kept(at, value)
    if at.shape() == tuple(1 if i in _axes(at) else n for i, n in enumerate(at.shape())):
        return kept
    return at.tape.emit("Expand", kept, at.tape.integers(at.shape()))


def _sum(at: Step) -> Gradients:
    return {0: _spread(at, at.gradient)}


def _mean(at: Step) -> Gradients:
    count = math.prod(at.shape()[a] for a in _axes(at))
    return {0: _spread(at, at.scale(at.gradient, 1 / max(count, 1)))}


def _extreme(at: Step) -> Gradients:
    """The elements that equal the extreme share the gradient."""
    tape = at.tape
    equal = tape.emit("Equal", at.input(), _kept(at, at.output()))
    hits = tape.emit("CastLike", equal, at.input())
    axes = _axes(at)
    count = tape.reduce_sum(hits, axes, keep=1) if axes else hits
    return {0: tape.multiply(hits, tape.divide(_kept(at, at.gradient), count))}


def _by_slope(slope: Callable[[Step], str]) -> Callable[[Step], Gradients]:
    """Return the rule dx = g * slope(x), slope of the input's shape."""

    def rule(at: Step) -> Gradients:
        return {0: at.tape.multiply(_kept(at, at.gradient), slope(at))}

    return rule


def _product(at: Step) -> str:
    """D prod = prod / x: undefined here where an element is zero."""
    return at.tape.divide(_kept(at, at.output()), at.input())


def _magnitude(at: Step) -> str:
    return at.tape.emit("Sign", at.input())


def _length(at: Step) -> str:
    """D sqrt(sum x^2) = x / y; zero where the length is zero."""
    tape, y = at.tape, _kept(at, at.output())
    zero = tape.emit("Equal", y, at.number(0))
    return tape.emit("Where", zero, at.number(0), tape.divide(at.input(), y))


def _squares(at: Step) -> str:
    return at.scale(at.input(), 2)


def _log_sum(at: Step) -> str:
    """D log(sum x) = 1 / sum x."""
    return at.tape.emit("Exp", at.negate(_kept(at, at.output())))


def _log_sum_rule(at: Step) -> Gradients:
    return {0: _spread(at, at.tape.multiply(_kept(at, at.gradient), _log_sum(at)))}


def _log_sum_exp(at: Step) -> str:
    """D log(sum exp x) = exp(x - y), the softmax."""
    return at.tape.emit("Exp", at.tape.subtract(at.input(), _kept(at, at.output())))


def _running_sum(at: Step) -> Gradients:
    """The gradient of a running sum is the running sum from the other end."""
    gradient = at.tape.emit(
        "CumSum",
        at.gradient,
        at.input(1),
        exclusive=at.integer("exclusive", 0),
        reverse=1 - at.integer("reverse", 0),
    )
    return {0: gradient}


RULES = {
    "CumSum": _running_sum,
    "ReduceL1": _by_slope(_magnitude),
    "ReduceL2": _by_slope(_length),
    "ReduceLogSum": _log_sum_rule,
    "ReduceLogSumExp": _by_slope(_log_sum_exp),
    "ReduceMax": _extreme,
    "ReduceMean": _mean,
    "ReduceMin": _extreme,
    "ReduceProd": _by_slope(_product),
    "ReduceSum": _sum,
    "ReduceSumSquare": _by_slope(_squares),
}
