"""The catalogue, one entry, two of them, and a checked file of answers, as text."""

import textwrap
from collections.abc import Iterable, Sequence
from math import isnan

from foldmark.compare.check import EngineCheck, FileCheck
from foldmark.exact.affine import grid_of
from foldmark.exact.difference import (
    Parting,
    differing_fields,
    first_parting,
    parting_of_operators,
    settings,
)
from foldmark.exact.rule import Rule
from foldmark.exact.tools import CATALOGUE
from foldmark.exact.tools.entry import Entry, Operator, Procedure
from foldmark.exact.worked import shortest, work_codes, work_group

__all__ = ["catalogue_text", "check_text", "comparison_text", "entry_text"]

_WIDTH = 80
_SHOWN = 20  # disagreements listed; the JSON has them all


def catalogue_text() -> str:
    """Return every entry: name, kind, codes; grouped by the versions they were read from."""
    kinds = {Rule: "rules", Operator: "operators", Procedure: "procedures"}
    counts = ", ".join(
        f"{sum(isinstance(e, kind) for e in CATALOGUE.values())} {name}"
        for kind, name in kinds.items()
    )
    lines = [f"{len(CATALOGUE)} entries: {counts}.", ""]
    lines += _columns(
        ("rule", "kind", "codes"),
        [(name, _kind(entry), _codes(entry)) for name, entry in CATALOGUE.items()],
    )
    lines += [
        "",
        "An operator is given scale and zero point; a procedure searches or iterates.",
        "`foldmark rules NAME` shows one, `foldmark rules NAME OTHER` compares two.",
    ]
    return "\n".join(lines)


def entry_text(entry: Entry) -> str:
    """Return an entry's source, versions and fields."""
    lines = [f"{entry.name}: {_kind(entry)} with codes {_codes(entry)}."]
    lines += _wrapped(f"Source: {entry.source}.")
    lines += _wrapped(f"Versions: {entry.versions}.")
    if isinstance(entry, Procedure):
        lines += _wrapped(f"What it does: {entry.description}.")
        return "\n".join(lines)
    lines.append("")
    lines += _columns(("field", "setting"), list(settings(entry)))
    return "\n".join(lines)


def comparison_text(first: Entry, second: Entry) -> str:
    """Return the fields in which two entries differ and an input worked through by both."""
    if isinstance(first, Procedure) or isinstance(second, Procedure):
        name = first.name if isinstance(first, Procedure) else second.name
        return f"{name} is a procedure: it has no fields to compare."
    compared: tuple[object, object] = (first, second)
    if type(first) is not type(second):
        compared = (first.affine, second.affine)
    rows = differing_fields(*compared)
    parting = find_parting(first, second)
    verdict = (
        f"{first.name} and {second.name} differ in {_count(len(rows), 'field')}"
        if rows
        else f"{first.name} and {second.name} are the same rule"
    )
    verdict += "." if parting else "; no input was found on which their codes part."
    lines = _wrapped(verdict)
    if rows:
        lines += ["", *_columns(("field", first.name, second.name), rows)]
    if parting is not None:
        lines += ["", *_parting_lines(first, second, parting)]
    return "\n".join(lines)


def find_parting(first: Rule | Operator, second: Rule | Operator) -> Parting | None:
    """Return the simplest input on which two entries' codes part."""
    if isinstance(first, Rule) and isinstance(second, Rule):
        return first_parting(first, second)
    return parting_of_operators(first.affine, second.affine)


def check_text(check: FileCheck) -> str:
    """Return how many vectors agree by each engine, and every one that does not."""
    lines = _wrapped(_check_verdict(check))
    lines += [""]
    rows = [
        (c.engine, str(c.agree), str(len(c.differ)), str(len(c.unanswered))) for c in check.engines
    ]
    lines += _columns(("engine", "agree", "differ", "no twin"), rows)
    for result in check.engines:
        lines += _difference_lines(result)
    if check.unknown:
        lines += ["", "Tools that the catalogue does not know:"]
        tools: dict[str, list[str]] = {}
        for vector in check.unknown:
            tools.setdefault(vector.tool or "(no tool named)", []).append(vector.id)
        lines += [f"  {tool}: {_some(ids)}" for tool, ids in tools.items()]
    return "\n".join(lines)


def _check_verdict(check: FileCheck) -> str:
    parts = [f"{c.agree} of {check.count} by {c.engine}" for c in check.engines]
    if not check.all_agree:
        return f"{', '.join(parts)}: not all agree."
    complete = not any(c.unanswered for c in check.engines)
    return f"{', '.join(parts)}: " + ("all agree." if complete else "all that was asked agrees.")


def _difference_lines(result: EngineCheck) -> list[str]:
    lines = []
    if result.differ:
        lines += ["", f"Answered differently by {result.engine}:"]
    for difference in result.differ[:_SHOWN]:
        lines.append(f"  {difference.vector.id} ({difference.entry})")
        lines += [f"    {sentence}" for sentence in difference.sentences]
    if len(result.differ) > _SHOWN:
        lines.append(f"  ... and {len(result.differ) - _SHOWN} more (--json has them all)")
    return lines


def _parting_lines(first: Rule | Operator, second: Rule | Operator, parting: Parting) -> list[str]:
    numbers = ", ".join(shortest(value) for value in parting.values)
    given = ""
    if parting.scale is not None:
        given = f", scale {shortest(parting.scale)}, zero point {parting.zero_point}"
    lines = [f"They part on [{numbers}]{given} (float32):"]
    for entry, codes in ((first, parting.first), (second, parting.second)):
        lines += ["", f"{entry.name}  ->  codes {' '.join(map(str, codes))}"]
        for line in _worked(entry, parting):
            lines += textwrap.wrap(line, _WIDTH, initial_indent="  ", subsequent_indent="      ")
    return lines


def _worked(entry: Rule | Operator, parting: Parting) -> list[str]:
    if parting.scale is None and isinstance(entry, Rule):
        return work_group(parting.values, entry)
    grid = grid_of(parting.scale or 1.0, parting.zero_point or 0, entry.affine)
    if any(isnan(value) for value in parting.values):
        return ["NaN has a code by decree"]
    return work_codes(parting.values, grid, entry.affine)


def _kind(entry: Entry) -> str:
    match entry:
        case Rule():
            return "rule"
        case Operator():
            return "operator"
        case Procedure():
            return "procedure"


def _codes(entry: Entry) -> str:
    return f"{entry.codes.minimum}..{entry.codes.maximum}"


def _columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return left-aligned columns; what does not fit 80 columns is cut in the widest ones."""
    table = [header, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    while sum(widths) + 2 * (len(widths) - 1) > _WIDTH:
        widths[widths.index(max(widths))] -= 1
    return [
        "  ".join(_cut(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def _cut(cell: str, width: int) -> str:
    return cell.ljust(width) if len(cell) <= width else cell[: width - 1] + "…"


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, _WIDTH, break_on_hyphens=False)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _some(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:3])
    return shown if len(ids) <= 3 else f"{shown} and {len(ids) - 3} more"
