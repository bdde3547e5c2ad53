"""Pooling over windows and over whole images."""

import math

import numpy as np

from foldmark.graphs.derivative.convolution import window_pads
from foldmark.graphs.derivative.tape import Gradients, Step

__all__ = ["RULES"]


def _max_pool(at: Step) -> Gradients:
    """The gradient goes to the element that won each window."""
    tape = at.tape
    if at.integer("storage_order", 0):
        raise at.refused("its indices run column by column")
    winners = tape.reshape(at.with_output(1, "winners"), (-1,))
    flat = tape.emit(
        "ScatterElements",
        tape.zeros((math.prod(at.shape()),), at.dtype),
        winners,
        tape.reshape(at.gradient, (-1,)),
        reduction="add",
    )
    return {0: tape.reshape(flat, at.shape())}


def _average_pool(at: Step) -> Gradients:
    """Every element of a window receives g / (the window's divisor)."""
    tape, shape, result = at.tape, at.shape(), at.output_shape()
    kernel = at.integers("kernel_shape") or []
    ones = [1] * len(kernel)
    strides = at.integers("strides") or ones
    dilations = at.integers("dilations") or ones
    pads = window_pads(at, kernel, strides, dilations)
    count = len(kernel)
    # The runtime's own divisor: the average of an image of ones is (elements seen) / divisor.
    attributes = {a.name: at.attributes[a.name] for a in at.node.attribute}
    image = tape.constant(np.ones((1, 1, *shape[2:])), at.dtype)
    average = tape.emit("AveragePool", image, **attributes)  # type: ignore[arg-type]
    seen = np.ones((1, 1, *result[2:]))
    spans = []
    for i in range(count):
        starts = np.arange(result[2 + i]) * strides[i] - pads[i]
        taps = starts[:, None] + np.arange(kernel[i]) * dilations[i]
        inside = ((taps >= 0) & (taps < shape[2 + i])).sum(axis=1)
        seen = seen * inside.reshape([-1 if a == 2 + i else 1 for a in range(count + 2)])
        spans.append((result[2 + i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1)
    share = tape.divide(average, tape.constant(np.maximum(seen, 1), at.dtype))
    planes = tape.reshape(tape.multiply(at.gradient, share), (shape[0] * shape[1], 1, *result[2:]))
    window = tape.constant(np.ones((1, 1, *kernel)), at.dtype)
    spread = tape.emit("ConvTranspose", planes, window, strides=strides, dilations=dilations)
    return {0: tape.reshape(_cropped(at, spread, pads, spans), shape)}


def _cropped(at: Step, spread: str, pads: list[int], spans: list[int]) -> str:
    """Cut what the windows covered down to the image; what no window reached is zero."""
    tape, space = at.tape, at.shape()[2:]
    count = len(space)
    missing = [max(n + pads[i] - spans[i], 0) for i, n in enumerate(space)]
    if any(missing):
        spread = tape.emit("Pad", spread, tape.integers([0, 0] + [0] * count + [0, 0] + missing))
    starts = pads[:count]
    ends = [s + n for s, n in zip(starts, space, strict=True)]
    if any(starts) or any(max(a, b) != b for a, b in zip(spans, ends, strict=True)):
        axes = tape.integers(range(2, 2 + count))
        spread = tape.emit("Slice", spread, tape.integers(starts), tape.integers(ends), axes)
    return spread


def _global_average_pool(at: Step) -> Gradients:
    share = at.scale(at.gradient, 1 / math.prod(at.shape()[2:]))
    return {0: at.tape.emit("Expand", share, at.tape.integers(at.shape()))}


def _global_max_pool(at: Step) -> Gradients:
    """The elements that equal the largest share the gradient."""
    tape = at.tape
    hits = tape.emit("CastLike", tape.emit("Equal", at.input(), at.output()), at.input())
    count = tape.reduce_sum(hits, range(2, len(at.shape())), keep=1)
    return {0: tape.multiply(hits, tape.divide(at.gradient, count))}


RULES = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
    "MaxPool": _max_pool,
}
