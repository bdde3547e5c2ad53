"""Operators that only move elements: reshape, cut, join, repeat, pad."""

import math

import numpy as np

from foldmark.graphs.derivative.tape import Gradients, Step

__all__ = ["RULES", "moved"]


def moved(at: Step) -> Gradients:
    """Scatter the gradient to where each element came from.

    The operator itself, run on the positions 0, 1, 2, ... in place of the elements, says where
    that is. Right for every operator that copies elements and makes none up.
    """
    tape, shape = at.tape, at.shape()
    size = math.prod(shape)
    positions = tape.constant(np.arange(size, dtype=np.int64).reshape(shape))
    attributes = {a.name: at.attributes[a.name] for a in at.node.attribute}
    sources = tape.emit(
        at.node.op_type,
        positions,
        *list(at.node.input)[1:],
        domain=at.node.domain,
        **attributes,  # type: ignore[arg-type]
    )
    flat = tape.emit(
        "ScatterElements",
        tape.zeros((size,), at.dtype),
        tape.reshape(sources, (-1,)),
        tape.reshape(at.gradient, (-1,)),
        reduction="add",
    )
    return {0: tape.reshape(flat, shape)}


def _reshaped(at: Step) -> Gradients:
    """Whatever only reshapes is undone by reshaping."""
    return {0: at.tape.reshape(at.gradient, at.shape())}


def _transpose(at: Step) -> Gradients:
    permutation = at.integers("perm") or list(range(len(at.shape())))[::-1]
    return {0: at.tape.transpose(at.gradient, [int(n) for n in np.argsort(permutation)])}


def _concat(at: Step) -> Gradients:
    axis = at.axis(0)
    sizes = [at.shape(i)[axis] for i in range(len(at.node.input))]
    wanted = [i for i in range(len(sizes)) if at.wants(i)]
    if len(wanted) == 1:
        start = sum(sizes[: wanted[0]])
        return {wanted[0]: _cut(at, axis, start, start + sizes[wanted[0]])}
    parts = at.tape.emit_many(
        "Split", at.gradient, at.tape.integers(sizes), outputs=len(sizes), axis=axis
    )
    return {i: parts[i] for i in wanted}


def _cut(at: Step, axis: int, start: int, end: int) -> str:
    tape = at.tape
    span = (tape.integers([start]), tape.integers([end]), tape.integers([axis]))
    return tape.emit("Slice", at.gradient, *span)


def _split(at: Step) -> Gradients:
    """Join the parts' gradients; a part that nobody used counts as zeros."""
    axis = at.axis(0)
    parts = [
        at.tape.zeros(at.output_shape(i), at.dtype) if g is None else g
        for i, g in enumerate(at.gradients)
    ]
    return {0: at.tape.emit("Concat", *parts, axis=axis)}


def _slice(at: Step) -> Gradients:
    """Pad the gradient back to the input's shape; with strides other than 1, scatter it."""
    shape, rank = at.shape(), len(at.shape())
    starts, axes, steps = at.parameter(1), at.parameter(3), at.parameter(4)
    assert starts is not None
    axes = np.arange(len(starts)) if axes is None else axes
    if steps is not None and any(steps != 1):
        return moved(at)
    before = [0] * rank
    for start, axis in zip(starts, axes, strict=True):
        n = shape[axis]
        before[axis % rank] = int(np.clip(start + n if start < 0 else start, 0, n))
    kept = at.output_shape()
    after = [n - b - k for n, b, k in zip(shape, before, kept, strict=True)]
    if not any(before) and not any(after):
        return {0: at.gradient}
    return {0: at.tape.emit("Pad", at.gradient, at.tape.integers(before + after))}


def _pad(at: Step) -> Gradients:
    """Cut the padding off; where it repeated elements, add their gradients up."""
    pads = at.parameter(1)
    assert pads is not None
    shape, rank = at.shape(), len(at.shape())
    axes = at.parameter(3)
    before, after = [0] * rank, [0] * rank
    chosen = range(rank) if axes is None else [int(a) % rank for a in axes]
    for i, axis in enumerate(chosen):
        before[axis], after[axis] = int(pads[i]), int(pads[i + len(pads) // 2])
    if at.text("mode", "constant") != "constant":
        if min(before + after) < 0:
            raise at.refused("it cuts and repeats at once")
        return moved(at)
    tape, g = at.tape, at.gradient
    if any(n > 0 for n in before + after):
        starts = [max(b, 0) for b in before]
        ends = [
            max(b, 0) + n + min(b, 0) + min(a, 0)
            for b, a, n in zip(before, after, shape, strict=True)
        ]
        g = tape.emit(
            "Slice", g, tape.integers(starts), tape.integers(ends), tape.integers(range(rank))
        )
    if any(n < 0 for n in before + after):  # a negative pad cut elements off
        back = [max(-n, 0) for n in before + after]
        g = tape.emit("Pad", g, tape.integers(back))
    gradients = {0: g}
    if at.wants(2):
        total = tape.reduce_sum(at.gradient, range(rank))
        inside = tape.reduce_sum(g, range(rank))
        gradients[2] = tape.reshape(tape.subtract(total, inside), at.shape(2))
    return gradients


def _expand(at: Step) -> Gradients:
    return {0: at.tape.sum_to(at.gradient, at.output_shape(), at.shape())}


def _tile(at: Step) -> Gradients:
    """Sum over the repetitions, each axis seen as (repetition, element)."""
    shape, result = at.shape(), at.output_shape()
    paired = [n for k, m in zip(shape, result, strict=True) for n in (m // max(k, 1), k)]
    folded = at.tape.reshape(at.gradient, paired)
    axes = [2 * i for i in range(len(shape)) if paired[2 * i] != 1]
    if axes:
        folded = at.tape.reduce_sum(folded, axes)
    return {0: at.tape.reshape(folded, shape)}


def _depth_to_space(at: Step) -> Gradients:
    """(n, c, h, w) seen with its blocks as axes, transposed back."""
    tape, block = at.tape, at.integer("blocksize", 1)
    n, depth, height, width = at.shape()
    channels = depth // (block * block)
    g = tape.reshape(at.gradient, (n, channels, height, block, width, block))
    column_first = at.text("mode", "DCR") == "CRD"
    g = tape.transpose(g, [0, 1, 3, 5, 2, 4] if column_first else [0, 3, 5, 1, 2, 4])
    return {0: tape.reshape(g, at.shape())}


def _space_to_depth(at: Step) -> Gradients:
    block = at.integer("blocksize", 1)
    return {0: at.tape.emit("DepthToSpace", at.gradient, blocksize=block, mode="DCR")}


def _trilu(at: Step) -> Gradients:
    rest = [at.input(1)] if at.has(1) else []
    return {0: at.tape.emit("Trilu", at.gradient, *rest, upper=at.integer("upper", 1))}


RULES = {
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _reshaped,
    "Pad": _pad,
    "Reshape": _reshaped,
    "ReverseSequence": moved,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _reshaped,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _reshaped,
}
