"""Independent work on large arrays, spread over the processors."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from foldmark.runtimes.onnxruntime import available_threads

__all__ = ["Across"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Across:
    """Calls a function on every item, on as many threads as are given; numpy lets threads by.

    Args:
        threads: how many; all that the process may use when None.
    """

    def __init__(self, threads: int | None) -> None:
        self._pool = ThreadPoolExecutor(threads or available_threads())

    def __call__(self, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """Return the results in the order of the items."""
        return list(self._pool.map(work, items))
