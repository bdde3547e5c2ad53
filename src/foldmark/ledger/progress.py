"""How much of a long piece of work is done, told as it goes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Progress"]


class Progress:
    """Tells the share of work that is done, never less than before.

    Args:
        tell: called with the share, from 0 to 1.
    """

    def __init__(self, tell: Callable[[float], None] = lambda _: None) -> None:
        self._tell = tell
        self._begin, self._end = 0.0, 1.0
        self._done = 0.0

    @contextmanager
    def part(self, begin: float, end: float) -> Iterator[None]:
        """Let what is told inside count for this part of what is told outside."""
        outer = self._begin, self._end
        width = self._end - self._begin
        self._begin, self._end = self._begin + begin * width, self._begin + end * width
        yield
        self.reach(1.0)
        self._begin, self._end = outer

    def reach(self, share: float) -> None:
        """Say that this share of the present part is done."""
        done = self._begin + share * (self._end - self._begin)
        if done > self._done:
            self._done = done
            self._tell(done)

    def approach(self, share: float, by: float) -> None:
        """Go so much of the way from here to a share: for steps whose number is not known."""
        aim = self._begin + share * (self._end - self._begin)
        if aim > self._done:
            self._done += by * (aim - self._done)
            self._tell(self._done)
