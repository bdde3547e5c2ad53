"""Rules of ONNX Runtime's own operators (domain com.microsoft)."""

from foldmark.graphs.derivative.elementwise import normal_slope, sigmoid_slope, tanh_slope
from foldmark.graphs.derivative.tape import Gradients, Step

__all__ = ["RULES"]


def _gelu(at: Step) -> Gradients:
    return {0: at.tape.multiply(at.gradient, normal_slope(at, at.input()))}


def _fast_gelu(at: Step) -> Gradients:
    """Gelu by tanh of x + bias; the bias, when there is one, runs along the last axis."""
    tape = at.tape
    x = tape.add(at.input(), at.input(1)) if at.has(1) else at.input()
    return _biased(at, tape.multiply(at.gradient, tanh_slope(at, x)))


def _bias_gelu(at: Step) -> Gradients:
    x = at.tape.add(at.input(), at.input(1))
    return _biased(at, at.tape.multiply(at.gradient, normal_slope(at, x)))


def _biased(at: Step, gradient: str) -> Gradients:
    gradients = {0: gradient}
    if at.wants(1):
        gradients[1] = at.tape.sum_to(gradient, at.shape(), at.shape(1))
    return gradients


def _quick_gelu(at: Step) -> Gradients:
    slope = sigmoid_slope(at, at.input(), at.real("alpha", 1.702))
    return {0: at.tape.multiply(at.gradient, slope)}


RULES = {
    "BiasGelu": _bias_gelu,
    "FastGelu": _fast_gelu,
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
}
