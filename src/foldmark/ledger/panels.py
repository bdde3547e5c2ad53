"""The path cut into panels, where the metric's slope has kinks: finest where it needs to be.

Kinks of the functions that `find_kinks` knows are integrated exactly; others, as in TopK where
elements change places, are not, and no rule that is smooth in the whole path sees them right. But
the metric itself is cheap to run at any point of the path, so what a panel's nodes
leave is known exactly:

    left = M(b) - M(a) - sum over the panel's nodes

and the panel that leaves most is split, until the sum of what is left is small.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from foldmark.ledger.integral import Integral
from foldmark.ledger.stretch import Stretch

__all__ = ["Panels"]

_AT_FIRST = 8
_NODES = 2


@dataclass(frozen=True)
class _Panel:
    """A piece of the path.

    Attributes:
        low: (place, metric there) of its beginning.
        high: the same of its end.
        left: what its nodes leave of the metric's change along it.
    """

    low: tuple[float, float]
    high: tuple[float, float]
    left: float

    @property
    def stretch(self) -> Stretch:
        """Its nodes."""
        return Stretch(_NODES, self.low[0], self.high[0])


class Panels:
    """Integrates along a path that has kinks.

    Args:
        measure: gives the metric at a place of the path.
        add: adds a stretch's nodes, so many times, to an integral, None for a new one.
        ends: the metric at the two ends.
    """

    def __init__(
        self,
        measure: Callable[[float], float],
        add: Callable[[Stretch, int, Integral | None], Integral],
        ends: tuple[float, float],
    ) -> None:
        self._measure = measure
        self._add = add
        self._integral: Integral | None = None
        self.runs = 0
        places = [0.0, *(i / _AT_FIRST for i in range(1, _AT_FIRST)), 1.0]
        values = [ends[0], *(measure(place) for place in places[1:-1]), ends[1]]
        marks = list(zip(places, values, strict=True))
        self._panels = [self._filled(*pair) for pair in itertools.pairwise(marks)]

    @property
    def left(self) -> float:
        """What all nodes leave of the metric's change."""
        return sum(panel.left for panel in self._panels)

    @property
    def unsigned(self) -> float:
        """What each panel's nodes leave, added up without its sign."""
        return sum(abs(panel.left) for panel in self._panels)

    @property
    def integral(self) -> Integral:
        """The sum over the nodes."""
        assert self._integral is not None
        return self._integral

    def split(self) -> None:
        """Split the panel that leaves most."""
        worst = max(self._panels, key=lambda panel: abs(panel.left))
        self._panels.remove(worst)
        self._run(worst.stretch, -1)
        middle = (worst.low[0] + worst.high[0]) / 2
        mark = (middle, self._measure(middle))
        self._panels += [self._filled(worst.low, mark), self._filled(mark, worst.high)]

    def _filled(self, low: tuple[float, float], high: tuple[float, float]) -> _Panel:
        before = 0.0 if self._integral is None else self._integral.total
        panel = _Panel(low, high, 0.0)
        self._run(panel.stretch, 1)
        return _Panel(low, high, high[1] - low[1] - (self.integral.total - before))

    def _run(self, stretch: Stretch, times: int) -> None:
        self._integral = self._add(stretch, times, self._integral)
        self.runs += stretch.nodes
