"""What a comparison says of activations where nothing was run: their stored scales."""

from collections.abc import Mapping

import numpy as np

from foldmark.compare.activation_diff import ActivationDiff, ActivationPair
from foldmark.formats.activations import StoredActivation
from foldmark.report.words import fitted, printable, wrapped

__all__ = ["activation_table", "activation_verdict", "activations_to_json"]

_SHOWN = 3


def activation_verdict(found: ActivationDiff) -> str:
    """Return a sentence for the verdict, "" where nothing is known to differ."""
    left, right = found.kinds
    if bool(left) != bool(right):
        doing, other = ("A", "B") if left else ("B", "A")
        return f"{doing} quantizes activations; {other} leaves them in float."
    if left != right:
        return f"A quantizes activations as {_kinds(left)}; B as {_kinds(right)}."
    if found.apart:
        count = f"{len(found.apart)} of {len(found.compared)}"
        return f"The activations have other scales or zero points in {count}."
    return ""


def activation_table(found: ActivationDiff, *, can_run: bool, everything: bool) -> str:
    """Say what each side quantizes, what of it was compared, and where the scales part.

    Args:
        found: the comparison.
        can_run: whether data would tell what the activations cost.
        everything: every pair that parts, and the names that one side has alone.
    """
    if not (found.left or found.right):
        return ""
    left, right = (_kinds(kinds) or "none" for kinds in found.kinds)
    sides = f"{left} in both" if left == right else f"{left} in A; {right} in B"
    sentence = f"Activations: {sides}. {_compared(found)}"
    sentence += " What they cost shows with --data." if can_run else ""
    lines = [wrapped(printable(sentence), later="  ")]
    shown = found.apart if everything else found.apart[:_SHOWN]
    if shown:
        title = "activations farthest apart"
        title += " (--all: all)" if len(shown) < len(found.apart) else ""
        lines.append(f"  {title:<40}{'A: scale, zero':>19}{'B: scale, zero':>19}")
        lines += [_row(pair) for pair in shown]
    if everything:
        for side, names in zip("AB", found.only, strict=True):
            if names and found.left and found.right:
                words = f"Activations only in {side}: {', '.join(names)}."
                lines.append(wrapped(printable(words), later="  "))
    return "\n".join(lines)


def activations_to_json(found: ActivationDiff) -> dict[str, object]:
    """Return plain dictionaries, lists, strings and numbers."""
    left, right = found.kinds
    left_only, right_only = found.only
    return {
        "left": dict(left),
        "right": dict(right),
        "compared": len(found.compared),
        "differ": [
            {"left": _stored(pair.left), "right": _stored(pair.right)} for pair in found.apart
        ],
        "left_only": list(left_only),
        "right_only": list(right_only),
    }


def _stored(each: StoredActivation) -> dict[str, object]:
    return {
        "name": each.name,
        "number_format": each.number_format,
        "scale": None if each.scale is None else each.scale.tolist(),
        "zero_point": None if each.zero_point is None else each.zero_point.tolist(),
    }


def _kinds(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())


def _compared(found: ActivationDiff) -> str:
    if not (found.left and found.right):
        return "Only weights were compared."
    if not found.compared:
        return "Only weights were compared: no scale of an activation is stored in both."
    apart, count = len(found.apart), len(found.compared)
    if apart:
        return f"Of {count} scales that both store {apart} differ; nothing was run."
    return f"The {count} scales and zero points that both store agree; nothing was run."


def _row(pair: ActivationPair) -> str:
    formats = pair.left.number_format != pair.right.number_format
    cells = [_words(each, formats) for each in (pair.left, pair.right)]
    return f"  {fitted(printable(pair.left.name), 39):<40}{cells[0]:>19}{cells[1]:>19}"


def _words(each: StoredActivation, with_format: bool) -> str:
    if each.scale is None or not each.scale.size:
        return "-"
    if with_format and each.number_format:
        return fitted(f"{each.number_format} {float(np.abs(each.scale).max()):.4g}", 18)
    if each.scale.size > 1:
        return f"{each.scale.size} to {float(np.abs(each.scale).max()):.4g}"
    zero = 0.0 if each.zero_point is None else float(each.zero_point[0])
    return f"{float(each.scale[0]):.5g}, {zero:g}"
