"""Spreading pieces of work over the cores; the loops inside release the interpreter lock."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Final, TypeVar

__all__ = ["each", "share_of", "thread_count"]

Piece = TypeVar("Piece")

_SHARES: Final = 8
"""Pieces for every thread, so that none waits long for the last."""
_MOST: Final = 32
"""Units in a piece at most: beyond, Python's time for a piece is nothing."""

_lock = Lock()
_pools: dict[int, ThreadPoolExecutor] = {}


def thread_count() -> int:
    """Return how many threads share the work: the cores this process may use.

    The environment variable FOLDMARK_THREADS lowers or raises the number.
    """
    asked = os.environ.get("FOLDMARK_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share_of(count: int, unit: int) -> int:
    """Return how much of `count` one thread should take at a time: some units.

    Python takes some microseconds for a piece, during which no other thread can begin one.
    """
    return unit * min(max(1, count // (unit * _SHARES * thread_count())), _MOST)


def each(work: Callable[[Piece], None], pieces: Sequence[Piece]) -> None:
    """Call `work` on every piece, on all cores; the first error is raised here.

    Pieces are taken from one shared list as threads become free, so an uneven piece delays
    nobody. The calling thread works too, and a single piece never leaves it.
    """
    threads = min(thread_count(), len(pieces))
    if threads <= 1:
        for piece in pieces:
            work(piece)
        return
    shared = iter(pieces)
    helpers = [_pool(threads).submit(_drain, work, shared) for _ in range(threads - 1)]
    try:
        _drain(work, shared)
    finally:
        for _ in shared:  # after an error nobody should start another piece
            pass
        failures = [error for error in (helper.exception() for helper in helpers) if error]
    if failures:
        raise failures[0]


def _drain(work: Callable[[Piece], None], shared: Iterable[Piece]) -> None:
    # A list's iterator hands out each item once, whichever thread asks.
    for piece in shared:
        work(piece)


def _pool(threads: int) -> ThreadPoolExecutor:
    with _lock:
        if threads not in _pools:
            _pools[threads] = ThreadPoolExecutor(threads - 1, thread_name_prefix="foldmark")
        return _pools[threads]


if hasattr(os, "register_at_fork"):
    # A forked child has the pool's object but none of its threads.
    os.register_at_fork(after_in_child=_pools.clear)
