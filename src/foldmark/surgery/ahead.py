"""What can be made while something else runs, by one more thread."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

__all__ = ["Ahead"]

T = TypeVar("T")


class Ahead(Generic[T]):
    """Results begun before they are asked for.

    Codes of weights depend on no sample, and opening a session for the float model keeps one core
    busy: the other makes them meanwhile. A context: at its end the work at hand is finished
    and the rest dropped.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="foldmark-ahead")
        self._begun: dict[Hashable, Future[T]] = {}

    def begin(self, key: Hashable, work: Callable[[], T]) -> None:
        """Do a work when those begun before are done; a key begun twice counts once."""
        if key not in self._begun:
            self._begun[key] = self._thread.submit(work)

    def take(self, key: Hashable, work: Callable[[], T]) -> T:
        """Return what was begun under a key, or do the work now; raises what the work raised."""
        begun = self._begun.pop(key, None)
        return work() if begun is None else begun.result()

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
