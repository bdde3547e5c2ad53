"""What `foldmark rules --json` writes: schema foldmark.rules/1."""

from collections.abc import Iterable
from typing import Any

from foldmark.cli.rules_text import find_parting
from foldmark.compare.check import FileCheck
from foldmark.exact.difference import differing_fields, settings
from foldmark.exact.tools import CATALOGUE
from foldmark.exact.tools.entry import Entry, Procedure

__all__ = ["catalogue_document", "check_document", "comparison_document"]

_SCHEMA = "foldmark.rules/1"


def catalogue_document(entries: Iterable[Entry] | None = None) -> dict[str, Any]:
    """Return entries with their codes, fields, sources and versions; all of them by default."""
    chosen = CATALOGUE.values() if entries is None else entries
    return {
        "schema": _SCHEMA,
        "rules": [
            {
                "name": entry.name,
                "kind": type(entry).__name__.lower(),
                "codes": [entry.codes.minimum, entry.codes.maximum],
                "fields": {} if isinstance(entry, Procedure) else dict(settings(entry)),
                "source": entry.source,
                "versions": entry.versions,
            }
            for entry in chosen
        ],
    }


def comparison_document(first: Entry, second: Entry) -> dict[str, Any]:
    """Return the fields in which two entries differ, and an input on which their codes part."""
    document: dict[str, Any] = {"schema": _SCHEMA, "compared": [first.name, second.name]}
    if isinstance(first, Procedure) or isinstance(second, Procedure):
        return document | {"fields": [], "parting": None}
    same_kind = type(first) is type(second)
    pair = (first, second) if same_kind else (first.affine, second.affine)
    parting = find_parting(first, second)
    shown = None
    if parting is not None:
        shown = {
            "values": list(parting.values),
            "scale": parting.scale,
            "zero_point": parting.zero_point,
            "codes": [list(parting.first), list(parting.second)],
        }
    rows = [{"field": f, "settings": [a, b]} for f, a, b in differing_fields(*pair)]
    return document | {"fields": rows, "parting": shown}


def check_document(check: FileCheck) -> dict[str, Any]:
    """Return the counts of each engine and every vector that does not agree."""
    return {
        "schema": _SCHEMA,
        "file": str(check.path),
        "vectors": check.count,
        "all_agree": check.all_agree,
        "engines": [
            {
                "engine": result.engine,
                "agree": result.agree,
                "differ": [
                    {"id": d.vector.id, "rule": d.entry, "how": list(d.sentences)}
                    for d in result.differ
                ],
                "without_twin": list(result.unanswered),
            }
            for result in check.engines
        ],
        "unknown": [{"id": v.id, "tool": v.tool} for v in check.unknown],
    }
