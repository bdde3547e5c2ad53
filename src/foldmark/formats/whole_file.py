"""A text file that is there whole or not at all."""

import os
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(text: str, path: Path) -> None:
    """Write a text beside its place as UTF-8 and move it there; nothing stays where that fails.

    Raises OSError when the folder can't be written or the disk is full.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
