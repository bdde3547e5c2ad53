"""A progress bar on a terminal, on standard error; silence in a pipe."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["shown_progress", "shown_share"]


@contextmanager
def shown_progress(doing: str) -> Iterator[Callable[[float, float], None] | None]:
    """Yield what to call with (done, total): a bar on a terminal, None in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn(doing), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def shown_share(doing: str) -> Iterator[Callable[[float], None] | None]:
    """Yield what to call with the share of the work that is done; None in a pipe."""
    with shown_progress(doing) as advance:
        yield None if advance is None else lambda share: advance(share, 1)
