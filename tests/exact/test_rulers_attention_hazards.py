"""Error rulers, softmax and attention, and what narrow floats do to sums."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldmark.errors import DataMismatch
from foldmark.exact import attention, hazards, rulers
from foldmark.exact.catalog import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT8
from foldmark.exact.rule import AffineRule

numbers = st.floats(-1e6, 1e6, allow_nan=False)
pairs = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20)


@given(pairs)
def test_rulers_are_numpys(rows: list[tuple[float, float]]) -> None:
    x, y = [a for a, _ in rows], [b for _, b in rows]
    error = np.array(x) - np.array(y)
    assert rulers.largest_error(x, y) == pytest.approx(np.abs(error).max(), abs=0, rel=1e-12)
    assert rulers.mean_absolute_error(x, y) == pytest.approx(np.abs(error).mean(), rel=1e-12)
    assert rulers.mean_squared_error(x, y) == pytest.approx((error**2).mean(), rel=1e-12)


def test_half_the_error_is_six_decibel() -> None:
    x = [1.0, -2.0, 3.0]
    coarse = rulers.signal_to_noise(x, [v + 0.25 for v in x])
    fine = rulers.signal_to_noise(x, [v + 0.125 for v in x])
    assert fine - coarse == pytest.approx(20 * math.log10(2))
    assert rulers.signal_to_noise(x, x) == math.inf


def test_a_quiet_row_is_not_hidden() -> None:
    loud, quiet = [100.0, -100.0], [0.01, 0.0]
    errors = rulers.relative_error_by_row([loud, quiet, [0.0]], [[100.0, -99.0], [0.0, 0.0], [0.0]])
    assert errors == [pytest.approx(1 / math.sqrt(20000)), 1.0, 0.0]
    assert rulers.relative_error([0.0], [1.0]) == math.inf


def test_codes_used_counts_each() -> None:
    assert rulers.codes_used([3, -1, 3, 0]) == {-1: 1, 0: 1, 3: 2}


def test_rulers_refuse_different_lengths() -> None:
    with pytest.raises(DataMismatch, match="got 1 and 2"):
        rulers.largest_error([1.0], [1.0, 2.0])


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=12))
def test_softmax_is_numpys(scores: list[float]) -> None:
    shifted = np.exp(np.array(scores) - max(scores))
    expected = shifted / shifted.sum()
    assert attention.softmax(scores, FLOAT64) == pytest.approx(expected, rel=1e-12)


def test_attention_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, d)) for n, d in ((3, 4), (5, 4), (5, 2)))
    theirs = torch.nn.functional.scaled_dot_product_attention(*(torch.tensor(m) for m in (q, k, v)))
    ours = attention.attention(q.tolist(), k.tolist(), v.tolist(), FLOAT64)
    assert ours == [pytest.approx(row, rel=1e-12) for row in theirs.tolist()]


def test_a_masked_score_gets_nothing_and_all_masked_is_refused() -> None:
    assert attention.softmax([0.0, -math.inf]) == [1.0, 0.0]
    with pytest.raises(DataMismatch, match="no answer"):
        attention.softmax([-math.inf, -math.inf])


@given(
    st.lists(st.floats(-8, 8), min_size=2, max_size=6),
    st.lists(st.floats(-1, 1), min_size=6, max_size=6),
)
def test_no_error_exceeds_its_bound(scores: list[float], moves: list[float]) -> None:
    changed = [s + m for s, m in zip(scores, moves, strict=False)]
    error = attention.softmax_error(scores, changed, FLOAT64)
    assert error.probabilities_out <= error.bound + 1e-12


def test_the_bound_is_reached() -> None:
    error = attention.softmax_error([-0.5, 0.5], [0.5, -0.5], FLOAT64)
    assert error.probabilities_out == pytest.approx(math.tanh(0.5))
    assert error.bound == pytest.approx(math.tanh(0.5))


def test_quantized_scores() -> None:
    rule = AffineRule(codes=INT8)
    given_scores = [1.0, 2.0, 3.1]
    assert attention.softmax_of_codes(given_scores, 0.25, 0, rule) == attention.softmax(
        [1.0, 2.0, 3.0]
    )


def test_values_that_overflow_float16() -> None:
    assert hazards.overflowing([65504.0, 65519.9, 65520.0, -7e4, math.inf]) == [2, 3]
    assert hazards.overflowing([7e4], BFLOAT16) == []


def test_an_epsilon_vanishes_in_float16() -> None:
    assert hazards.epsilon_vanishes(0.0, 1e-12)
    assert hazards.epsilon_vanishes(0.01, 1e-6)
    assert not hazards.epsilon_vanishes(0.0, 1e-5)
    assert not hazards.epsilon_vanishes(0.0, 1e-12, FLOAT32)


def test_a_float16_sum_stops_at_2048() -> None:
    ones = [1.0] * 2050
    assert hazards.sequential_sum(ones) == 2048.0
    assert hazards.exact_sum(ones) == 2050.0
    assert hazards.lost_terms(ones) == [2048, 2049]


def test_a_block_sum_in_float16_overflows() -> None:
    scale = FLOAT16.round(3000 / 127)
    assert scale == 23.625
    assert hazards.block_sum([127] * 32, scale) == math.inf
    assert hazards.block_sum([127] * 32, FLOAT16.round(2046 / 127)) < math.inf
