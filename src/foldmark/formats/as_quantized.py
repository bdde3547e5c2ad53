"""From a tensor as it is stored to a QuantizedTensor: codes, scale and zero point, checked.

The rule of the result says how its codes are read, which the file tells; how they were chosen it
does not tell, and the rule's name says so: "as stored: Q4_K".
"""

from fractions import Fraction

import numpy as np

from foldmark.errors import NotSupported
from foldmark.exact.catalog import FLOAT32, INTEGER_FORMATS
from foldmark.exact.number import IntegerFormat
from foldmark.exact.rule import (
    AffineRule,
    Extent,
    Rule,
    ScaleRule,
    ZeroForm,
    ZeroOrder,
    ZeroPointRule,
)
from foldmark.formats.values import Array, Layout, Values
from foldmark.tensors.block import BlockShape, per_axis, per_group, per_tensor
from foldmark.tensors.quantized import QuantizedTensor
from foldmark.tensors.scheme import Scheme

__all__ = ["as_quantized"]

_KNOWN = {known.name: known for known in INTEGER_FORMATS}
_TERNARY = IntegerFormat("ternary", 2, 0, 2)


def as_quantized(values: Values, layout: Layout, name: str) -> QuantizedTensor:
    """Turn a tensor's values into one; the numbers it dequantizes to are the file's, bit for bit.

    Args:
        values: all of the tensor's.
        layout: how it is stored.
        name: what an error calls it.

    Raises:
        NotSupported: tensors without a scale, codes that are floats or places in a table, groups
            of columns that are not neighbours, real zero points in the unit of codes.
    """
    reason = _objection(values, layout)
    if reason or values.scale is None or values.block is None:
        raise NotSupported(
            "no codes, scale and zero point in blocks",
            where=f"tensor {name!r}",
            got=reason or "no scale",
            todo="read it with StoredTensor.load()",
        )
    shape = values.codes.shape
    block = _shape_of(values.block, shape)
    scale = values.scale.astype(np.float32).reshape(block.grid(shape))
    scheme = Scheme(_rule(layout, values), block)
    return QuantizedTensor(values.codes, scale, _zero_point(values, scale), scheme)


def _objection(values: Values, layout: Layout) -> str:
    if values.codebook is not None:
        return f"codes are places in a table ({layout.number_format})"
    if values.codes.dtype.kind not in "iu":
        return f"codes are {layout.number_format}"
    if values.group is not None:
        return "groups of columns that are not neighbours"
    zero = values.zero_point
    if zero is not None and zero.dtype.kind == "f":
        return "zero points that are real numbers in the unit of codes"
    if values.offset is not None and zero is not None:
        return "both a zero point and a minimum"
    return ""


def _zero_point(values: Values, scale: Array) -> Array:
    """Return one a block, an integer, or the real number that code 0 stands for."""
    if values.offset is not None:
        return values.offset.astype(np.float32).reshape(scale.shape)
    if values.zero_point is None:
        return np.zeros(scale.shape, np.int32)
    zero = values.zero_point.astype(np.int32)
    return (
        np.broadcast_to(zero.reshape(-1), scale.size).reshape(scale.shape)
        if (zero.size == 1)
        else zero.reshape(scale.shape)
    )


def _shape_of(block: tuple[int, ...], shape: tuple[int, ...]) -> BlockShape:
    """Return the block's shape by its plain name where it has one."""
    for candidate in (
        per_tensor(),
        *(per_axis(axis) for axis in range(len(shape))),
        *(per_group(size, axis - len(shape)) for axis, size in enumerate(block) if size > 1),
    ):
        cut = tuple(max(1, min(b, n)) for b, n in zip(block, shape, strict=True))
        counts = tuple(-(-n // b) for n, b in zip(shape, block, strict=True))
        if candidate.of(shape) == cut and candidate.grid(shape) == counts:
            return candidate
    return BlockShape(tuple((axis, size) for axis, size in enumerate(block)))


def _zero_form(*, real: bool, stored: bool) -> ZeroForm:
    if real:
        return ZeroForm.LOW
    return ZeroForm.ROUND_DIFFERENCE if stored else ZeroForm.FIXED


def _rule(layout: Layout, values: Values) -> Rule:
    name = layout.number_format
    codes = _TERNARY if name == "ternary" else _KNOWN[name]
    real = values.offset is not None
    zero = values.zero_point
    fixed = 0 if zero is None or zero.size == 0 else int(np.asarray(zero).reshape(-1)[0])
    stored = real or layout.zero_point == "stored"
    return Rule(
        name=f"as stored: {layout.packing}",
        scale=ScaleRule(
            extent=Extent.SPAN if stored else Extent.MAGNITUDE,
            denominator=Fraction(codes.steps if stored else max(1, codes.maximum)),
            stored=FLOAT32,
        ),
        zero_point=ZeroPointRule(
            form=_zero_form(real=real, stored=stored),
            fixed=0 if stored else fixed,
            lowest=codes.minimum,
            highest=codes.maximum,
        ),
        affine=AffineRule(
            codes=codes, order=ZeroOrder.SUBTRACTED if real else ZeroOrder.AFTER_ROUNDING
        ),
        source="the file: it tells how codes are read, not how they were chosen",
        versions="",
    )
