"""What numpy does in a fresh process is what the compiled loops do, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.parity import strategies as draws
from tests.properties import examples

from foldmark import rules
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.rule import Infinity, Rule
from foldmark.kernels import fold
from foldmark.kernels.blocks import Layout
from foldmark.kernels.cold import Budget, fold_even_blocks
from foldmark.kernels.compiled import is_started

SHAPES = [(7,), (5, 9), (16, 3, 3), (1, 8), (8, 1), (300, 400)]
PLAIN = [rule for rule in rules.CATALOGUE.values() if isinstance(rule, Rule)]


def whole(shape: tuple[int, ...], axis: int | None) -> list[int]:
    """Return blocks that reach along every axis but one."""
    return [1 if i == axis else max(n, 1) for i, n in enumerate(shape)]


def both(values: np.ndarray, block: list[int], rule: Rule) -> tuple:
    """Return codes, scale and zero point by numpy and by the loops; None for numpy's refusal."""
    found = fold_even_blocks(values, Layout.of(values, block), rule)
    if found is None:
        return None, None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "BUDGET", Budget(0))
        group = fold.quantize_array(values, block, rule)
    codes, grid = found
    return (codes, grid.scale, grid.zero_point), (group.codes, group.scale, group.zero_point)


def same(one: tuple, other: tuple) -> bool:
    codes = one[0].dtype == other[0].dtype and one[0].tobytes() == other[0].tobytes()
    return codes and all(
        np.array_equal(a.astype(np.float64), b.astype(np.float64))
        for a, b in zip(one[1:], other[1:], strict=True)
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_rule_of_the_catalogue(shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(len(shape))
    values = (draw.standard_t(3, shape) * 0.3).astype(np.float32)
    values.flat[0] = np.round(values.flat[0])
    done = 0
    for rule in PLAIN:
        for axis in (None, *range(len(shape))):
            mine, theirs = both(values, whole(shape, axis), rule)
            done += mine is not None
            assert mine is None or same(mine, theirs), (rule.name, axis)
    assert done >= 10 * (len(shape) + 1)


@pytest.mark.parametrize("block", [(2, 4), (1, 32), (8, 1), (4, 96)], ids=str)
def test_blocks_that_cut_axes_evenly(block: tuple[int, int]) -> None:
    values = np.random.default_rng(3).standard_normal((8, 96)).astype(np.float32)
    for rule in (rules.ONNXRUNTIME_WEIGHT_UINT8, rules.ONNXRUNTIME_WEIGHT_INT8):
        mine, theirs = both(values, list(block), rule)
        assert mine is not None
        assert same(mine, theirs)


def test_blocks_that_leave_a_rest_go_the_general_way() -> None:
    values = np.ones((8, 96), np.float32)
    rule = rules.ONNXRUNTIME_WEIGHT_INT8
    assert fold_even_blocks(values, Layout.of(values, (1, 36)), rule) is None


@given(st.data())
@examples(150)
def test_any_bits_by_any_rule(data: st.DataObject) -> None:
    rule = data.draw(st.sampled_from(PLAIN))
    length = data.draw(st.sampled_from([2, 7, 16]))
    kind = data.draw(st.sampled_from([draws.bit_patterns, draws.half_steps, draws.ordinary]))
    values = data.draw(kind(FLOAT32, 3 * length)).reshape(3, length)
    halves = [1, 2 - length % 2]
    block = data.draw(st.sampled_from([[3, length], [1, length], [3, 1], halves]))
    mine, theirs = both(np.ascontiguousarray(values), block, rule)
    assert mine is None or same(mine, theirs)


@examples(200)
@given(st.data())
def test_any_bits_by_any_rule_that_looks_plain(data: st.DataObject) -> None:
    rule = data.draw(draws.rules(draws.affine_rules_of_numpy()))
    length = data.draw(st.sampled_from([2, 7, 16]))
    kind = data.draw(st.sampled_from([draws.bit_patterns, draws.half_steps, draws.ordinary]))
    values = data.draw(kind(FLOAT32, 3 * length)).reshape(3, length)
    block = data.draw(st.sampled_from([[3, length], [1, length], [3, 1]]))
    mine, theirs = both(np.ascontiguousarray(values), block, rule)
    assert mine is None or same(mine, theirs)


@pytest.mark.parametrize("infinity", Infinity)
def test_quotients_beyond_every_code(infinity: Infinity) -> None:
    # Scales from a least span of 1e-5, however large the number: quotients leave int32, the last
    # one float32 too, of which numpy would warn. A cast to int32 makes the lowest code of them.
    rule = rules.CATALOGUE["MODELOPT_ONNX_UINT4"]
    rule = replace(rule, affine=replace(rule.affine, infinity=infinity))
    values = np.array([[3.0, 4e3, 6e32]], np.float32)
    mine, theirs = both(values, [1, 1], rule)
    if infinity == Infinity.CAST_TO_INT32:
        assert mine is None
    else:
        assert same(mine, theirs)
        assert mine[0].tolist() == [[15, 15, 15]]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_goes_the_general_way(bad: float) -> None:
    values = np.array([[1, bad], [2, 3]], np.float32)
    rule = rules.CATALOGUE["ONNXRUNTIME_WEIGHT_INT8"]
    assert fold_even_blocks(values, Layout.of(values, None), rule) is None


def test_a_budget_ends() -> None:
    budget = Budget(10)
    taken = [budget.take(4) for _ in range(3)]
    assert taken == ([False] * 3 if is_started() else [True, True, False])
