"""What numpy does in a fresh process is what the compiled loops do, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.parity import strategies as draws

from foldmark import rules
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.rule import Rule
from foldmark.kernels import fold
from foldmark.kernels.blocks import Layout
from foldmark.kernels.cold import Budget, fold_whole_axes
from foldmark.kernels.compiled import is_started

SHAPES = [(7,), (5, 9), (16, 3, 3), (1, 8), (8, 1), (300, 400)]
PLAIN = [rule for rule in rules.CATALOGUE.values() if isinstance(rule, Rule)]


def both(values: np.ndarray, axis: int | None, rule: Rule) -> tuple:
    """Return codes, scale and zero point by numpy and by the loops; None for numpy's refusal."""
    block = [1 if i == axis else max(n, 1) for i, n in enumerate(values.shape)]
    found = fold_whole_axes(values, Layout.of(values, block), rule)
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
            mine, theirs = both(values, axis, rule)
            done += mine is not None
            assert mine is None or same(mine, theirs), (rule.name, axis)
    assert done >= 10 * (len(shape) + 1)


@given(st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_bits_by_any_rule(data: st.DataObject) -> None:
    rule = data.draw(st.sampled_from(PLAIN))
    length = data.draw(st.sampled_from([2, 7, 16]))
    kind = data.draw(st.sampled_from([draws.bit_patterns, draws.half_steps, draws.ordinary]))
    values = data.draw(kind(FLOAT32, 3 * length)).reshape(3, length)
    mine, theirs = both(
        np.ascontiguousarray(values), data.draw(st.sampled_from([None, 0, 1])), rule
    )
    assert mine is None or same(mine, theirs)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_goes_the_general_way(bad: float) -> None:
    values = np.array([[1, bad], [2, 3]], np.float32)
    rule = rules.CATALOGUE["ONNXRUNTIME_WEIGHT_INT8"]
    assert fold_whole_axes(values, Layout.of(values, None), rule) is None


def test_a_budget_ends() -> None:
    budget = Budget(10)
    taken = [budget.take(4) for _ in range(3)]
    assert taken == ([False] * 3 if is_started() else [True, True, False])
