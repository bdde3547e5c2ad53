"""Normalizations: by mean and variance, by root mean square, by stored statistics."""

import math
from collections.abc import Sequence

import numpy as np

from foldmark.graphs.derivative.tape import Gradients, Step

__all__ = ["RULES", "normalized_gradient"]


def _channels(at: Step, value: str) -> str:
    """Reshape a vector per channel so that it broadcasts over (batch, channel, ...)."""
    rank = len(at.shape())
    return at.tape.reshape(value, (-1, *[1] * (rank - 2)))


def _mean(at: Step, value: str, axes: Sequence[int], shape: Sequence[int]) -> str:
    """Append the mean over axes, kept as axes of length 1."""
    count = math.prod(shape[a] for a in axes)
    return at.scale(at.tape.reduce_sum(value, axes, keep=1), 1 / count)


def _standardized(at: Step, x: str, axes: Sequence[int], epsilon: float) -> tuple[str, str]:
    """Append (x - mean) / deviation and 1 / deviation over the axes."""
    tape = at.tape
    centred = tape.subtract(x, _mean(at, x, axes, at.shape()))
    variance = _mean(at, tape.multiply(centred, centred), axes, at.shape())
    deviation = tape.emit("Sqrt", tape.add(variance, at.number(epsilon)))
    inverse = tape.divide(at.number(1), deviation)
    return tape.multiply(centred, inverse), inverse


def normalized_gradient(
    at: Step, g: str, xhat: str, inverse: str, axes: Sequence[int], *, centred: int
) -> str:
    """Append dx for xhat = (x - mean) / deviation: inverse (g - mean g - xhat mean(g xhat)).

    `centred` = 0 for the root mean square, where no mean is taken away.
    """
    tape, shape = at.tape, at.shape()
    aligned = _mean(at, tape.multiply(g, xhat), axes, shape)
    rest = tape.subtract(g, tape.multiply(xhat, aligned))
    if centred:
        rest = tape.subtract(rest, _mean(at, g, axes, shape))
    return tape.multiply(rest, inverse)


def _layer_norm(at: Step) -> Gradients:
    """Y = scale xhat + bias, xhat standardized over the last axes."""
    tape, shape = at.tape, at.shape()
    axes = list(range(at.axis(-1), len(shape)))
    if len(axes) == 1 and len(shape) > 1 and at.dtype == np.float32 and at.shape(1) == shape[-1:]:
        return _layer_norm_of_rows(at)
    xhat, inverse = _standardized(at, at.input(), axes, at.real("epsilon", 1e-5))
    gradients = {}
    if at.wants(0):
        g = tape.multiply(at.gradient, at.input(1))
        gradients[0] = normalized_gradient(at, g, xhat, inverse, axes, centred=1)
    return gradients | _affine(at, xhat)


def _layer_norm_of_rows(at: Step) -> Gradients:
    """The same over the last axis, in few passes over memory.

    With c = x - mean and r = 1 / deviation, which the forward node knows, h = g scale:
        dx     = r (h - mean h - c r^2 mean(h c))
        dscale = sum over rows of r g c
    A mean over the last axis of something times scale is a product with the matrix scale / n.
    """
    tape, shape = at.tape, at.shape()
    inverse = at.with_output(2, "inverse")
    centred = tape.subtract(at.input(), at.with_output(1, "mean"))
    aligned = tape.multiply(at.gradient, centred)
    gradients = {}
    if at.wants(0):
        column = tape.reshape(at.scale(at.input(1), 1 / shape[-1]), (shape[-1], 1))
        share = tape.multiply(tape.emit("MatMul", aligned, column), tape.multiply(inverse, inverse))
        rest = tape.subtract(tape.multiply(at.gradient, at.input(1)), tape.multiply(centred, share))
        rest = tape.subtract(rest, tape.emit("MatMul", at.gradient, column))
        gradients[0] = tape.multiply(rest, inverse)
    if at.wants(1):
        rows = math.prod(shape[:-1])
        row = tape.reshape(inverse, (1, rows))
        summed = tape.emit("MatMul", row, tape.reshape(aligned, (rows, shape[-1])))
        gradients[1] = tape.reshape(summed, at.shape(1))
    if at.wants(2):
        gradients[2] = tape.sum_to(at.gradient, shape, at.shape(2))
    return gradients


