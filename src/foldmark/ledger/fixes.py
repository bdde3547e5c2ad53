"""Cures: other treatments of a site, priced by the account and measured in simulation."""

from dataclasses import dataclass

__all__ = ["Fix"]

_APART = 0.2


@dataclass(frozen=True)
class Fix:
    """A change of treatment of one or several sites.

    Attributes:
        sites: the names of the sites.
        change: the treatment in words ("leave in float", "per channel").
        predicted: what it saves of the metric's change, by the account.
        measured: what it saves in simulation; None when it was not run.
        share: predicted / moved.
        moved: by how much the metric moved on the samples that cures were priced on.
        samples: how many these are.
        range: the ends of the new grid, where the change is nothing but another range of one
            activation, else None.
        codes: the number format where the change is nothing but more bits for one activation,
            else "".
    """

    sites: tuple[str, ...]
    change: str
    predicted: float
    measured: float | None
    share: float
    moved: float
    samples: int
    range: tuple[float, float] | None = None
    codes: str = ""

    @property
    def parts(self) -> bool:
        """True when prediction and measurement are more than 20 % apart."""
        if self.measured is None:
            return False
        return abs(self.predicted - self.measured) > _APART * abs(self.measured)
