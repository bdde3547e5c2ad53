"""Attention, hazards and clipping on arrays give what the oracle gives on lists."""

import numpy as np
import pytest

from foldmark import rules
from foldmark.errors import DataMismatch
from foldmark.exact import attention as exact_attention
from foldmark.exact import clipping as exact_clipping
from foldmark.exact import hazards as exact_hazards
from foldmark.exact.catalog import BFLOAT16, E4M3FN, E5M2, FLOAT16, FLOAT32
from foldmark.exact.number import FloatFormat
from foldmark.kernels import attention, clipping, hazards

PRECISIONS = [FLOAT32, FLOAT16, BFLOAT16]
by_name = pytest.mark.parametrize("precision", PRECISIONS, ids=lambda p: p.name)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@by_name
def test_attention(precision: FloatFormat) -> None:
    queries, keys, values = drawn(3, 8), drawn(5, 8), drawn(5, 4)
    lists = [x.tolist() for x in (queries, keys, values)]
    scores = attention.attention_scores(queries, keys, precision)
    assert scores.tolist() == exact_attention.attention_scores(*lists[:2], precision)
    found = attention.attention(queries, keys, values, precision)
    assert found.tolist() == exact_attention.attention(*lists, precision)
    heads = attention.attention(*(np.stack([x, -x]) for x in (queries, keys, values)), precision)
    assert np.array_equal(heads[0], found)


@by_name
def test_softmax_with_masks_and_wide_scores(precision: FloatFormat) -> None:
    scores = drawn(6, 9) * np.float32(20)
    scores[1, 3], scores[2] = -np.inf, 0.1
    expected = [exact_attention.softmax(row, precision) for row in scores.tolist()]
    assert attention.softmax(scores, precision).tolist() == expected
    scores[4] = -np.inf
    with pytest.raises(DataMismatch, match=r"row \[4\]"):
        attention.softmax(scores, precision)


def test_quantized_scores() -> None:
    scores, rule = drawn(40), rules.ONNXRUNTIME_WEIGHT_INT8.affine
    found = attention.softmax_of_codes(scores, 0.03, 0, rule)
    assert found.tolist() == exact_attention.softmax_of_codes(scores.tolist(), 0.03, 0, rule)
    changed = scores + np.float32(0.01)
    expected = exact_attention.softmax_error(scores.tolist(), changed.tolist())
    assert attention.softmax_error(scores, changed) == expected


def test_keys_of_another_width_are_refused() -> None:
    with pytest.raises(DataMismatch, match="different widths"):
        attention.attention_scores(drawn(2, 8), drawn(2, 4))


@pytest.mark.parametrize("precision", [*PRECISIONS, E5M2, E4M3FN], ids=lambda p: p.name)
def test_what_overflows(precision: FloatFormat) -> None:
    values = np.concatenate([drawn(500), [65504, 65519.99, 65520, -7e4, 464, 464.1, 449, 3.4e38]])
    values = np.concatenate([values, [61439.99, 61440, np.inf, np.nan, -np.inf, 57344]])
    expected = exact_hazards.overflowing(values.tolist(), precision)
    assert hazards.overflowing(values, precision).tolist() == expected
    assert hazards.overflowing(values.reshape(2, -1), precision).tolist() == expected


@by_name
def test_what_vanishes(precision: FloatFormat) -> None:
    values = np.abs(drawn(200)) * np.float32(1e-3)
    values[0], values[1] = 0, 1e-7
    for epsilon in (1e-12, 1e-7, 1e-5, 1.0):
        expected = [exact_hazards.epsilon_vanishes(x, epsilon, precision) for x in values.tolist()]
        assert hazards.epsilon_vanishes(values, epsilon, precision).tolist() == expected


@by_name
@pytest.mark.parametrize("values", [np.ones(5000, np.float32), drawn(600), np.full(9, 3e4)])
def test_sums_in_order(values: np.ndarray, precision: FloatFormat) -> None:
    numbers = values.tolist()
    assert hazards.sequential_sum(values, precision) == exact_hazards.sequential_sum(
        numbers, precision
    )
    lost = exact_hazards.lost_terms(numbers, precision)
    assert hazards.lost_terms(values, precision).tolist() == lost
    assert hazards.exact_sum(values) == exact_hazards.exact_sum(numbers)
    rows = hazards.sequential_sum(np.stack([values, -values]), precision)
    assert rows[1] == exact_hazards.sequential_sum((-values).tolist(), precision)


def test_sums_of_blocks() -> None:
    codes = np.stack([np.full(32, 127), np.full(32, -3)]).astype(np.int8)
    for scale in (0.01, 16.2, 3e30):
        expected = [exact_hazards.block_sum(row, scale) for row in codes.tolist()]
        assert hazards.block_sum(codes, scale).tolist() == expected


@pytest.mark.parametrize("percent", [0, 1, 50, 99, 100])
def test_limits(percent: int) -> None:
    for values in (drawn(7, 13), drawn(1), np.empty((0, 3), np.float32)):
        numbers = values.reshape(-1).tolist()
        limit = clipping.percentile_limit(values, percent)
        assert limit == exact_clipping.percentile_limit(numbers, percent)
        share = clipping.clipped_share(values, limit)
        assert share == exact_clipping.clipped_share(numbers, limit)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("spread", [0, 30])
def test_errors_split_at_a_limit(dtype: type, spread: int) -> None:
    source = np.random.default_rng(spread)
    for size in (0, 1, 70_000 if spread == 0 else 400):
        exponents = source.integers(-spread, spread + 1, size) / 4
        wide = source.standard_normal(size) * 10.0**exponents
        values = np.clip(wide, -6e4, 6e4).astype(dtype)
        restored = np.clip(np.round(values * 8) / 8, -1, 1).astype(dtype)
        found = clipping.split_error(values, restored, 1.0)
        assert found == exact_clipping.split_error(
            [float(x) for x in values], [float(x) for x in restored], 1.0
        )
    far = np.array([1e300, -1e-300, 3.0]), np.array([-1e300, 1e-300, 5e-324])
    assert clipping.split_error(*far, 2.0) == exact_clipping.split_error(
        far[0].tolist(), far[1].tolist(), 2.0
    )
