"""A range may end where the rest of the values ends, when a few stand far away from them."""

import numpy as np
import pytest

from foldmark.graphs.sites import Encoding, Site, SiteKind
from foldmark.ledger.facts import SiteFactsCollector
from foldmark.ledger.grid import Grid
from foldmark.ledger.treatments import candidates


def changes(values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the candidate treatments of an activation: name -> the values as treated."""
    scale = np.float32((values.max() - values.min()) / 255)
    zero = np.int8(np.clip(np.rint(-128 - values.min() / scale), -128, 127))
    encoding = Encoding("int8", None, None, np.asarray(scale), np.asarray(zero))
    site = Site("x", SiteKind.ACTIVATION, "Softmax", "", "x", "x", "y", encoding)
    after = (np.clip(np.rint(values / scale) + zero, -128, 127) - zero) * scale
    collector = SiteFactsCollector(site)
    grid = Grid.of(encoding, values)
    collector.add(values, after - values, grid, 0)
    found = candidates(site, collector.facts(), values)
    return {each.change: each.apply(values) for each in found}


def masked_scores() -> np.ndarray:
    scores = np.random.default_rng(0).normal(0, 2, (4, 8, 16)).astype(np.float32)
    scores[:, :, 12:] = -10000
    return scores


def test_a_mask_is_cut_off_at_twice_the_rest() -> None:
    scores = masked_scores()
    near = scores[:, :, :12]
    reach = 2 * np.abs(near).max()
    (name,) = [name for name in changes(scores) if name.startswith("clip at") and "twice" in name]
    treated = changes(scores)[name]
    assert treated.min() == pytest.approx(-reach, rel=0.02)
    assert np.abs(treated[:, :, :12] - near).max() <= (reach + near.max()) / 255 / 2 * 1.01


def test_without_a_gap_there_is_no_such_range() -> None:
    scores = masked_scores()[:, :, :12].copy()
    assert not [name for name in changes(scores) if "twice" in name]
