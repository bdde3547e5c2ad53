"""Resize: linear in the image and separable, so its gradient is one matrix per axis."""

import numpy as np
import onnx

from foldmark.graphs.derivative.tape import Gradients, Step

__all__ = ["RULES"]


_INTERPOLATION = (
    "mode",
    "coordinate_transformation_mode",
    "nearest_mode",
    "cubic_coeff_a",
    "exclude_outside",
    "extrapolation_value",
)


def _resize(at: Step) -> Gradients:
    """For each resized axis of n -> m elements: dx = g R, R (m, n) the resizing of unit vectors.

    R is computed by the operator itself, on an identity matrix, so that every coordinate
    transformation and interpolation is the runtime's own.
    """
    if at.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        raise at.refused("it crops")
    if at.integer("antialias", 0):
        raise at.refused("it antialiases")
    if at.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise at.refused("it keeps the aspect ratio")
    tape, g = at.tape, at.gradient
    rank = len(at.shape())
    for axis, (n, m) in enumerate(zip(at.shape(), at.output_shape(), strict=True)):
        scale = _scale(at, axis)
        if n == m and scale in (None, 1.0):
            continue
        order = [i for i in range(rank) if i != axis] + [axis]
        back = [int(i) for i in np.argsort(order)]
        last = tape.emit("MatMul", tape.transpose(g, order), _weights(at, n, m, scale))
        g = tape.transpose(last, back)
    return {0: g}


def _scale(at: Step, axis: int) -> float | None:
    """Return the scale given for an axis, None when sizes were given instead."""
    scales = at.parameter(2)
    if scales is None or scales.size == 0:
        return None
    axes = at.integers("axes")
    if axes is None:
        return float(scales[axis])
    axes = [a % len(at.shape()) for a in axes]
    return float(scales[axes.index(axis)]) if axis in axes else 1.0


def _weights(at: Step, n: int, m: int, scale: float | None) -> str:
    """Append R (m, n): column j is the resizing of the unit vector j."""
    tape = at.tape
    identity = tape.constant(np.eye(n), at.dtype)
    attributes = {
        a.name: onnx.helper.get_attribute_value(a)
        for a in at.node.attribute
        if a.name in _INTERPOLATION
    }
    if scale is None:
        rest = ["", "", tape.integers([n, m])]
    else:
        rest = ["", tape.constant([1.0, scale], np.float32)]
    rows = tape.emit("Resize", identity, *rest, **attributes)  # (n, m)
    return tape.transpose(rows, [1, 0])


RULES = {"Resize": _resize}
