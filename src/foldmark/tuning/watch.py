"""What is told of a climb while it goes on."""

from dataclasses import dataclass
from typing import Protocol

from foldmark.tuning.trial import Trial

__all__ = ["Promise", "Silence", "Step", "Watch"]


@dataclass(frozen=True)
class Promise:
    """What a step was tried for.

    Attributes:
        saving: part of the measured change that the account expects it to take away.
        milliseconds: what it is expected to cost in every run.
    """

    saving: float
    milliseconds: float


@dataclass(frozen=True)
class Step:
    """A trial and what it is to be compared with.

    Attributes:
        trial: what was measured.
        base: the trial whose recipe it changes; None for a first rung.
        promise: what the account expected of it; None where it was not asked.
    """

    trial: Trial
    base: Trial | None = None
    promise: Promise | None = None


class Watch(Protocol):
    """Hears of a climb as it goes."""

    def planned(self, most: int) -> None:
        """Hear how many trials there are at most, before the first."""

    def begun(self, name: str) -> None:
        """Hear what is tried next."""

    def ended(self, step: Step) -> None:
        """Hear what a trial gave."""

    def explaining(self, share: float) -> None:
        """Hear how much of the account has been taken, several times."""


class Silence:
    """A watch that lets everything pass."""

    def planned(self, most: int) -> None:
        """Say nothing."""

    def begun(self, name: str) -> None:
        """Say nothing."""

    def ended(self, step: Step) -> None:
        """Say nothing."""

    def explaining(self, share: float) -> None:
        """Say nothing."""
