"""Where a command may write, and a progress bar that a pipe never sees."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from foldmark.errors import FileUnreadable, OutputExists

__all__ = ["check_output", "progress"]

_PATIENCE = 2.0  # seconds of work before a bar is worth its place


def check_output(path: Path, force: bool, source: Path | None = None) -> None:
    """Refuse a path that exists (without `force`), is the source, or whose folder does not exist.

    Raises OutputExists or FileUnreadable, before any work is done.
    """
    if path.is_dir():
        raise FileUnreadable("this is a directory", where=str(path), expected="a file to write")
    if source is not None and path.exists() and source.exists() and path.samefile(source):
        raise OutputExists("this is the float model itself", where=str(path))
    if path.exists() and not force:
        raise OutputExists("the file exists", where=str(path), todo="--force overwrites it")
    if not path.absolute().parent.is_dir():
        raise FileUnreadable("no such folder", where=str(path.absolute().parent))


def _silent(_done: int) -> None:
    """Draw nothing."""


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Give a function that takes the amount done; draws a bar on a terminal after 2 seconds."""
    if not sys.stderr.isatty():
        yield _silent
        return
    from rich.console import Console  # noqa: PLC0415  (only a terminal needs it)
    from rich.progress import Progress  # noqa: PLC0415

    bar = Progress(console=Console(stderr=True), transient=True)
    begin, task, shown = time.monotonic(), bar.add_task(title, total=total), False

    def step(done: int) -> None:
        nonlocal shown
        if not shown and time.monotonic() - begin > _PATIENCE:
            bar.start()
            shown = True
        bar.update(task, completed=done)

    try:
        yield step
    finally:
        if shown:
            bar.stop()
