"""The --json option: a document to a file, written beside and renamed, or to stdout."""

import json
import os
from pathlib import Path
from typing import Any

import click

from foldmark.errors import FileUnreadable

__all__ = ["JSON_HELP", "check_json", "write_json"]

JSON_HELP = 'Write everything as JSON to this file ("-": stdout, and nothing else there).'


def check_json(target: str | None) -> None:
    """Say before the work that a document will have no folder to be written to.

    Raises FileUnreadable when the folder is missing.
    """
    if target not in (None, "-") and not Path(str(target)).parent.is_dir():
        raise FileUnreadable("can't be written", where=str(target), got="no such folder")


def write_json(document: dict[str, Any], target: str) -> None:
    """Write a document; a file appears whole or not at all.

    Raises FileUnreadable when the folder is missing or not writable.
    """
    content = json.dumps(document, indent=2) + "\n"
    if target == "-":
        click.echo(content, nl=False)
        return
    path = Path(target)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(content, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise FileUnreadable(
            "can't be written", where=target, got=error.strerror or str(error)
        ) from None
