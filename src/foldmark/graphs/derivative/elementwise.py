"""Functions of one tensor, element by element: dx = g * f'(x)."""

import math
from collections.abc import Callable

from foldmark.graphs.derivative.tape import Gradients, Step

__all__ = ["RULES"]


def _slope(slope: Callable[[Step], str]) -> Callable[[Step], Gradients]:
    """Return the rule dx = g * slope(x)."""

    def rule(at: Step) -> Gradients:
        return {0: at.tape.multiply(at.gradient, slope(at))}

    return rule


def _passed(at: Step) -> Gradients:
    """dx = g."""
    return {0: at.gradient}


def _negated(at: Step) -> Gradients:
    """dx = -g."""
    return {0: at.negate(at.gradient)}


def _gate(at: Step, condition: str, inside: str, outside: str) -> Gradients:
    """dx = inside where the condition holds, outside elsewhere."""
    return {0: at.tape.emit("Where", condition, inside, outside)}


def _greater(at: Step, value: str, than: float) -> str:
    return at.tape.emit("Greater", value, at.number(than))


def _log(at: Step) -> Gradients:
    """d log(x) = 1 / x."""
    return {0: at.tape.divide(at.gradient, at.input())}


def _sqrt(at: Step) -> Gradients:
    """d sqrt(x) = 1 / (2 sqrt(x)); zero at x = 0, where the slope is infinite."""
    root = at.output()
    half = at.scale(at.gradient, 0.5)
    return _gate(at, _greater(at, root, 0), at.tape.divide(half, root), at.number(0))


def _reciprocal(at: Step) -> str:
    """d(1/x) = -(1/x)^2."""
    return at.negate(at.tape.multiply(at.output(), at.output()))


def _exp(at: Step) -> str:
    return at.output()


def _erf(at: Step) -> str:
    """d erf(x) = 2 / sqrt(pi) exp(-x^2)."""
    squared = at.tape.multiply(at.input(), at.input())
    bell = at.tape.emit("Exp", at.negate(squared))
    return at.scale(bell, 2 / math.sqrt(math.pi))


def _tanh(at: Step) -> str:
    """d tanh(x) = 1 - tanh(x)^2."""
    return at.tape.subtract(at.number(1), at.tape.multiply(at.output(), at.output()))


def _sigmoid(at: Step) -> str:
    """d s(x) = s(x) (1 - s(x))."""
    return at.tape.multiply(at.output(), at.tape.subtract(at.number(1), at.output()))


def _abs(at: Step) -> str:
    return at.tape.emit("Sign", at.input())


def _sin(at: Step) -> str:
    return at.tape.emit("Cos", at.input())


def _cos(at: Step) -> str:
    return at.negate(at.tape.emit("Sin", at.input()))


def _tan(at: Step) -> str:
    """d tan(x) = 1 + tan(x)^2."""
    return at.tape.add(at.number(1), at.tape.multiply(at.output(), at.output()))


def _sinh(at: Step) -> str:
    return at.tape.emit("Cosh", at.input())


def _cosh(at: Step) -> str:
    return at.tape.emit("Sinh", at.input())


def _atan(at: Step) -> str:
    """d atan(x) = 1 / (1 + x^2)."""
    squared = at.tape.multiply(at.input(), at.input())
    return at.tape.emit("Reciprocal", at.tape.add(at.number(1), squared))


def _relu(at: Step) -> Gradients:
    return _gate(at, _greater(at, at.output(), 0), at.gradient, at.number(0))


def _leaky_relu(at: Step) -> Gradients:
    below = at.scale(at.gradient, at.real("alpha", 0.01))
    return _gate(at, _greater(at, at.input(), 0), at.gradient, below)


def _thresholded_relu(at: Step) -> Gradients:
    inside = _greater(at, at.input(), at.real("alpha", 1.0))
    return _gate(at, inside, at.gradient, at.number(0))


def _elu(at: Step) -> Gradients:
    """d elu(x) = 1 above zero, elu(x) + alpha below."""
    below = at.tape.add(at.output(), at.number(at.real("alpha", 1.0)))
    below = at.tape.multiply(at.gradient, below)
    return _gate(at, _greater(at, at.input(), 0), at.gradient, below)


def _celu(at: Step) -> Gradients:
    """d celu(x) = 1 above zero, celu(x) / alpha + 1 below."""
    below = at.scale(at.output(), 1 / at.real("alpha", 1.0))
    below = at.tape.multiply(at.gradient, at.tape.add(below, at.number(1)))
    return _gate(at, _greater(at, at.input(), 0), at.gradient, below)


def _selu(at: Step) -> Gradients:
    """d selu(x) = gamma above zero, selu(x) + gamma alpha below."""
    alpha = at.real("alpha", 1.6732631921768188)
    gamma = at.real("gamma", 1.0507010221481323)
    below = at.tape.add(at.output(), at.number(alpha * gamma))
    below = at.tape.multiply(at.gradient, below)
    return _gate(at, _greater(at, at.input(), 0), at.scale(at.gradient, gamma), below)


def _softplus(at: Step) -> str:
    return at.tape.emit("Sigmoid", at.input())


def _softsign(at: Step) -> str:
    """d(x / (1 + |x|)) = 1 / (1 + |x|)^2."""
    one_more = at.tape.add(at.number(1), at.tape.emit("Abs", at.input()))
    return at.tape.emit("Reciprocal", at.tape.multiply(one_more, one_more))


def _between(at: Step, low: float, high: float) -> str:
    above = _greater(at, at.input(), low)
    below = at.tape.emit("Less", at.input(), at.number(high))
    return at.tape.emit("And", above, below)


