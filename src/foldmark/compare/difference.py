"""In which fields two rules differ, where each is known only by what it is consistent with."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from itertools import product

import numpy as np

from foldmark.compare.fit import Fit
from foldmark.compare.infer import Stage
from foldmark.compare.residuals import Suspect
from foldmark.exact.number import FloatFormat, IntegerFormat
from foldmark.exact.rule import (
    AffineRule,
    Extent,
    ScaleRule,
    Scaling,
    ZeroForm,
    ZeroInRange,
    ZeroOrder,
    ZeroPointRule,
)
from foldmark.formats.values import Array

__all__ = [
    "Features",
    "FieldDifference",
    "affine_features",
    "differences",
    "features_in_common",
    "scale_features",
    "words_for",
    "zero_features",
]

Features = dict[str, Hashable]
# So many options of a side are looked at, and so many paired with the other's when none is shared.
_MOST, _PAIRED = 2000, 150


@dataclass(frozen=True)
class FieldDifference:
    """One decision that the two sides made differently.

    Attributes:
        field: its name ("rounding", "divisor", "block shape").
        left, right: what each side does, in words.
        alternatives: other fields that would explain the same just as well.
        evidence: what shows it.
    """

    field: str
    left: str
    right: str
    alternatives: tuple[str, ...] = ()
    evidence: str = ""


def differences(
    left: Fit, right: Fit, shares: tuple[str, str] | None
) -> tuple[FieldDifference, ...]:
    """List every decision that the two sides certainly made differently.

    Args:
        left, right: what is known of each side.
        shares: which elements share a scale on each side, in words; None where the same do.
    """
    found = _layouts(left, right, shares)
    if _same_numbers(left, right):
        return tuple(found)
    told = _suspects(left, right)
    if told:
        return (*found, *told, *_scales_beside(left, right))
    if left.inference is None or right.inference is None:
        return tuple(found)
    sides = _scale_side(left), _scale_side(right)
    if all(side.options for side in sides):  # a zero point follows from the scale: both at once
        sides = _grid_side(left), _grid_side(right)
    found += _stage("scale", *sides)
    found += _stage("codes", _affine_side(left), _affine_side(right))
    return tuple(_with_evidence(each, left, right) for each in found)


def _same_numbers(left: Fit, right: Fit) -> bool:
    """Say whether codes, scales and zero points are equal, whatever made them."""
    one, other = left.values, right.values
    if one.codes.shape != other.codes.shape or left.layout.block != right.layout.block:
        return False
    return all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in (
            (one.codes, other.codes),
            (_or_zero(one.scale), _or_zero(other.scale)),
            (_or_zero(one.zero_point), _or_zero(other.zero_point)),
            (_or_zero(one.offset), _or_zero(other.offset)),
        )
    )


def _or_zero(array: Array | None) -> Array:
    return np.zeros(()) if array is None else np.asarray(array, np.float64)


def _layouts(left: Fit, right: Fit, shares: tuple[str, str] | None) -> list[FieldDifference]:
    found = []
    one, other = left.layout, right.layout
    if shares is not None:
        found.append(FieldDifference("block shape", *shares))
    if _bits(one.number_format) != _bits(other.number_format):
        found.append(FieldDifference("number format", one.number_format, other.number_format))
    return found


def _bits(name: str) -> str:
    return "".join(c for c in name if c.isdigit()) if "int" in name else name


def _suspects(left: Fit, right: Fit) -> list[FieldDifference]:
    """Tell methods apart where one side is no rounding to nearest of these weights."""
    kinds = [fit.residuals.suspect if fit.residuals else Suspect.NEAREST for fit in (left, right)]
    if kinds[0] == kinds[1] == Suspect.NEAREST:
        return []
    if kinds[0] == kinds[1] and Suspect.ONE_PLACE not in kinds:
        return [FieldDifference("method", kinds[0].value, f"{kinds[1].value}, with other results")]
    evidence = "; ".join(
        f"{name}: {fit.residuals.sentence}"
        for name, fit in (("A", left), ("B", right))
        if fit.residuals is not None and fit.residuals.suspect is not Suspect.NEAREST
    )
    field = "one place" if Suspect.ONE_PLACE in kinds else "method"
    return [FieldDifference(field, kinds[0].value, kinds[1].value, (), evidence)]


def _scales_beside(left: Fit, right: Fit) -> list[FieldDifference]:
    """Tell scales apart whose range is that of the float weights, whatever made the codes."""
    if left.inference is None or right.inference is None:
        return []
    sides = _scale_side(left), _scale_side(right)
    return _stage("scale", *sides) if all(side.options for side in sides) else []


@dataclass(frozen=True)
class _Side:
    """What a stage left of one side: its options as features, or words where there are none.

    missed: items that even the best options do not explain.
    """

    options: tuple[Features, ...]
    words: str
    missed: int = 0


def _scale_side(fit: Fit) -> _Side:
    assert fit.inference is not None
    stage = fit.inference.scale
    options = tuple(scale_features(rule) for rule in stage.options[:_MOST])
    words = fit.shrunk or "not explained by the block's range"
    return _Side(_unique(options), words, stage.total - stage.agree)


def _grid_side(fit: Fit) -> _Side:
    """Return scale and zero point rules as they go together."""
    assert fit.inference is not None and fit.seen is not None
    codes, inference = fit.seen.codes_format, fit.inference
    options = tuple(
        scale_features(scale) | (zero_features(zero, codes) if zero is not None else {})
        for scale, zero in inference.pairs[:_MOST]
        if scale is not None
    )
    stages = (inference.scale, inference.zero_point)
    missed = sum(stage.total - stage.agree for stage in stages)
    return _Side(_unique(options), "not explained", missed)


def _affine_side(fit: Fit) -> _Side:
    assert fit.inference is not None and fit.seen is not None
    codes = fit.seen.codes_format
    stage = fit.inference.affine
    rules: Iterable[AffineRule] = stage.options[:_MOST]
    if not fit.seen.real and not fit.seen.zero.any():
        rules = map(_without_zero, rules)
    return _Side(_unique(affine_features(rule, codes) for rule in rules), _partly(stage))


def _without_zero(rule: AffineRule) -> AffineRule:
    """Return the rule with the order that all are alike in where the zero point is zero."""
    if rule.order in (ZeroOrder.BEFORE_ROUNDING, ZeroOrder.FUSED):
        return replace(rule, order=ZeroOrder.AFTER_ROUNDING)
    return rule


def _partly(stage: Stage[AffineRule]) -> str:
    return f"no rule of the search ({stage.agree / max(1, stage.total):.2%} at best)"


def _unique(options: Iterable[Features]) -> tuple[Features, ...]:
    return tuple({tuple(o.items()): o for o in options}.values())


def scale_features(rule: ScaleRule) -> Features:
    """Return a scale rule's decisions by name."""
    features: Features = {"range": rule.extent, "divisor": rule.denominator}
    if rule.extent is Extent.SPAN:
        features["zero in the range"] = rule.zero_in_range
    if rule.extent is Extent.SIGNED_MAGNITUDE:
        features["tie of the extremes"] = rule.tie
    features["precision of the scale"] = rule.precision
    features["scale stored as"] = rule.stored
    features["tiny ranges"] = rule.tiny
    return features


