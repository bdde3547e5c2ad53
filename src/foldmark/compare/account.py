"""A rule known by what it is consistent with, in words: what is certain, what is open, and why."""

import numpy as np

from foldmark.compare.agreement import Agreement
from foldmark.compare.difference import (
    Features,
    affine_features,
    features_in_common,
    scale_features,
    words_for,
    zero_features,
)
from foldmark.compare.fit import Fit
from foldmark.compare.residuals import Suspect
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import ZeroOrder

__all__ = ["describe_rule", "open_fields"]

_NAMES_SHOWN = 2


def describe_rule(fit: Fit, agreement: Agreement | None) -> str:
    """Say in one or two sentences how a tensor was made.

    Args:
        fit: what is known of it.
        agreement: the rules that all weights of its form have in common, None without any.
    """
    if fit.inference is None or fit.seen is None:
        return f"{fit.layout.packing}: no rule of scale and rounding is searched behind this form"
    granularity = fit.layout.granularity(fit.tensor.shape)
    words = [f"{fit.layout.number_format} {granularity}", _range(fit)]
    if fit.residuals is not None and fit.residuals.suspect is not Suspect.NEAREST:
        words.append(f"{fit.residuals.suspect.value} ({fit.residuals.sentence})")
    else:
        words.append(_rounding(fit))
    return "; ".join(word for word in words if word) + _consistent(fit, agreement)


def _range(fit: Fit) -> str:
    assert fit.inference is not None
    if not fit.inference.scale.options:
        return f"scale {fit.shrunk}" if fit.shrunk else ""
    common = features_in_common(tuple(map(scale_features, fit.inference.scale.options)))
    range_words = words_for(common["range"]) if "range" in common else "the block's range"
    range_words = f"({range_words})" if " - " in range_words else range_words
    divisor = f" / {words_for(common['divisor'])}" if "divisor" in common else ""
    stored = words_for(common["scale stored as"]) if "scale stored as" in common else ""
    return f"scale {range_words}{divisor}" + (f" in {stored}" if stored else "")


def _rounding(fit: Fit) -> str:
    assert fit.inference is not None and fit.seen is not None
    stage, codes = fit.inference.affine, fit.seen.codes_format
    if not stage.options:
        return f"codes follow no rule of the search ({stage.agree / max(1, stage.total):.2%})"
    common = features_in_common(tuple(affine_features(o, codes) for o in stage.options))
    words = [words_for(common[name]) for name in ("rounding", "order", "scaling") if name in common]
    return ", ".join(words) if words else "rounded to nearest"


def _consistent(fit: Fit, agreement: Agreement | None) -> str:
    """Name the rules that fit the form's weights; without such, those that fit this one."""
    assert fit.inference is not None
    names, but = fit.inference.names, ""
    if not names:
        names = fit.inference.names_alive
        but = f" but in {fit.inference.dead} blocks whose codes are all zero"
    if not names:
        return ""
    if agreement is None:
        but += " in the blocks looked at, not in all"
    elif set(agreement.names) <= set(names):
        names = agreement.names
        if agreement.total > 1:
            of = "all" if agreement.agree == agreement.total else f"{agreement.agree} of"
            but += f", on {of} {agreement.total} weights of this form"
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f". Fits {shown}{more}{but}"


def open_fields(fit: Fit) -> list[str]:
    """List decisions that this tensor leaves open, with the values that fit equally well."""
    if fit.inference is None or fit.seen is None:
        return []
    codes = fit.seen.codes_format
    stages = (
        tuple(map(scale_features, fit.inference.scale.options)),
        tuple(zero_features(o, codes) for o in fit.inference.zero_point.options),
        tuple(affine_features(o, codes) for o in fit.inference.affine.options),
    )
    found = []
    for options in stages:
        for name in options[0] if options else ():
            values = dict.fromkeys(option[name] for option in options if name in option)
            if len(values) > 1 and name == "rounding" and _only_ties(options):
                found.append(f"rounding of ties: {_ties(fit)}")
            elif len(values) > 1:
                found.append(f"{name} ({len(values)} ways)")
    return found


def _only_ties(options: tuple[Features, ...]) -> bool:
    """Say whether all options round to nearest, by adding a half or otherwise."""
    return all(o["rounding"] in _NEAREST or o["order"] in _WITH_HALF for o in options)


def _ties(fit: Fit) -> str:
    """Say how many of the elements looked at lie half way between two codes."""
    assert fit.seen is not None
    seen = fit.seen
    if seen.real:
        return "none that decides"
    with np.errstate(all="ignore"):
        steps = seen.values.astype(np.float32) / seen.scale.astype(np.float32)[:, None]
        count = int(np.count_nonzero(steps - np.floor(steps) == np.float32(0.5)))
    return f"{count:,} in this tensor, none of which decides" if count else "no tie in this tensor"


_NEAREST = {Rounding.HALF_EVEN, Rounding.HALF_AWAY, Rounding.HALF_UP, Rounding.HALF_DOWN}
_WITH_HALF = {ZeroOrder.WITH_HALF, ZeroOrder.SUBTRACTED_WITH_HALF}