def _hard_sigmoid(at: Step) -> Gradients:
    """d max(0, min(1, alpha x + beta)) = alpha on the slope, zero beside it."""
    alpha, beta = at.real("alpha", 0.2), at.real("beta", 0.5)
    if alpha == 0:
        return {}
    ends = sorted([-beta / alpha, (1 - beta) / alpha])
    return _gate(at, _between(at, *ends), at.scale(at.gradient, alpha), at.number(0))


def _hard_swish(at: Step) -> Gradients:
    """d(x max(0, min(1, x/6 + 1/2))) = x/3 + 1/2 between -3 and 3."""
    slope = at.tape.add(at.scale(at.input(), 1 / 3), at.number(0.5))
    inside = at.tape.multiply(at.gradient, slope)
    above = at.tape.emit("Where", _greater(at, at.input(), 0), at.gradient, at.number(0))
    return _gate(at, _between(at, -3, 3), inside, above)


def _mish(at: Step) -> str:
    """d(x tanh(softplus x)) = u + x (1 - u^2) s(x), u = tanh(softplus x)."""
    tape, x = at.tape, at.input()
    u = tape.emit("Tanh", tape.emit("Softplus", x))
    bend = tape.subtract(at.number(1), tape.multiply(u, u))
    rest = tape.multiply(tape.multiply(x, tape.emit("Sigmoid", x)), bend)
    return tape.add(u, rest)


def _shrink(at: Step) -> Gradients:
    outside = _greater(at, at.tape.emit("Abs", at.input()), at.real("lambd", 0.5))
    return _gate(at, outside, at.gradient, at.number(0))


def normal_slope(at: Step, x: str) -> str:
    """Append the slope of x Phi(x): Phi(x) + x phi(x), Phi the normal distribution."""
    tape = at.tape
    error = tape.emit("Erf", at.scale(x, math.sqrt(0.5)))
    distribution = tape.add(at.scale(error, 0.5), at.number(0.5))
    bell = tape.emit("Exp", at.scale(tape.multiply(x, x), -0.5))
    return tape.add(distribution, tape.multiply(at.scale(x, 1 / math.sqrt(2 * math.pi)), bell))


def tanh_slope(at: Step, x: str) -> str:
    """Append the slope of x (1 + tanh(c (x + b x^3))) / 2, c = sqrt(2/pi), b = 0.044715."""
    tape, c, b = at.tape, math.sqrt(2 / math.pi), 0.044715
    squared = tape.multiply(x, x)
    inner = tape.multiply(x, tape.add(at.number(c), at.scale(squared, c * b)))
    tanh = tape.emit("Tanh", inner)
    bend = tape.subtract(at.number(1), tape.multiply(tanh, tanh))
    inner_slope = tape.add(at.number(c), at.scale(squared, 3 * c * b))
    product = tape.multiply(tape.multiply(x, bend), inner_slope)
    return at.scale(tape.add(tape.add(at.number(1), tanh), product), 0.5)


def sigmoid_slope(at: Step, x: str, alpha: float) -> str:
    """Append the slope of x s(alpha x): s + alpha x s (1 - s)."""
    tape = at.tape
    s = tape.emit("Sigmoid", at.scale(x, alpha))
    rest = tape.multiply(at.scale(x, alpha), tape.subtract(at.number(1), s))
    return tape.multiply(s, tape.add(at.number(1), rest))


def _gelu(at: Step) -> str:
    if at.text("approximate", "none") == "tanh":
        return tanh_slope(at, at.input())
    return normal_slope(at, at.input())


def _swish(at: Step) -> str:
    return sigmoid_slope(at, at.input(), at.real("alpha", 1.0))


def _cast(at: Step) -> Gradients:
    """A cast between floats passes the gradient in the input's type."""
    fact = at.fact(at.input())
    if fact.dtype == at.dtype:
        return {0: at.gradient}
    return {0: at.tape.emit("CastLike", at.gradient, at.input())}


def _clip(at: Step) -> Gradients:
    """d clip(x, low, high) = 1 between the ends, zero beyond; the ends take what is beyond."""
    tape, gradients = at.tape, {}
    inside = ""
    for slot, past in ((1, "Less"), (2, "Greater")):
        if not at.has(slot):
            continue
        beyond = tape.emit(past, at.input(), at.input(slot))
        if at.wants(slot):
            share = tape.emit("Where", beyond, at.gradient, at.number(0))
            gradients[slot] = tape.sum_to(share, at.shape(), at.shape(slot))
        within = tape.emit("Not", beyond)
        inside = tape.emit("And", inside, within) if inside else within
    if at.wants(0):
        gradients[0] = at.gradient
        if inside:
            gradients[0] = tape.emit("Where", inside, at.gradient, at.number(0))
    return gradients


RULES = {
    "Abs": _slope(_abs),
    "Atan": _slope(_atan),
    "Cast": _cast,
    "CastLike": _cast,
    "Celu": _celu,
    "Clip": _clip,
    "Cos": _slope(_cos),
    "Cosh": _slope(_cosh),
    "Dropout": _passed,
    "Elu": _elu,
    "Erf": _slope(_erf),
    "Exp": _slope(_exp),
    "Gelu": _slope(_gelu),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Identity": _passed,
    "LeakyRelu": _leaky_relu,
    "Log": _log,
    "Mish": _slope(_mish),
    "Neg": _negated,
    "Reciprocal": _slope(_reciprocal),
    "Relu": _relu,
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": _slope(_sigmoid),
    "Sin": _slope(_sin),
    "Sinh": _slope(_sinh),
    "Softplus": _slope(_softplus),
    "Softsign": _slope(_softsign),
    "Sqrt": _sqrt,
    "Swish": _slope(_swish),
    "Tan": _slope(_tan),
    "Tanh": _slope(_tanh),
    "ThresholdedRelu": _thresholded_relu,
}