def zero_features(rule: ZeroPointRule, codes: IntegerFormat) -> Features:
    """Return a zero point rule's decisions by name; constants count from the lowest code."""
    features: Features = {"zero point": rule.form}
    if rule.form in (ZeroForm.FIXED, ZeroForm.MIDDLE):
        at = rule.fixed - codes.minimum
        features["zero point at"] = "the middle code" if at == 1 << (codes.bits - 1) else at
    if rule.form not in (ZeroForm.FIXED, ZeroForm.LOW):
        features["scale of the zero point"] = rule.scale
        features["precision of the zero point"] = rule.precision
        features["rounding of the zero point"] = rule.rounding
    return features


def affine_features(rule: AffineRule, codes: IntegerFormat) -> Features:
    """Return the decisions between value and code by name."""
    features: Features = {"rounding": rule.rounding, "order": rule.order, "scaling": rule.scaling}
    if rule.scaling in (Scaling.DIVIDE, Scaling.RECIPROCAL):
        features["scale of the codes"] = rule.scale
    features["precision"] = rule.precision
    features["code range"] = "full" if rule.codes.minimum == codes.minimum else "narrow"
    return features


def features_in_common(options: tuple[Features, ...]) -> Features:
    """Return the features that all options share: what is certain."""
    if not options:
        return {}
    return {
        name: value
        for name, value in options[0].items()
        if all(option.get(name, _ABSENT) == value for option in options[1:])
    }


