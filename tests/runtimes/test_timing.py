"""Two models timed in turns."""

import pytest

from foldmark.runtimes.timing import compare_speed


class Clock:
    """Time that passes only when a model runs, with a drift that both models feel."""

    def __init__(self, drift=0.0):
        self.now, self.drift, self.order = 0.0, drift, []

    def __call__(self):
        return self.now

    def model(self, name, seconds):
        def run():
            self.order.append(name)
            self.now += seconds * (1 + self.drift * len(self.order))

        return run


def test_ratio_and_rounds():
    clock = Clock()
    found = compare_speed(
        clock.model("a", 0.3), clock.model("b", 0.1), samples=4, seconds=3.9, clock=clock
    )
    assert found.ratio.value == pytest.approx(3)
    assert found.ratio.low == pytest.approx(found.ratio.high)
    assert (found.samples, found.rounds) == (4, 10)
    assert not found.within_noise


def test_the_order_alternates_so_that_drift_falls_on_both():
    clock = Clock(drift=0.05)
    found = compare_speed(
        clock.model("a", 0.1), clock.model("b", 0.1), samples=1, seconds=20, clock=clock
    )
    assert clock.order[4:12] == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert found.within_noise
    assert found.ratio.value == pytest.approx(1, abs=0.1)


def test_at_least_seven_rounds():
    clock = Clock()
    slow = clock.model("a", 10.0)
    assert compare_speed(slow, slow, samples=1, seconds=0.1, clock=clock).rounds == 7
