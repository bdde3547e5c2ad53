"""Operators that pick or place elements by index."""

import math

import numpy as np

from foldmark.graphs.derivative.layout import moved
from foldmark.graphs.derivative.tape import Gradients, Step

__all__ = ["RULES"]


def _gather(at: Step) -> Gradients:
    """Add each slice of the gradient to the slice it was read from.

    A single constant index needs no scatter: its gradient is padded with zeros.
    """
    tape, shape, axis = at.tape, at.shape(), at.axis(0)
    index_shape, value = at.shape(1), at.fact(at.input(1)).value
    if math.prod(index_shape) == 1 and value is not None:
        index = int(value.reshape(())) % shape[axis]
        one = tape.reshape(at.gradient, [1 if i == axis else n for i, n in enumerate(shape)])
        before = [index if i == axis else 0 for i in range(len(shape))]
        after = [shape[axis] - index - 1 if i == axis else 0 for i in range(len(shape))]
        return {0: tape.emit("Pad", one, tape.integers(before + after))}
    # Indices to the front, so that one ScatterND adds whole slices.
    count, rank, spread = math.prod(index_shape), len(shape), len(index_shape)
    order = [*range(axis, axis + spread), *range(axis)]
    order += range(axis + spread, rank - 1 + spread)
    others = [*shape[:axis], *shape[axis + 1 :]]
    rows = tape.reshape(tape.transpose(at.gradient, order), (count, *others))
    base = tape.zeros((shape[axis], *others), at.dtype)
    indices = tape.reshape(at.input(1), (count, 1))
    if at.fact(at.input(1)).dtype != np.int64:
        indices = tape.emit("Cast", indices, to=7)
    total = tape.emit("ScatterND", base, indices, rows, reduction="add")
    back = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
    return {0: tape.transpose(total, back)}


def _gather_elements(at: Step) -> Gradients:
    gradient = at.tape.emit(
        "ScatterElements",
        at.tape.zeros(at.shape(), at.dtype),
        at.input(1),
        at.gradient,
        axis=at.axis(0),
        reduction="add",
    )
    return {0: gradient}


def _gather_nd(at: Step) -> Gradients:
    if at.integer("batch_dims", 0):
        return moved(at)
    base = at.tape.zeros(at.shape(), at.dtype)
    return {0: at.tape.emit("ScatterND", base, at.input(1), at.gradient, reduction="add")}


def _scatter_elements(at: Step) -> Gradients:
    """What was written over takes no gradient; what was written takes its place's."""
    tape, axis, gradients = at.tape, at.axis(0), {}
    reduction = at.text("reduction", "none")
    if reduction not in ("none", "add"):
        raise at.refused(f"reduction {reduction!r}")
    if at.wants(0):
        gradients[0] = at.gradient
        if reduction == "none":
            nothing = tape.zeros(at.shape(2), at.dtype)
            gradients[0] = tape.emit(
                "ScatterElements", at.gradient, at.input(1), nothing, axis=axis
            )
    if at.wants(2):
        gradients[2] = tape.emit("GatherElements", at.gradient, at.input(1), axis=axis)
    return gradients


def _scatter_nd(at: Step) -> Gradients:
    tape, gradients = at.tape, {}
    reduction = at.text("reduction", "none")
    if reduction not in ("none", "add"):
        raise at.refused(f"reduction {reduction!r}")
    if at.wants(0):
        gradients[0] = at.gradient
        if reduction == "none":
            nothing = tape.zeros(at.shape(2), at.dtype)
            gradients[0] = tape.emit("ScatterND", at.gradient, at.input(1), nothing)
    if at.wants(2):
        gradients[2] = tape.emit("GatherND", at.gradient, at.input(1))
    return gradients


def _top_k(at: Step) -> Gradients:
    """The values' gradient goes back to the places that the indices name."""
    places = at.with_output(1, "places")
    base = at.tape.zeros(at.shape(), at.dtype)
    gradient = at.tape.emit(
        "ScatterElements", base, places, at.gradient, axis=at.axis(-1), reduction="add"
    )
    return {0: gradient}


RULES = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TopK": _top_k,
}
