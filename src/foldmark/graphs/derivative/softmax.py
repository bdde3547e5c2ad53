"""Softmax and its logarithm along one axis."""

from foldmark.graphs.derivative.tape import Gradients, Step

__all__ = ["RULES", "softmax_gradient"]


def softmax_gradient(at: Step, gradient: str, probabilities: str, axis: int) -> str:
    """Append dx = p (g - sum(g p)); a masked score has p = 0 and so no gradient."""
    tape = at.tape
    product = tape.multiply(gradient, probabilities)
    total = tape.reduce_sum(product, [axis], keep=1)
    return tape.subtract(product, tape.multiply(probabilities, total))


def _softmax(at: Step) -> Gradients:
    return {0: softmax_gradient(at, at.gradient, at.output(), at.axis(-1))}


def _log_softmax(at: Step) -> Gradients:
    """Dx = g - p sum(g)."""
    tape = at.tape
    total = tape.reduce_sum(at.gradient, [at.axis(-1)], keep=1)
    probabilities = tape.emit("Exp", at.output())
    return {0: tape.subtract(at.gradient, tape.multiply(probabilities, total))}


RULES = {"LogSoftmax": _log_softmax, "Softmax": _softmax}
