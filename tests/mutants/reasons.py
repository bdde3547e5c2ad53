"""Why some neighbours of a rule can't be told from it: no input there is shows a difference."""

from typing import Any

from foldmark.exact.catalog import FLOAT32, FLOAT64
from foldmark.exact.rule import (
    AffineRule,
    DataType,
    Extent,
    Rule,
    Scaling,
    ZeroForm,
)

RATIOS = (Scaling.RATIO, Scaling.RATIO_OF_RECIPROCAL)
WIDE = (FLOAT64, FLOAT32, DataType.DATA)


def unread(entry: Any, field: str) -> str | None:
    """Return why a field is never looked at by this rule, or None if it is."""
    affine: AffineRule = entry.affine
    part, _, name = field.partition(".")
    if part == "affine":
        if name == "ratio" and affine.scaling not in RATIOS:
            return "a ratio is read by the RATIO scalings only"
        if name == "middle" and not affine.zero_is_real:
            return "a middle code is read with a real zero point only"
        return None
    assert isinstance(entry, Rule)
    if part == "scale":
        if name == "tie" and entry.scale.extent != Extent.SIGNED_MAGNITUDE:
            return "a tie of ends is read by SIGNED_MAGNITUDE only"
        if name == "denominator_below" and entry.scale.extent != Extent.LARGER_SIDE:
            return "steps of the low side are read by LARGER_SIDE only"
        return None
    return _unread_of_zero_point(entry, name)


def _unread_of_zero_point(rule: Rule, name: str) -> str | None:
    form = rule.zero_point.form
    if name == "stored" and not rule.affine.zero_is_real:
        return "a zero point that is a code has no dtype of its own"
    if name == "fixed" and form not in (ZeroForm.FIXED, ZeroForm.MIDDLE):
        return "the formula has no constant"
    if form == ZeroForm.FIXED and name not in ("form", "fixed"):
        return "the zero point is a constant"
    if rule.affine.zero_is_real and name in ("lowest", "highest", "rounding", "clip"):
        return "a real zero point is neither rounded nor held"
    if name == "scale" and form in (ZeroForm.LOW, ZeroForm.FROM_ENDS):
        return "the formula has no scale in it"
    return None
