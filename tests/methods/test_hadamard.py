"""Hadamard matrices against their definition and scipy's, rotations against what they promise."""

import numpy as np
import pytest

from foldmark.errors import InvalidScheme
from foldmark.methods.hadamard import block_order, hadamard, mean_keeping_rotation, rotation

ORDERS = [1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 44, 48, 60, 64, 76, 96, 192, 384, 576, 768]


@pytest.mark.parametrize("order", ORDERS)
def test_rows_are_orthogonal(order):
    H = hadamard(order)
    assert set(np.unique(H)) <= {-1, 1}
    assert np.array_equal(H @ H.T, order * np.eye(order, dtype=np.int64))
    assert (H[0] == 1).all()
    assert (H[:, 0] == 1).all()


@pytest.mark.parametrize("order", [2, 4, 16, 128])
def test_sylvesters_are_scipys(order):
    scipy = pytest.importorskip("scipy.linalg")
    assert np.array_equal(hadamard(order), scipy.hadamard(order))


@pytest.mark.parametrize("order", [3, 6, 10, 92])
def test_orders_without_a_construction(order):
    assert hadamard(order) is None


def test_order_zero():
    with pytest.raises(InvalidScheme, match="at least one row"):
        hadamard(0)


@pytest.mark.parametrize(
    ("size", "order"), [(384, 384), (172, 4), (86, 2), (96, 96), (7, 1), (184, 8)]
)
def test_blocks(size, order):
    assert block_order(size) == order


@pytest.mark.parametrize("size", [1, 6, 32, 172, 384])
@pytest.mark.parametrize("make", [rotation, mean_keeping_rotation])
def test_rotations_are_orthogonal(make, size):
    Q = make(size, 3)
    assert pytest.approx(np.eye(size), abs=1e-12) == Q @ Q.T


@pytest.mark.parametrize("size", [12, 64, 172, 384])
def test_the_mean_stays(size):
    Q = mean_keeping_rotation(size, 5)
    assert np.ones(size) @ Q == pytest.approx(np.ones(size))
    x = np.random.default_rng(0).standard_normal((4, size))
    assert (x @ Q).mean(1) == pytest.approx(x.mean(1))
    assert (x @ Q).var(1) == pytest.approx(x.var(1))
    assert np.abs(Q - np.eye(size)).max() > 0.5  # and it does rotate


def test_one_large_channel_is_spread():
    """All of it in one channel before; after, no channel holds more than a small part."""
    x = np.zeros(384)
    x[7] = 100
    assert np.abs(x @ rotation(384)).max() == pytest.approx(100 / 384**0.5)
    assert np.abs(x @ mean_keeping_rotation(384)).max() < 100 * 5 / 384**0.5
