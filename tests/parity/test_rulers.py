"""Error rulers on arrays agree with the exact ones."""

from math import inf

import numpy as np
import pytest

import foldmark as fm
from foldmark.errors import DataMismatch
from foldmark.exact import rulers as exact
from foldmark.exact.catalog import INT4
from foldmark.kernels import rulers as fast

RULERS = [
    "largest_error",
    "mean_absolute_error",
    "mean_squared_error",
    "relative_error",
    "signal_to_noise",
]


def pairs() -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(3)
    x = generator.standard_normal(3000).astype(np.float32)
    return [
        (x, (x + generator.standard_normal(3000) / 50).astype(np.float32)),
        (x, x),
        (np.zeros(5), np.zeros(5)),
        (np.zeros(5), np.ones(5)),
        (np.zeros(0), np.zeros(0)),
        (np.array([1e200, 1.0]), np.array([1e200, 0.5])),
    ]


@pytest.mark.parametrize("name", RULERS)
@pytest.mark.parametrize("pair", pairs()[:5], ids=range(5))
def test_rulers(name: str, pair: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = pair
    expected = getattr(exact, name)(x.tolist(), y.tolist())
    found = getattr(fast, name)(x, y)
    assert found == expected if expected in (0, inf, -inf) else abs(found / expected - 1) < 1e-12
    if name == "largest_error":
        assert found == expected


def test_a_quiet_row_is_not_hidden() -> None:
    x = np.array([[1e-3, 2e-3], [100.0, 200.0]])
    y = np.array([[0.0, 0.0], [100.0, 200.0]])
    assert fast.relative_error_by_row(x, y).tolist() == [1.0, 0.0]
    assert exact.relative_error_by_row(x.tolist(), y.tolist()) == [1.0, 0.0]


def test_codes_used() -> None:
    codes = np.array([3, -1, 3, 7, -1, 3], np.int8)
    assert fast.codes_used(codes) == exact.codes_used(codes.tolist()) == {-1: 2, 3: 3, 7: 1}
    wide = np.array([0, 1 << 30, 0])
    assert fast.codes_used(wide) == {0: 2, 1 << 30: 1}
    assert fast.codes_used(codes[:0]) == {}


def test_shapes_must_agree() -> None:
    with pytest.raises(DataMismatch, match="different shapes"):
        fast.mean_squared_error(np.zeros(3), np.zeros(4))


def test_error_against_its_origin() -> None:
    w = np.random.default_rng(0).standard_normal((70, 1000)).astype(np.float32)
    tensor = fm.quantize(w, fm.symmetric(INT4, fm.per_group(100)))
    error = tensor.error_against(w)
    restored = tensor.dequantize().astype(np.float64)
    assert error.largest == np.abs(w - restored).max()
    assert error.largest <= tensor.scale.max() * 0.5001
    assert abs(error.mean_squared / ((w - restored) ** 2).mean() - 1) < 1e-12
    assert abs(error.signal_to_noise + 20 * np.log10(error.relative)) < 1e-9
