"""Why some neighbours of a rule can't be told from it: no input shows a difference."""

import re
from fractions import Fraction
from typing import Any

from foldmark.exact.catalog import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from foldmark.exact.rule import AffineRule, Extent, NotANumber, Rule, Scaling, ZeroForm, ZeroOrder
from foldmark.exact.tools.entry import Operator

RATIOS = (Scaling.RATIO, Scaling.RATIO_OF_RECIPROCAL)


def unread(entry: Any, field: str) -> str | None:  # noqa: PLR0911
    """Return why a field is never looked at by this rule, or None if it is."""
    affine: AffineRule = entry.affine
    part, _, name = field.partition(".")
    if part == "affine":
        if name == "ratio" and affine.scaling not in RATIOS:
            return "a ratio is read by the RATIO scalings only"
        if name == "middle" and not affine.zero_is_real:
            return "a middle code is read with a real zero point only"
        if name == "codes_per_scale" and affine.zero_is_real:
            return "with a real zero point a scale spans one code"
        if name == "scale" and not isinstance(entry, Rule):
            return "an operator is given one scale"
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


# Why the neighbours listed in indistinguishable.json are there, by field and setting.
REASONS: tuple[tuple[str, str], ...] = (
    (r"affine\.(clip|codes) .*", "the ends that set the scale keep every value within the codes"),
    (r"scale\.extent(_precision)? .*", "the extent is one of the data's own numbers, or the same"),
    (
        r"scale\.(precision|stored) .*",
        "the quotient is exact, or rounding it to float64 on the way changes nothing",
    ),
    (r"scale\.tie .*", "the ends can't tie with both signs"),
    (
        r"scale\.tiny\[\d\](\.\w+)? .*",
        "both treatments give such a range one scale, or codes of zero",
    ),
    (
        r"zero_point\.(clip|lowest|highest) .*",
        "zero in the range keeps the zero point in the codes",
    ),
    (r"zero_point\.precision .*", "the zero point is one of the data's own numbers"),
)


def reason_for(entry: Rule | Operator, field: str, setting: str) -> str | None:
    """Return why a listed neighbour can't be told from its rule."""
    special = {
        "affine.infinity": _of_infinity,
        "affine.nan": _of_nan,
        "affine.order": _of_order,
        "affine.precision": _of_precision,
        "affine.rounding": _of_rounding,
        "affine.scale": _of_scale,
        "affine.scaling": _of_scaling,
        "affine.zero_divisor": _of_zero_divisor,
        "scale.zero_in_range": _of_zero_in_range,
        "zero_point.form": _of_form,
        "zero_point.rounding": _of_zero_rounding,
        "zero_point.scale": _of_divisor,
    }
    if field in special:
        return special[field](entry)
    described = f"{field} {setting}"
    return next((why for pattern, why in REASONS if re.fullmatch(pattern, described)), None)


def _of_infinity(entry: Rule | Operator) -> str | None:
    if isinstance(entry, Rule) and entry.affine.nan in (NotANumber.RAISE, NotANumber.LOWEST):
        return (
            "an infinite value makes the scale infinite: its own code is that of NaN, in every "
            "setting an error, or in every setting the lowest; finite ones stay within the codes"
        )
    return None


def _of_order(entry: Rule | Operator) -> str | None:
    if not isinstance(entry, Rule) or entry.zero_point.form != ZeroForm.FIXED:
        return None
    if entry.zero_point.fixed == 0:
        return "the zero point is 0"
    if entry.affine.precision == FLOAT64:
        return "a quotient of float32 and a small zero point have an exact sum in float64"
    return None


def _of_zero_divisor(entry: Rule | Operator) -> str | None:
    if isinstance(entry, Rule) and entry.scale.tiny:
        return "small ranges are replaced before a scale of them is zero"
    if entry.affine.scaling in RATIOS and entry.affine.nan == NotANumber.ZERO:
        return "the extent of zeros alone is zero, and NaN gets the code of zero too"
    return None


def _of_zero_in_range(entry: Rule | Operator) -> str | None:
    assert isinstance(entry, Rule)
    if entry.scale.extent in (Extent.MAGNITUDE, Extent.SIGNED_MAGNITUDE, Extent.LARGER_SIDE):
        return "the farther end is the same, whether zero is included or not"
    return None


def _of_nan(entry: Rule | Operator) -> str | None:
    return "the lowest code is 0" if entry.affine.codes.minimum == 0 else None


def _of_precision(entry: Rule | Operator) -> str | None:
    if isinstance(entry, Rule) and entry.scale.stored in (FLOAT16, BFLOAT16):
        return "a quotient by a scale of 11 bits is a tie, or farther from one than float32 rounds"
    return None


def _of_rounding(entry: Rule | Operator) -> str | None:
    added = (ZeroOrder.BEFORE_ROUNDING, ZeroOrder.WITH_HALF, ZeroOrder.SUBTRACTED_WITH_HALF)
    if entry.affine.codes.minimum == 0 and entry.affine.order in added:
        return "what is rounded is not negative, or rounds to 0 or less, and the lowest code is 0"
    return None


def _of_scale(entry: Rule | Operator) -> str | None:
    assert isinstance(entry, Rule)
    if entry.affine.scaling in RATIOS:
        return "codes follow from the extent and not from the scale"
    if _is_power_of_two(entry.scale.denominator):
        return "the scale is the extent with another exponent, in any dtype"
    return _of_divisor(entry) or _rounded_anyway(entry)


def _rounded_anyway(rule: Rule) -> str | None:
    if rule.scale.stored in (rule.affine.precision, FLOAT32):
        return "the codes' own arithmetic rounds the scale as storing does, or storing does nothing"
    return None


def _of_divisor(entry: Rule | Operator) -> str | None:
    assert isinstance(entry, Rule)
    if entry.scale.stored == entry.scale.precision:
        return "the scale is computed in the dtype that it is stored in"
    return None


def _of_scaling(entry: Rule | Operator) -> str | None:
    reciprocal = entry.affine.scaling == Scaling.RECIPROCAL and entry.affine.ratio == 1
    if isinstance(entry, Operator) and reciprocal:
        return "an operator's extent is its scale, and the ratio is 1: all three are 1 / scale"
    return None


def _of_form(entry: Rule | Operator) -> str | None:
    assert isinstance(entry, Rule)
    if entry.zero_point.lowest == 0:
        return (
            "rounding is symmetric: round(0 - q) = 0 - round(q), and of the two ends' terms the "
            "low one's, 0 and q, are the smaller"
        )
    if _is_power_of_two(entry.scale.denominator) and entry.zero_point.precision == FLOAT64:
        return "the scale is exact, so quotients of float32 are ties, or far from one in float64"
    return None


def _of_zero_rounding(entry: Rule | Operator) -> str | None:
    assert isinstance(entry, Rule)
    return "the zero point is not negative" if entry.zero_point.lowest == 0 else None


def _is_power_of_two(number: Fraction) -> bool:
    top, bottom = number.numerator, number.denominator
    return top & (top - 1) == 0 and bottom & (bottom - 1) == 0
