"""A histogram that is a function of the set of values alone."""

from math import floor, ldexp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties import examples

from foldmark.calibrate import histogram
from foldmark.calibrate.histogram import MOST_BINS, Histogram
from foldmark.kernels import cold
from foldmark.kernels.cold import Budget

finite = st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-1, 1, width=32)


def built(batches):
    found = Histogram()
    for batch in batches:
        values = np.array(batch, np.float32)
        if values.size:
            found.add(values, float(values.min()), float(values.max()))
    return found


def same(a, b):
    return (a.exponent, a.first, a.counts.tolist(), a.zeros) == (
        b.exponent, b.first, b.counts.tolist(), b.zeros
    )  # fmt: skip


@examples(150)
@given(st.lists(st.lists(finite, max_size=6), min_size=1, max_size=6), st.randoms())
def test_neither_order_nor_batches_matter(batches, random):
    values = [value for batch in batches for value in batch]
    once = built([values])
    shuffled = [list(batch) for batch in batches]
    random.shuffle(shuffled)
    assert same(built(shuffled), once)
    halves = built(shuffled[::2])
    halves.merge(built(shuffled[1::2]))
    assert same(halves, once)


@examples(100)
@given(st.lists(finite, min_size=1, max_size=30))
def test_every_value_is_in_its_bin(values):
    """The twin: each bin counted with plain numbers."""
    found = built([values])
    assert len(found.counts) <= MOST_BINS
    twin: dict[int, int] = {}
    for value in np.array(values, np.float32).tolist():
        place = floor(ldexp(value, -found.exponent))
        twin[place] = twin.get(place, 0) + 1
    counted = {found.first + i: n for i, n in enumerate(found.counts.tolist()) if n}
    assert counted == twin
    assert found.zeros == sum(value == 0 for value in values)


@pytest.mark.parametrize("first", [0.1, 0.001, 1e-20, 0.0])
def test_a_tiny_first_batch_costs_nothing(first):
    random = np.random.default_rng(0)
    small = (random.uniform(-1, 1, 1000) * first).astype(np.float32)
    large = random.uniform(-10, 10, 1000).astype(np.float32)
    assert same(built([small, large]), built([large, small]))
    assert len(built([small, large]).counts) <= MOST_BINS


@examples(100)
@given(st.lists(finite, min_size=1, max_size=300))
def test_numpy_counts_as_the_compiled_loop_does(values):
    array = np.array(values, np.float32)
    one, other = Histogram(), Histogram()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(histogram, "BUDGET", Budget(0))
        one.add(array, float(array.min()), float(array.max()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cold, "is_started", lambda: False)
        patch.setattr(histogram, "BUDGET", Budget(1000))
        patch.setattr(histogram, "_count", None)
        other.add(array, float(array.min()), float(array.max()))
    assert same(one, other)
