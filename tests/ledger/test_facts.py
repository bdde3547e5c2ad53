"""What is told of a tensor is what is in it."""

import numpy as np
import pytest

from foldmark.graphs.sites import Encoding, Site, SiteKind
from foldmark.ledger.bootstrap import resample
from foldmark.ledger.facts import SiteFactsCollector
from foldmark.ledger.grid import Grid
from foldmark.ledger.recording import dot


def site(kind=SiteKind.ACTIVATION, operator="MatMul", encoding=None):
    enc = encoding or Encoding("int8", scale=np.float32(1.0), zero_point=np.int8(0))
    return Site("s", kind, operator, "", "s", "a", "b", enc)


def collect(x, enc, kind=SiteKind.ACTIVATION, batches=1):
    collector = SiteFactsCollector(site(kind, encoding=enc))
    first = 0
    for part in np.array_split(x, batches):
        step = np.asarray(Grid.of(enc, part).step, np.float32)
        after = np.clip(np.rint(part / step), -128, 127) * step
        collector.add(part, after.astype(np.float32) - part, Grid.of(enc, part), first)
        first += len(part)
    return collector.facts()


@pytest.mark.parametrize("batches", [1, 3])
def test_the_huge_channel_is_named_with_its_sample(batches):
    x = np.random.default_rng(0).standard_normal((9, 5, 16)).astype(np.float32)
    x[:, :, 7] *= 20
    x[6, 2, 7] = -175.0
    enc = Encoding("int8", scale=np.float32(175 / 127), zero_point=np.int8(0))
    facts = collect(x, enc, batches=batches)
    setter = facts.setter
    assert setter.index == (6, 2, 7)
    assert setter.value == -175.0
    assert setter.channel == 7
    others = np.delete(np.abs(x), 7, axis=2).max()
    assert setter.scale_without == pytest.approx(others / 127, rel=1e-5)
    assert facts.typical == pytest.approx(np.median(np.abs(x).max((0, 1))), rel=1e-6)
    codes = np.rint(x / np.float32(175 / 127))
    rest = np.sort(np.abs(codes).ravel())[: int(np.ceil(0.99 * codes.size))]
    assert setter.codes_of_rest == len(np.unique(codes[np.abs(codes) <= rest[-1]]))
    assert setter.codes == 256
    assert facts.clipped == 0


def test_small_channels_are_not_hidden_by_the_mean():
    x = np.random.default_rng(0).standard_normal((64, 20)).astype(np.float32)
    x[:, :2] *= 0.01
    enc = Encoding("int8", scale=np.float32(np.abs(x).max() / 127), zero_point=np.int8(0))
    facts = collect(x, enc)
    delta = np.rint(x / enc.scale) * enc.scale - x
    small = np.sqrt((delta[:, :2] ** 2).sum() / (x[:, :2] ** 2).sum())
    assert facts.relative_error_smallest == pytest.approx(small, rel=1e-4)
    assert facts.relative_error_smallest > 20 * facts.relative_error


def test_clipped_share_and_ranges():
    x = np.linspace(-4, 4, 801, dtype=np.float32)[:, None]
    enc = Encoding("int8", scale=np.float32(1 / 64), zero_point=np.int8(0))
    facts = collect(x, enc)
    assert facts.clipped == pytest.approx(((x < -2 - 1 / 128) | (x > 127.5 / 64)).mean())
    assert facts.seen == (-4.0, 4.0)
    assert facts.covered == pytest.approx((-2.0, 127 / 64))


def test_a_weight_with_its_own_scale_per_column_drops_the_element():
    w = np.random.default_rng(1).uniform(-1, 1, (32, 8)).astype(np.float32)
    w[5, 3] = 9.0
    enc = Encoding(
        "int8", 1, None, (np.abs(w).max(0) / 127).astype(np.float32), np.zeros(8, np.int8)
    )
    setter = collect(w, enc, SiteKind.WEIGHT).setter
    assert setter.index == (5, 3)
    assert setter.channel == 3
    rest = np.abs(np.delete(w[:, 3], 5)).max()
    assert setter.scale_without == pytest.approx(rest / 127, rel=1e-5)


def test_intervals_cover_and_doubt_what_the_data_cannot_settle():
    draw = np.random.default_rng(0)
    weights = np.full(12, 4.0)
    clear = np.stack([draw.normal(8, 1, 12), draw.normal(2, 1, 12)], 1)
    found = resample(clear, weights)
    mean = clear.sum(0) / weights.sum()
    assert (found.low < mean).all()
    assert (mean < found.high).all()
    assert found.first_holds > 0.99
    noise = draw.normal(4, 3, 12)
    even = np.stack([noise, noise[::-1]], 1)
    assert resample(even, weights).first_holds < 0.7
    assert resample(clear[:3], weights[:3]) is None


def test_norms_of_values_whose_squares_overflow():
    x = np.zeros((2, 4), np.float32)
    x[:, 1] = 3e38
    x[:, 2] = -2
    enc = Encoding("int8", scale=np.float32(1), zero_point=np.int8(0))
    facts = collect(x, enc)
    assert facts.relative_error == pytest.approx(1, rel=1e-6)
    assert facts.seen == (-2, float(np.float32(3e38)))
    left, right = x[:, 1], x[:, 2]
    assert dot(left, left) == pytest.approx(2 * float(np.float32(3e38)) ** 2)
    assert dot(left, right) == pytest.approx(-4 * float(np.float32(3e38)), rel=1e-6)
