"""What `foldmark quantize` says of its work: for people, and for machines."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from foldmark.cli.verify_text import table, wrapped
from foldmark.formats.onnx_file import model_files
from foldmark.recipes.recipe import Recipe
from foldmark.recipes.recipe_file import recipe_text
from foldmark.report.words import byte_text, counted
from foldmark.surgery.account import Account

__all__ = ["document", "text"]

_NOTES = 12


def text(account: Account, recipe: Recipe, source: Path, output: Path) -> str:
    """Return the report as lines of at most 80 columns."""
    before, after = _size(source), _size(output)
    parts = [
        f"{counted(len(account.done), 'operator')} quantized by recipe {recipe.name!r}; "
        f"{byte_text(before)} -> {byte_text(after)}, written to {output}.",
        table(
            ("quantized", "operators"),
            [(f"{operator}: {how}", str(n)) for operator, how, n in account.ways()],
        ),
    ]
    if account.left:
        left = [f"{n:>5}  {operator}: {reason}" for operator, reason, n in account.reasons()]
        parts.append("left in float\n" + "\n".join(left[:_NOTES]))
    notes = [*account.methods, *account.grouped_notes()]
    if notes:
        more = len(notes) - _NOTES
        tail = [f"... and {more} more"] if more > 0 else []
        parts.append("\n".join([*notes[:_NOTES], *tail]))
    return "\n\n".join(wrapped(part) for part in parts)


def document(account: Account, recipe: Recipe, source: Path, output: Path) -> dict[str, Any]:
    """Return the whole report, every operator by name, as schema `foldmark.quantize/1`."""
    files = model_files(output)
    return {
        "schema": "foldmark.quantize/1",
        "float_model": str(source),
        "float_bytes": _size(source),
        "files": [str(each) for each in files],
        "bytes": sum(each.stat().st_size for each in files),
        "recipe": recipe_text(recipe),
        "quantized": [asdict(each) for each in account.done],
        "left_in_float": [asdict(each) for each in account.left],
        "methods": account.methods,
        "notes": account.notes,
    }


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in model_files(path))
