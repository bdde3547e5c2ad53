"""Integer products are the oracle's, by whichever engine makes them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties import examples

from foldmark.errors import DataMismatch, NotSupported
from foldmark.exact import dot as exact
from foldmark.exact.catalog import INT16, INT32
from foldmark.kernels import dot as fast

ACCUMULATORS = [
    exact.EXACT,
    exact.INT32_WRAPPING,
    exact.Accumulator(INT16),
    exact.Accumulator(INT16, exact.AccumulatorOverflow.SATURATE),
    exact.Accumulator(INT32, exact.AccumulatorOverflow.SATURATE),
]
DTYPES = [np.int8, np.uint8, np.int16, np.uint16, np.int32]


def codes(seed: int, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Return codes with many extremes among them."""
    generator = np.random.default_rng(seed)
    limits = np.iinfo(dtype)
    drawn = generator.integers(limits.min, limits.max, shape, endpoint=True)
    extreme = generator.choice([limits.min, limits.max], shape)
    return np.where(generator.random(shape) < 0.5, drawn, extreme).astype(dtype)


@given(st.data())
@examples(60)
def test_small_products(data: st.DataObject) -> None:
    rows, length, columns = (data.draw(st.integers(1, 6)) for _ in range(3))
    seed = data.draw(st.integers(0, 2**32))
    a = codes(seed, (rows, length), data.draw(st.sampled_from(DTYPES)))
    b = codes(seed + 1, (length, columns), data.draw(st.sampled_from(DTYPES[:4])))
    zeros = data.draw(st.tuples(st.integers(-9, 200), st.integers(-9, 200)))
    accumulator = data.draw(st.sampled_from(ACCUMULATORS))
    expected = exact.integer_matmul(a.tolist(), b.tolist(), *zeros, accumulator)
    assert fast.integer_matmul(a, b, *zeros, accumulator).tolist() == expected


@pytest.mark.parametrize("kinds", [(x, y) for x in DTYPES for y in DTYPES[:3]], ids=str)
def test_products_large_enough_for_a_library(kinds: tuple[type, type]) -> None:
    a, b = codes(1, (9, 700), kinds[0]), codes(2, (700, 13), kinds[1])
    expected = (a.astype(object) - 3) @ (b.astype(object) - 128)
    assert np.array_equal(fast.integer_matmul(a, b, 3, 128), expected.astype(np.int64))


@pytest.mark.parametrize("engine", ["_by_onnxruntime", "_by_float32"])
def test_each_engine_is_exact_on_the_worst_codes(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "_by_onnxruntime" and not fast._multiplies_bytes_exactly("|u1", "|i1"):
        pytest.skip("this processor saturates pairs of products")
    chosen = engine == "_by_onnxruntime"
    monkeypatch.setattr(fast, "_multiplies_bytes_exactly", lambda *_: chosen)
    a = np.full((3, 70000), 255, np.uint8)
    b = np.full((70000, 2), 127, np.int8)
    assert (fast.integer_matmul(a, b) == 2_266_950_000).all()
    assert (fast.integer_matmul(a, b, accumulator=exact.INT32_WRAPPING) == -2_028_017_296).all()


def test_float32_alone_would_be_wrong() -> None:
    a = np.full((1, 2049), 127, np.int8)
    assert fast.integer_dot(a[0], a[0]) == 33_048_321
    assert int(a[0].astype(np.float32) @ a[0].astype(np.float32)) != 33_048_321


def test_zero_points_of_rows_and_columns() -> None:
    a, b = codes(3, (4, 5, 300), np.uint8), codes(4, (300, 6), np.int8)
    zero_a, zero_b = np.arange(5)[:, None] + 120, np.arange(6) - 3
    expected = (a.astype(np.int64) - zero_a) @ (b.astype(np.int64) - zero_b)
    assert np.array_equal(fast.integer_matmul(a, b, zero_a, zero_b), expected)


def test_terms_and_saturating_pairs() -> None:
    a, b = codes(5, (33,), np.uint8), codes(6, (33,), np.int8)
    lists = a.tolist(), b.tolist()
    assert fast.dot_terms(a, b, 3, -4) == exact.dot_terms(*lists, 3, -4)
    assert fast.saturating_pairs_dot(a, b) == exact.saturating_pairs_dot(*lists)
    assert fast.saturating_pairs(a, b).tolist() == exact.saturating_pairs(*lists)
    assert fast.saturating_pairs(a, b).size > 0


@pytest.mark.parametrize("shapes", [((2, 3), (4, 2)), ((3,), (3, 2)), ((0, 3), (2, 2))])
def test_shapes_that_do_not_meet(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(DataMismatch, match="inner lengths differ"):
        fast.integer_matmul(np.zeros(shapes[0], np.int8), np.zeros(shapes[1], np.int8))


def test_no_products_are_zero() -> None:
    nothing = fast.integer_matmul(np.zeros((2, 0), np.int8), np.zeros((0, 3), np.int8))
    assert nothing.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_sums_beyond_int64_are_refused() -> None:
    huge = np.full((2, 4), 2**31 - 1, np.int64) * 2
    with pytest.raises(NotSupported, match="2\\^63"):
        fast.integer_matmul(huge, huge.T)
