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
    """Refuse a target that can't be written, before any work is done.

    Raises FileUnreadable for a directory, and for a folder that is missing or not writable.
    """
    if target in (None, "-"):
        return
    path = Path(str(target))
    folder = path.absolute().parent
    fault = ""
    if path.is_dir():
        fault = "a directory"
    elif not folder.is_dir():
        fault = "no such folder"
    elif not os.access(folder, os.W_OK):
        fault = "no permission"
    if fault:
        raise FileUnreadable("can't be written", where=str(target), got=fault)


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
