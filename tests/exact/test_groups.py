"""Whole rules on lists, rows and blocks: what is refused, what is kept, what comes back."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foldmark import rules
from foldmark.errors import InvalidScheme, NonFiniteValue
from foldmark.exact import affine, catalog, group
from foldmark.exact.difference import differing_fields, first_parting
from foldmark.exact.rule import (
    AffineRule,
    Extent,
    Rule,
    ScaleRule,
    Scaling,
    ZeroForm,
    ZeroOrder,
    ZeroPointRule,
)
from foldmark.exact.tools.entry import Procedure
from foldmark.exact.worked import shortest

WEIGHT = rules.ONNXRUNTIME_WEIGHT_INT8
ALL_RULES = [entry for entry in rules.CATALOGUE.values() if isinstance(entry, Rule)]


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.name)
def test_nothing_is_quantized_to_nothing(rule: Rule) -> None:
    assert group.quantize_group([], rule).codes == ()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_value_without_a_code_is_named(bad: float) -> None:
    with pytest.raises(NonFiniteValue, match="index 2"):
        group.quantize_group([1.0, 2.0, bad, bad], WEIGHT)
    with pytest.raises(NonFiniteValue, match="index 2"):
        affine.quantize([1.0, 2.0, bad], 0.5, 0, WEIGHT.affine)


def test_rows_and_blocks_are_groups_of_their_own() -> None:
    first, second = [1.0, -2.0, 3.0], [100.0, 0.5, -7.0]
    rows = group.quantize_rows([first, second], WEIGHT)
    assert rows == [group.quantize_group(first, WEIGHT), group.quantize_group(second, WEIGHT)]
    assert group.quantize_blocks([*first, *second, 5.0], 3, WEIGHT)[:2] == rows
    assert len(group.quantize_blocks([*first, 5.0], 3, WEIGHT)[1].codes) == 1


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=12))
def test_no_value_moves_by_more_than_half_a_step(values: list[float]) -> None:
    folded = group.quantize_group(values, WEIGHT)
    restored = group.dequantize_group(folded, WEIGHT)
    half = folded.scale / 2 * (1 + 2**-15)
    assert all(abs(x - y) <= half for x, y in zip(values, restored, strict=True))


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=12))
def test_fake_quantization_is_there_and_back(values: list[float]) -> None:
    folded = group.quantize_group(values, WEIGHT)
    given_scale = (folded.scale, folded.zero_point, WEIGHT.affine)
    assert affine.fake_quantize(values, *given_scale) == affine.dequantize(
        folded.codes, *given_scale
    )


def test_a_row_maximum_that_is_stored_spans_127_codes() -> None:
    folded = group.quantize_group([127.0, 64.0], rules.BITSANDBYTES_INT8)
    assert (folded.codes, folded.scale) == ((127, 64), 127.0)
    assert group.dequantize_group(folded, rules.BITSANDBYTES_INT8) == [127.0, 64.0]


def test_a_real_zero_point_is_added_back() -> None:
    rule = rules.TORCHAO_TINYGEMM_INT4
    folded = group.quantize_group([1.0, 2.5, 4.0], rule)
    assert group.dequantize_group(folded, rule) == pytest.approx([1.0, 2.6, 4.0], abs=1e-6)


def test_a_ratio_needs_the_extent() -> None:
    ratio = rules.TFLITE_HYBRID_INT8_SYMMETRIC.affine
    with pytest.raises(InvalidScheme, match="Quantize the whole group with quantize_group"):
        affine.quantize([1.0], 0.5, 0, ratio)


def test_rules_that_contradict_themselves_are_refused() -> None:
    scale = ScaleRule(extent=Extent.SPAN, denominator=255)
    labels = {"name": "r", "source": "", "versions": ""}
    fused = AffineRule(codes=catalog.UINT8, order=ZeroOrder.FUSED)
    with pytest.raises(InvalidScheme, match="needs a multiplier"):
        Rule(scale=scale, zero_point=ZeroPointRule(), affine=fused, **labels)
    plain = AffineRule(codes=catalog.UINT8, scaling=Scaling.RECIPROCAL)
    with pytest.raises(InvalidScheme, match="got LOW with AFTER_ROUNDING"):
        Rule(scale=scale, zero_point=ZeroPointRule(form=ZeroForm.LOW), affine=plain, **labels)
    flat = ScaleRule(extent=Extent.SPAN, denominator=0)
    with pytest.raises(InvalidScheme, match="must be positive"):
        Rule(scale=flat, zero_point=ZeroPointRule(), affine=plain, **labels)


def test_every_entry_says_where_it_was_read_and_for_which_versions() -> None:
    for name, entry in rules.CATALOGUE.items():
        assert getattr(rules, name) is entry
        assert entry.name == name == name.upper()
        assert entry.source
        assert entry.versions
        assert not isinstance(entry, Procedure) or entry.description


def test_a_rule_parts_from_itself_nowhere() -> None:
    assert differing_fields(WEIGHT, WEIGHT) == []
    assert first_parting(rules.GGML_Q4_0, rules.GGML_Q5_0) is not None


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@example(95031152.0)
@example(1e8)
def test_the_shortest_decimal_means_the_number(number: float) -> None:
    text = shortest(number)
    assert catalog.FLOAT32.round(float(text)) == number
    assert len(text) <= len(repr(number))
