"""The --json option: a document to a file, written beside and renamed, or to stdout."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from foldmark.errors import FileUnreadable, OutputExists
from foldmark.formats.whole_file import write_whole

__all__ = ["JSON_HELP", "check_json", "write_json"]

JSON_HELP = 'Write everything as JSON to this file ("-": stdout, and nothing else there).'


def check_json(target: str | None, others: Iterable[Path | None] = ()) -> None:
    """Refuse a target that can't be written, before any work is done.

    others   what the command reads or writes besides, and must not overwrite

    Raises FileUnreadable for a directory, and for a folder that is missing or not writable;
    OutputExists for one of the command's other files.
    """
    if target is None or target == "-":
        return
    path = Path(target)
    folder = path.absolute().parent
    try:
        fault = _fault(path, folder)
    except (OSError, ValueError) as error:
        fault = (getattr(error, "strerror", None) or str(error)).lower()
    if fault:
        raise FileUnreadable("can't be written", where=target or "--json ''", got=fault)
    if any(each is not None and _same(each, path) for each in others):
        raise OutputExists(
            "this is another of the command's files",
            where=target,
            todo="give --json a file of its own",
        )


def _fault(path: Path, folder: Path) -> str:
    if path.is_dir():
        return "a directory"
    if not folder.is_dir():
        return "no such folder"
    return "" if os.access(folder, os.W_OK) else "no permission"


def _same(one: Path, other: Path) -> bool:
    both_there = one.exists() and other.exists()
    return one.samefile(other) if both_there else one.absolute() == other.absolute()


def write_json(document: dict[str, Any], target: str) -> None:
    """Write a document; a file appears whole or not at all, a device or pipe is written to.

    Raises FileUnreadable when the folder is missing or not writable.
    """
    content = json.dumps(document, indent=2) + "\n"
    if target == "-":
        click.echo(content, nl=False)
        return
    path = Path(target)
    try:
        if path.exists() and not path.is_file():
            path.write_text(content, encoding="utf-8")
        else:
            write_whole(content, path)
    except OSError as error:
        raise FileUnreadable(
            "can't be written", where=target, got=(error.strerror or str(error)).lower()
        ) from None
