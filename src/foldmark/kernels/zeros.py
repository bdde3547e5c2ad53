"""The zero points that a rule can choose, and the dtype that holds them."""

from typing import Any

import numpy as np

from foldmark.exact.catalog import FLOAT32
from foldmark.exact.rule import Clip, Rule, ZeroForm, definite
from foldmark.kernels.codes import codes_dtype
from foldmark.kernels.floats import dtype_of

__all__ = ["possible_zero_points", "zero_dtype"]


def zero_dtype(rule: Rule) -> np.dtype[Any]:
    """Return the dtype of stored zero points: the codes' own where they fit, int64 where not."""
    if rule.affine.zero_is_real:
        return dtype_of(definite(rule.zero_point.stored, FLOAT32))
    dtype = codes_dtype(rule.codes)
    limits, possible = np.iinfo(dtype), possible_zero_points(rule)
    fits = possible and all(limits.min <= code <= limits.max for code in possible)
    return dtype if fits else np.dtype(np.int64)


def possible_zero_points(rule: Rule) -> list[int]:
    """Return bounds of the integer zero points that a rule can choose; none when unbounded."""
    zero = rule.zero_point
    fixed = [tiny.zero_point for tiny in rule.scale.tiny if tiny.zero_point is not None]
    if zero.form == ZeroForm.FIXED:
        return [zero.fixed, *fixed]
    return [zero.lowest, zero.highest, *fixed] if zero.clip == Clip.SATURATE else []