_ABSENT = object()


def _stage(name: str, left: _Side, right: _Side) -> list[FieldDifference]:
    """Compare what a stage left of both sides; nothing when one option explains both."""
    if not left.options and not right.options:
        return []
    if not left.options or not right.options:
        a, b = (
            _sentence(features_in_common(side.options)) if side.options else side.words
            for side in (left, right)
        )
        return [FieldDifference(name, a, b)]
    if not _keys(left.options).isdisjoint(_keys(right.options)):
        return _exceptions(name, left, right)
    pairs: dict[tuple[str, ...], tuple[Features, Features]] = {}
    fewest = 1 << 30
    for one, other in product(left.options[:_PAIRED], right.options[:_PAIRED]):
        # A field that only one of two formulas has says nothing that the formula doesn't.
        names = tuple(n for n, value in one.items() if n in other and other[n] != value)
        if not names:
            return _exceptions(name, left, right)
        if len(names) < fewest:
            fewest, pairs = len(names), {}
        if len(names) == fewest:
            pairs.setdefault(names, (one, other))
    chosen, (one, other) = next(iter(pairs.items()))
    rest = tuple(" and ".join(names) for names in pairs if names != chosen)
    return [
        FieldDifference(field, words_for(one.get(field)), words_for(other.get(field)), rest)
        for field in chosen
    ]


def _keys(options: tuple[Features, ...]) -> set[frozenset[tuple[str, Hashable]]]:
    return {frozenset(option.items()) for option in options}


def _exceptions(name: str, left: _Side, right: _Side) -> list[FieldDifference]:
    """Report blocks that leave the rule which otherwise explains both sides."""
    if left.missed == right.missed:
        return []
    words = [
        f"the same rule but in {side.missed} places" if side.missed else "one rule everywhere"
        for side in (left, right)
    ]
    return [FieldDifference(name, words[0], words[1])]


def _sentence(features: Features) -> str:
    return ", ".join(f"{name} {words_for(value)}" for name, value in features.items())


_SHORTER: dict[Enum, str] = {
    ZeroForm.FIXED: "fixed, whatever the data",
    Extent.SPAN: "max - min",
    Extent.MAGNITUDE: "absmax",
    Extent.SIGNED_MAGNITUDE: "the signed extreme",
    ZeroInRange.FORCED: "made part of it",
    ZeroInRange.FREE: "not made part of it",
}


def words_for(value: Hashable) -> str:
    """Return a field's value in words."""
    if value is None:
        return "-"
    if isinstance(value, Enum):
        return _SHORTER.get(value, str(value.value))
    if isinstance(value, Fraction):
        return f"{float(value):g}"
    if isinstance(value, FloatFormat):
        return value.name
    if isinstance(value, tuple):
        return (
            " then ".join(
                f"{t.test.name.lower().replace('_', ' ')} below {t.below} -> "
                f"{t.action.name.lower()} {t.value}"
                for t in value
            )
            or "as they are"
        )
    return str(value)


_DECISIVE = {"rounding": "rounding", "order": "order", "scaling": "scaling"}


def _with_evidence(each: FieldDifference, left: Fit, right: Fit) -> FieldDifference:
    """Add how many elements decide against the other side's choice, where that was counted."""
    field = _DECISIVE.get(each.field)
    if field is None or left.inference is None or right.inference is None:
        return each
    counts = []
    for name, fit, other in (("A", left, each.right), ("B", right, each.left)):
        assert fit.inference is not None
        fails = [
            number
            for (changed, value), number in fit.inference.decisive.items()
            if changed == field and words_for(value) == other
        ]
        if fails:
            counts.append(f"{max(fails)} elements of {name} rule the other out")
    evidence = "; ".join(counts)
    return FieldDifference(each.field, each.left, each.right, each.alternatives, evidence)
