"""Why some neighbours of a rule can't be told from it: no input there is shows a difference."""

import re
from typing import Any

from foldmark.exact.rule import (
    AffineRule,
    Extent,
    Rule,
    Scaling,
    ZeroForm,
)

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
    (
        r"affine\.infinity .*",
        "an infinite value makes the scale infinite and ends alike",
    ),
    (
        r"affine\.nan .*",
        "the lowest code is 0, or NaN never reaches a code",
    ),
    (
        r"affine\.order .*",
        "the zero point is 0, or the sum of it and so small a number is exact",
    ),
    (r"affine\.rounding .*", "what is rounded is never negative, so both rules are one"),
    (r"affine\.scale .*", "the scale is computed in the dtype that it is stored in"),
    (
        r"affine\.scaling .*",
        "a ratio of 1 makes them one, or no input showed the last bit",
    ),
    (r"affine\.zero_divisor .*", "the scale is never zero, or both ways lead to the code of zero"),
    (r"affine\.precision .*", "the operations are exact in both"),
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
    (r"scale\.zero_in_range .*", "the farther end is the same, whether zero is included or not"),
    (
        r"zero_point\.(clip|lowest|highest) .*",
        "zero in the range keeps the zero point in the codes",
    ),
    (r"zero_point\.form .*", "the formulas agree but for the last bit of a tie, which none showed"),
    (r"zero_point\.(precision|stored) .*", "the zero point is one of the data's own numbers"),
    (r"zero_point\.rounding .*", "the zero point is never negative, or never a tie"),
    (r"zero_point\.scale .*", "the scale is computed in the dtype that it is stored in"),
)


def reason_for(field: str, setting: str) -> str | None:
    """Return why a listed neighbour can't be told from its rule."""
    described = f"{field} {setting}"
    return next((why for pattern, why in REASONS if re.fullmatch(pattern, described)), None)
