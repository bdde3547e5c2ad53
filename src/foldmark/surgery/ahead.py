"""Where results come from: made when they are asked for, or begun while something else runs."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Ahead", "Source", "Work", "at_once"]

T = TypeVar("T")


class Work(NamedTuple, Generic[T]):
    """What makes a result.

    Attributes:
        key: what tells it from other works.
        make: does it.
    """

    key: Hashable
    make: Callable[[], T]


Source = Callable[[Work[T]], T]
"""Gives the result of a work, whenever it was made; raises what the work raised."""


def at_once(work: Work[T]) -> T:
    """Do a work when its result is asked for."""
    return work.make()


class Ahead(Generic[T]):
    """Results begun before they are asked for.

    Codes of weights depend on no sample, and opening a session for the float model keeps one core
    busy: the other makes them meanwhile. A context: at its end the work at hand is finished
    and the rest dropped.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="foldmark-ahead")
        self._begun: dict[Hashable, Future[T]] = {}

    def begin(self, work: Work[T]) -> None:
        """Do a work when those begun before are done; one begun twice counts once."""
        if work.key not in self._begun:
            self._begun[work.key] = self._thread.submit(work.make)

    def take(self, work: Work[T]) -> T:
        """Return what was begun under the work's key, or do it now; raises what it raised."""
        begun = self._begun.pop(work.key, None)
        return work.make() if begun is None else begun.result()

    def __enter__(self) -> "Ahead[T]":
        """Return this."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Wait for the work at hand, drop the rest."""
        self._thread.shutdown(cancel_futures=True)
