"""Decisions as a person would say them: "rounds to nearest, ties to the even one"."""

from collections.abc import Sequence
from textwrap import wrap

from foldmark.report.words import printable

__all__ = ["doing", "listed", "row"]

# A decision by name -> what a side does, its own words put in.
_PHRASES = {
    "block shape": "has its scales {}",
    "number format": "stores {}",
    "range": "takes {} as its range",
    "divisor": "divides the range by {}",
    "scale stored as": "stores its scale in {}",
    "precision of the scale": "computes its scale in {}",
    "tiny ranges": "treats tiny ranges thus: {}",
    "zero in the range": "has zero {}",
    "tie of the extremes": "breaks a tie of the extremes for {}",
    "zero point": "has its zero point {}",
    "rounding of the zero point": "rounds its zero point to {}",
    "precision of the zero point": "computes its zero point in {}",
    "scale of the zero point": "computes its zero point from the scale {}",
    "rounding": "rounds to {}",
    "order": "computes {}",
    "scaling": "computes {}",
    "order and scaling": "computes {}",
    "scale of the codes": "computes codes with the scale {}",
    "precision": "computes codes in {}",
    "code range": "uses the {} range of codes",
    "scales": "has {}",
    "left in float": "leaves weights in {}",
    "activations": "quantizes activations ({})",
}
_AS_THEY_ARE = {
    ("activations", "float"): "leaves activations in float",
    ("left in float", "quantized"): "quantizes weights",
    ("left in float", "float"): "leaves weights in float that the other quantizes",
    ("rounding", "the fraction is dropped"): "drops the fraction",
    ("rounding", "toward minus infinity"): "rounds toward minus infinity",
    ("rounding", "toward plus infinity"): "rounds toward plus infinity",
    ("method", "rounding"): "rounds to nearest",
    ("method", "rounding to nearest"): "rounds to nearest",
    ("method", "other weights than these"): "holds other weights than the float model",
    ("method", "something else"): "made codes that no rule explains",
    ("one place", "rounding to nearest"): "rounds to nearest everywhere",
}


def doing(decision: str, words: str) -> str:
    """Return what a side does: a verb and its words."""
    if (decision, words) in _AS_THEY_ARE:
        return _AS_THEY_ARE[decision, words]
    if decision in ("method", "one place"):
        return f"made its codes by {words.partition(':')[0].partition(', as in')[0]}"
    if decision == "block shape" and words.startswith("groups"):
        return f"has its scales in {words}"
    if decision not in _PHRASES:
        return f"has {decision}: {words}"
    return _PHRASES[decision].format(words)


def listed(phrases: Sequence[str]) -> str:
    """Return phrases as one, each said once: "a, b and c"."""
    kept = list(dict.fromkeys(phrases))
    if len(kept) < 2:
        return "".join(kept)
    return ", ".join(kept[:-1]) + f" and {kept[-1]}"


def row(cells: Sequence[str], widths: Sequence[int], numbers: str = "") -> list[str]:
    """Return a row whose cells are wrapped, its numbers on the first line."""
    wrapped_cells = [
        wrap(printable(cell), width) or [""] for cell, width in zip(cells, widths, strict=True)
    ]
    lines = []
    for place in range(max(map(len, wrapped_cells))):
        line = " ".join(
            f"{cell[place] if place < len(cell) else '':<{width}}"
            for cell, width in zip(wrapped_cells, widths, strict=True)
        )
        lines.append((line + (numbers if place == 0 else "")).rstrip())
    return lines
