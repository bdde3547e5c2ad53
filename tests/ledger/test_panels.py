"""A path with kinks: panels shrink around them, and what they leave is known exactly."""

import numpy as np
import pytest

from foldmark.ledger.integral import Integral
from foldmark.ledger.panels import Panels
from foldmark.ledger.stretch import Stretch

KINKS = np.array([0.137, 0.611, 0.613, 0.88])


def metric(t: float) -> float:
    """A smooth path with four kinks: Relus that open or close."""
    return float(t**3 + np.maximum(t - KINKS, 0).sum())


def slope(t: np.ndarray) -> np.ndarray:
    return 3 * t**2 + (t[:, None] > KINKS).sum(1)


def add(stretch: Stretch, times: int, onto: Integral | None) -> Integral:
    before = 0.0 if onto is None else onto.entries["s"]
    taken = 0 if onto is None else onto.nodes
    moved = times * float(slope(stretch.points) @ stretch.shares)
    return Integral(taken + times * stretch.nodes, {}, {"s": before + moved})


def test_splitting_closes_in_on_the_kinks() -> None:
    panels = Panels(metric, add, (metric(0.0), metric(1.0)))
    moved = metric(1.0) - metric(0.0)
    first = abs(panels.left)
    assert first > 1e-4 * moved
    assert panels.left == pytest.approx(moved - panels.integral.total, abs=1e-12)
    for _ in range(40):
        panels.split()
        assert panels.left == pytest.approx(moved - panels.integral.total, abs=1e-12)
    assert abs(panels.left) < 1e-4 * moved < first
    # 8 panels at first and one more by every split, of two nodes each; taken back are two.
    assert panels.integral.nodes == 2 * 48
    assert panels.runs == 2 * 8 + 6 * 40
    # As many nodes spread evenly leave ten times as much.
    even = (np.polynomial.legendre.leggauss(96)[0] + 1) / 2
    shares = np.polynomial.legendre.leggauss(96)[1] / 2
    assert abs(moved - slope(even) @ shares) > 10 * abs(panels.left)


def test_a_smooth_path_needs_no_split() -> None:
    def smooth(stretch: Stretch, times: int, onto: Integral | None) -> Integral:
        before = 0.0 if onto is None else onto.total
        return Integral(
            0, {}, {"s": before + times * float(3 * stretch.points**2 @ stretch.shares)}
        )

    panels = Panels(lambda t: t**3, smooth, (0.0, 1.0))
    assert abs(panels.left) < 1e-12


@pytest.mark.parametrize("nodes", [1, 2, 3, 7, 16])
def test_a_node_lies_in_the_part_of_the_path_that_it_stands_for(nodes: int) -> None:
    stretch = Stretch(nodes, 0.25, 0.75)
    assert stretch.ends[0] == 0.25
    assert stretch.ends[-1] == 0.75
    np.testing.assert_allclose(np.diff(stretch.ends), stretch.shares, rtol=1e-12)
    assert np.all(stretch.ends[:-1] < stretch.points)
    assert np.all(stretch.points < stretch.ends[1:])
    assert stretch.points @ stretch.shares == pytest.approx((0.75**2 - 0.25**2) / 2)


def test_what_cancels_between_panels_is_in_their_unsigned_sum() -> None:
    """A Relu that opens and one that counts against it: the sum closes, the entries do not."""

    def opening(t: float | np.ndarray) -> np.ndarray:
        return np.maximum(np.asarray(t) - 0.13, 0)

    def closing(t: float | np.ndarray) -> np.ndarray:
        return -np.maximum(np.asarray(t) - 0.63, 0)

    def two(stretch: Stretch, times: int, onto: Integral | None) -> Integral:
        before = {"opens": 0.0, "closes": 0.0} if onto is None else onto.entries
        slopes = {"opens": stretch.points > 0.13, "closes": -1.0 * (stretch.points > 0.63)}
        moved = {name: times * float(each @ stretch.shares) for name, each in slopes.items()}
        return Integral(0, {}, {name: before[name] + moved[name] for name in before})

    def whole(t: float) -> float:
        return float(opening(t) + closing(t))

    panels = Panels(whole, two, (whole(0.0), whole(1.0)))
    off = {
        "opens": panels.integral.entries["opens"] - float(opening(1.0)),
        "closes": panels.integral.entries["closes"] - float(closing(1.0)),
    }
    assert abs(panels.left) < 1e-9  # 0.13 and 0.63 lie alike in their panels
    assert panels.unsigned == pytest.approx(sum(map(abs, off.values())))
    assert panels.unsigned > 1e-2
    for _ in range(60):
        panels.split()
    assert panels.unsigned < 1e-6
