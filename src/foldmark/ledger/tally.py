"""One site's entry while batches are added to it."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from foldmark.graphs.sites import Site
from foldmark.ledger.axes import axis_names
from foldmark.ledger.causes import Cause, split_error
from foldmark.ledger.entries import Group, Origin
from foldmark.ledger.facts import SiteFactsCollector
from foldmark.ledger.grid import Grid
from foldmark.ledger.pieces import LARGE, pieces
from foldmark.ledger.recording import dot, is_stored

__all__ = ["SiteTally"]

_GROUPS_KEPT = 8


@dataclass
class _Stored:
    """The sum of a stored tensor's gradients over batches, and what it is to be split by."""

    before: NDArray[np.float32]
    delta: NDArray[np.float32]
    gradient: NDArray[np.float32]
    grid: Grid


@dataclass
class SiteTally:
    """Sums over batches of what one site does.

    Attributes:
        site: the site.
        facts: what is seen of the tensor.
        amounts: number of the draw (a sample, or a batch where samples aren't told apart) -> its
            entry, not yet divided by the metric's weight.
        causes: parts of the sum by cause.
        parts: axis name -> parts of the sum along it.
    """

    site: Site
    facts: SiteFactsCollector
    amounts: dict[int, float] = field(default_factory=dict)
    causes: dict[Cause, float] = field(default_factory=dict)
    parts: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    _stored: "_Stored | None" = None
    _born: float = 0.0
    _arrived: float = 0.0
    _power: float = 0.0

    def add(
        self,
        draw: int,
        first_sample: int,
        before: NDArray[np.float32],
        delta: NDArray[np.float32],
        gradient: NDArray[np.float32] | None,
        *,
        parts: NDArray[np.float64] | None = None,
    ) -> None:
        """Add one batch.

        draw      its number, or that of its first sample where there are `parts`
        gradient  the path average, None where the metric ignores the site
        parts     the entry sample by sample
        """
        grid = self._see(draw, first_sample, before, delta)
        if gradient is None:
            return
        if parts is not None:
            self.amounts |= {draw + i: float(part) for i, part in enumerate(parts)}
        # Of the size of a large tensor no second array is kept.
        if not is_stored(self.site) or gradient.size > LARGE:
            total = self._split(before, delta, gradient, grid)
            if parts is None:
                self.amounts[draw] += total
            return
        # The error of a stored tensor is the same in every batch: it is split once, at the end.
        if self._stored is not None and self._stored.delta is not delta:
            self.settle()
        if self._stored is None:
            self._stored = _Stored(before, delta, np.zeros_like(gradient), grid)
        self._stored.gradient += gradient
        if parts is None:
            self.amounts[draw] += dot(gradient, delta)

    def settle(self) -> None:
        """Split what was added of a stored tensor; before that, causes and parts lack it."""
        if self._stored is not None:
            stored, self._stored = self._stored, None
            self._split(stored.before, stored.delta, stored.gradient, stored.grid)

    def _split(
        self,
        before: NDArray[np.float32],
        delta: NDArray[np.float32],
        gradient: NDArray[np.float32],
        grid: Grid,
    ) -> float:
        """Add the entry to its causes and to its parts along the axes; return it."""
        encoding = self.site.encoding
        axis = (encoding.axis or 0) % max(before.ndim, 1)
        names = axis_names(self.site, before.ndim)
        total = 0.0
        sums: list[list[NDArray[np.float64]]] = [[] for _ in names]
        for piece in pieces(before.shape, axis, encoding.block_size or 1):
            place = (slice(None),) * axis + (piece,) if before.ndim else (...,)
            own = grid.of_piece(piece, axis, before.shape[axis] if before.ndim else 1)
            slope, error = gradient[place], delta[place]
            for cause, part in split_error(before[place], error, own).items():
                amount = float((slope * part).sum(dtype=np.float64))
                self.causes[cause] = self.causes.get(cause, 0.0) + amount
                total += amount
            whole = slope * error
            for i, name in enumerate(names):
                if name != "sample" and before.shape[i] > 1:
                    others = tuple(j for j in range(whole.ndim) if j != i)
                    sums[i].append(whole.sum(others, dtype=np.float64))
        for i, parts in enumerate(sums):
            if parts:
                whole_axis = np.concatenate(parts) if i == axis else np.sum(parts, axis=0)
                self._add_part(names[i], whole_axis)
        return total

    def add_switched(
        self,
        draw: int,
        first_sample: int,
        before: NDArray[np.float32],
        delta: NDArray[np.float32],
        amount: float,
    ) -> None:
        """Add one batch in which switching the site off saved `amount`.

        Without a gradient the causes share the amount as they share the squared error.
        """
        grid = self._see(draw, first_sample, before, delta)
        self.amounts[draw] += amount
        parts = split_error(before, delta, grid)
        powers = {
            cause: float((part * part).sum(dtype=np.float64)) for cause, part in parts.items()
        }
        whole = sum(powers.values()) or 1.0
        for cause, power in powers.items():
            self.causes[cause] = self.causes.get(cause, 0.0) + amount * power / whole

    def _see(
        self,
        draw: int,
        first_sample: int,
        before: NDArray[np.float32],
        delta: NDArray[np.float32],
    ) -> Grid:
        grid = Grid.of(self.site.encoding, before)
        is_known = bool(self.amounts) and self.site.codes is not None
        if not is_known:
            self.facts.add(before, delta, grid, first_sample)
        self.amounts.setdefault(draw, 0.0)
        return grid

    def add_origin(
        self,
        before: NDArray[np.float32],
        delta: NDArray[np.float32],
        exact: NDArray[np.floating],
    ) -> None:
        """Add one batch of what the float run holds at the same place."""
        if exact.shape != before.shape:
            return
        exact = exact.astype(np.float32, copy=False)
        arrived = before - exact
        self._born += dot(delta, delta)
        self._arrived += dot(arrived, arrived)
        self._power += dot(exact, exact)

    def origin(self) -> Origin | None:
        """Return how much error was born here and how much arrived, None when not gathered."""
        if self._power <= 0:
            return None
        return Origin(
            float(np.sqrt(self._born / self._power)), float(np.sqrt(self._arrived / self._power))
        )

    def groups(self, weight: float) -> tuple[Group, ...]:
        """Return the largest parts along each axis, divided by the metric's weight."""
        total = sum(self.amounts.values())
        sign = 1.0 if total >= 0 else -1.0
        found = []
        for name, part in self.parts.items():
            for index in np.argsort(-sign * part)[:_GROUPS_KEPT]:
                found.append(Group(name, int(index), float(part[index]) / weight))
        return tuple(found)

    def _add_part(self, name: str, part: NDArray[np.float64]) -> None:
        kept = self.parts.get(name, np.zeros(0))
        joined = np.zeros(max(kept.size, part.size))
        joined[: kept.size] += kept
        joined[: part.size] += part
        self.parts[name] = joined
