"""The repairs that an account suggested, kept beside the trial it was taken of."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from foldmark.errors import FoldmarkError
from foldmark.formats.whole_file import write_whole
from foldmark.recipes.recipe import Override, Recipe, TensorCodes, TensorRange
from foldmark.recipes.recipe_file import parse_recipe, recipe_text
from foldmark.tuning.repairs import Repair, repaired
from foldmark.tuning.trial import Trial

__all__ = ["kept_repairs"]

SCHEMA = "foldmark.repairs/1"


def kept_repairs(trial: Trial, find: Callable[[], tuple[Repair, ...]]) -> tuple[Repair, ...]:
    """Return the repairs of a trial: found now, or read when an earlier run found them.

    An account of a large model takes minutes, and what it times comes out a little otherwise each
    time: a run that goes on goes on with the same repairs in the same order.
    """
    path = Path(trial.model).with_suffix(".repairs")
    found = _read(path) if path.is_file() else None
    if found is None:
        found = find()
        _write(path, found)
    return found


def _write(path: Path, repairs: tuple[Repair, ...]) -> None:
    document = {"schema": SCHEMA, "repairs": [_document(each) for each in repairs]}
    write_whole(json.dumps(document, indent=2) + "\n", path)


def _document(repair: Repair) -> dict[str, Any]:
    # The change alone, as a recipe says it.
    alone = recipe_text(repaired(Recipe(), (replace(repair, products=frozenset()),)))
    return {
        "words": repair.words,
        "blame": repair.blame,
        "saving": repair.saving,
        "milliseconds": repair.milliseconds,
        "recipe": alone,
        "products": sorted(repair.products),
    }


def _read(path: Path) -> tuple[Repair, ...] | None:
    """Return kept repairs; None for a damaged file, in whose place an account is taken again."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["schema"] != SCHEMA:
            return None
        return tuple(_repair(each, path) for each in found["repairs"])
    except (ValueError, KeyError, IndexError, TypeError, FoldmarkError):
        return None


def _repair(document: dict[str, Any], path: Path) -> Repair:
    alone = parse_recipe(document["recipe"], str(path))
    changes: list[Override | TensorRange | TensorCodes] = [
        *alone.overrides,
        *alone.ranges,
        *alone.codes,
    ]
    return Repair(
        document["words"],
        document["blame"],
        document["saving"],
        document["milliseconds"],
        changes[0],
        frozenset(document["products"]),
    )
