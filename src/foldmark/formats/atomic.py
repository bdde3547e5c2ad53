"""Files that appear whole or not at all: written beside, then renamed."""

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from foldmark.errors import FileUnreadable

__all__ = ["write_whole"]


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Call `write` with a file beside `path` and rename it when that is done.

    Raises:
        FileUnreadable: a folder that can't be written to.
    """
    beside = path.with_name(path.name + ".part")
    try:
        with beside.open("wb") as file:
            write(file)
        beside.replace(path)
    except OSError as fault:
        raise FileUnreadable(
            "can't be written", where=str(path), got=(fault.strerror or str(fault)).lower()
        ) from fault
    finally:
        beside.unlink(missing_ok=True)
