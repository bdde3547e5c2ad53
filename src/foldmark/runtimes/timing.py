"""Two models timed against each other in one run, turn by turn, with the uncertainty stated."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Comparison", "Interval", "compare_speed"]

_WARM_UPS = 2
_LEAST_ROUNDS = 7
_RESAMPLES = 1000


@dataclass(frozen=True)
class Interval:
    """A value with the 95 % interval around it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Times of two models, run in turns on the same inputs.

    Attributes:
        samples: samples of one run.
        rounds: runs of each model that were timed.
        first: median seconds of a run of the first model.
        second: median seconds of a run of the second.
        ratio: how many times faster the second is: median of first / median of second.
    """

    samples: int
    rounds: int
    first: Interval
    second: Interval
    ratio: Interval

    @property
    def within_noise(self) -> bool:
        """True when the interval of the ratio holds 1: no difference was shown."""
        return self.ratio.low <= 1.0 <= self.ratio.high


def compare_speed(
    first: Callable[[], object],
    second: Callable[[], object],
    *,
    samples: int,
    seconds: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Time two calls in turns (first, second, second, first, ...) for about `seconds`.

    Drift of the machine (heat, neighbours) falls on both alike. The intervals come from
    resampling whole rounds, so what the two suffered together stays together.

    Args:
        first: runs the first model once.
        second: runs the second model once.
        samples: samples of one run, recorded only.
        seconds: how long to go on; at least 7 rounds are run.
        clock: seconds from anywhere, rising.
    """
    for _ in range(_WARM_UPS):
        first()
        second()
    begin = clock()
    rounds: list[tuple[float, float]] = []
    while len(rounds) < _LEAST_ROUNDS or clock() - begin < seconds:
        if len(rounds) % 2 == 0:
            one, two = _timed(first, clock), _timed(second, clock)
        else:
            two, one = _timed(second, clock), _timed(first, clock)
        rounds.append((one, two))
    return _compared(np.array(rounds), samples)


def _timed(call: Callable[[], object], clock: Callable[[], float]) -> float:
    begin = clock()
    call()
    return clock() - begin


def _compared(rounds: NDArray[np.float64], samples: int) -> Comparison:
    """Return medians and their bootstrap intervals.  rounds (n, 2) seconds."""
    drawn = np.random.default_rng(0).integers(0, len(rounds), (_RESAMPLES, len(rounds)))
    medians = np.median(rounds[drawn], axis=1)  # (resamples, 2)
    middle = np.median(rounds, axis=0)
    ratio = middle[0] / middle[1]
    return Comparison(
        samples,
        len(rounds),
        _interval(middle[0], medians[:, 0]),
        _interval(middle[1], medians[:, 1]),
        _interval(ratio, medians[:, 0] / medians[:, 1]),
    )


def _interval(value: float, draws: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(float(value), float(low), float(high))