def _affine(at: Step, xhat: str) -> dict[int, str]:
    """Return the gradients of scale (input 1) and bias (input 2) that broadcast over xhat."""
    gradients = {}
    if at.wants(1):
        product = at.tape.multiply(at.gradient, xhat)
        gradients[1] = at.tape.sum_to(product, at.shape(), at.shape(1))
    if at.wants(2):
        gradients[2] = at.tape.sum_to(at.gradient, at.shape(), at.shape(2))
    return gradients


def _rms_norm(at: Step) -> Gradients:
    """Y = scale x / sqrt(mean x^2 + epsilon)."""
    tape, shape = at.tape, at.shape()
    axes = list(range(at.axis(-1), len(shape)))
    squares = _mean(at, tape.multiply(at.input(), at.input()), axes, shape)
    root = tape.emit("Sqrt", tape.add(squares, at.number(at.real("epsilon", 1e-5))))
    inverse = tape.divide(at.number(1), root)
    xhat = tape.multiply(at.input(), inverse)
    gradients = {}
    if at.wants(0):
        g = tape.multiply(at.gradient, at.input(1))
        gradients[0] = normalized_gradient(at, g, xhat, inverse, axes, centred=0)
    return gradients | _affine(at, xhat)


def _batch_norm(at: Step) -> Gradients:
    """Y = scale (x - mean) / sqrt(variance + epsilon) + bias, per channel, by stored statistics."""
    if at.integer("training_mode", 0):
        raise at.refused("it is in training mode")
    tape, g = at.tape, at.gradient
    others = [0, *range(2, len(at.shape()))]
    padded = tape.add(at.input(4), at.number(at.real("epsilon", 1e-5)))
    inverse = tape.divide(at.number(1), tape.emit("Sqrt", padded))
    slope = tape.multiply(at.input(1), inverse)
    gradients = {}
    if at.wants(0):
        gradients[0] = tape.multiply(g, _channels(at, slope))
    if at.wants(2):
        gradients[2] = tape.reduce_sum(g, others)
    if at.wants(3):
        gradients[3] = at.negate(tape.multiply(tape.reduce_sum(g, others), slope))
    if at.wants(1) or at.wants(4):
        centred = tape.subtract(at.input(), _channels(at, at.input(3)))
        aligned = tape.reduce_sum(tape.multiply(g, centred), others)
        if at.wants(1):
            gradients[1] = tape.multiply(aligned, inverse)
        if at.wants(4):
            cubed = tape.divide(slope, padded)
            gradients[4] = at.scale(tape.multiply(aligned, cubed), -0.5)
    return gradients


def _instance_norm(at: Step) -> Gradients:
    """Y = scale xhat + bias per channel, xhat standardized over each image."""
    tape, axes = at.tape, list(range(2, len(at.shape())))
    xhat, inverse = _standardized(at, at.input(), axes, at.real("epsilon", 1e-5))
    gradients = {}
    if at.wants(0):
        g = tape.multiply(at.gradient, _channels(at, at.input(1)))
        gradients[0] = normalized_gradient(at, g, xhat, inverse, axes, centred=1)
    if at.wants(1):
        gradients[1] = tape.reduce_sum(tape.multiply(at.gradient, xhat), [0, *axes])
    if at.wants(2):
        gradients[2] = tape.reduce_sum(at.gradient, [0, *axes])
    return gradients


def _lp_norm(at: Step) -> Gradients:
    """Y = x / |x| along one axis, by the sum of squares (p = 2) or of magnitudes (p = 1)."""
    tape, axis = at.tape, [at.axis(-1)]
    if at.integer("p", 2) == 2:
        squares = tape.reduce_sum(tape.multiply(at.input(), at.input()), axis, keep=1)
        norm, slope = tape.emit("Sqrt", squares), at.output()
    else:
        norm = tape.reduce_sum(tape.emit("Abs", at.input()), axis, keep=1)
        slope = tape.emit("Sign", at.input())
    aligned = tape.reduce_sum(tape.multiply(at.gradient, at.output()), axis, keep=1)
    rest = tape.subtract(at.gradient, tape.multiply(slope, aligned))
    zero = tape.emit("Equal", norm, at.number(0))
    return {0: tape.emit("Where", zero, at.number(0), tape.divide(rest, norm))}


RULES = {
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_norm,
    "RMSNormalization": _rms_norm,
    "SimplifiedLayerNormalization": _rms_norm,
}
