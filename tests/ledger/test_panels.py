"""A path with kinks: panels shrink around them, and what they leave is known exactly."""

import numpy as np
import pytest

from foldmark.ledger.panels import Panels
from foldmark.ledger.replay import Integral

KINKS = np.array([0.137, 0.611, 0.613, 0.88])


def metric(t: float) -> float:
    """A smooth path with four kinks: Relus that open or close."""
    return float(t**3 + np.maximum(t - KINKS, 0).sum())


def slope(t: np.ndarray) -> np.ndarray:
    return 3 * t**2 + (t[:, None] > KINKS).sum(1)


def add(points: np.ndarray, shares: np.ndarray, onto: Integral | None) -> Integral:
    before = 0.0 if onto is None else onto.entries["s"]
    taken = 0 if onto is None else onto.nodes
    nodes = taken + int(np.sign(shares).sum())
    return Integral(nodes, {}, {"s": before + float(slope(points) @ shares)})


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
    def smooth(points: np.ndarray, shares: np.ndarray, onto: Integral | None) -> Integral:
        before = 0.0 if onto is None else onto.total
        return Integral(0, {}, {"s": before + float(3 * points**2 @ shares)})

    panels = Panels(lambda t: t**3, smooth, (0.0, 1.0))
    assert abs(panels.left) < 1e-12
