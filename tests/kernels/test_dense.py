"""Blocks that follow one another, by long loops over whole lanes: the oracle's answer to the bit.

Killed here: a loop that holds no code in range, one that trusts factors of a step too small for
them, one that leaves out, doubles or oversteps the numbers that fill no lane, and one that reads
an order of 4-bit codes as the other.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.parity import strategies as draws
from tests.properties import examples

from foldmark.errors import NonFiniteValue
from foldmark.exact import affine as exact_affine
from foldmark.exact import group as exact
from foldmark.exact import packing as exact_packing
from foldmark.exact.catalog import FLOAT32, INT4, INT8, UINT4, UINT8
from foldmark.exact.packing import HIGH_NIBBLE_FIRST, LOW_NIBBLE_FIRST
from foldmark.exact.rule import Rule, Scaling, ZeroForm
from foldmark.kernels import dense
from foldmark.kernels.blocks import RUN, Layout
from foldmark.kernels.dense import dense_blocks
from foldmark.kernels.fold import quantize_array
from foldmark.kernels.packed import dequantize_packed, quantize_packed
from foldmark.kernels.scratch import new_memory
from foldmark.tensors.scheme import asymmetric, symmetric

single = np.float32
RULES = {
    "int8": symmetric(INT8).rule,
    "uint8": asymmetric(UINT8).rule,
    "int4": symmetric(INT4).rule,
    "uint4": asymmetric(UINT4).rule,
}


def oracle(values: np.ndarray, segment: int, rule: Rule) -> tuple[list, list, list]:
    """Return codes, scales and zero points of flat values by the oracle."""
    groups = exact.quantize_blocks([float(x) for x in values], segment, rule)
    codes = [code for group in groups for code in group.codes]
    return codes, [group.scale for group in groups], [group.zero_point for group in groups]


def folded(values: np.ndarray, segment: int, rule: Rule) -> tuple[list, list, list]:
    """Return the same by the loops, with room behind the codes that nothing may touch."""
    blocks = dense_blocks(values, Layout.of(values, (segment,)), rule)
    room = np.full(values.size + 64, 99, np.int16)
    assert blocks is not None
    assert blocks.fold(lambda place: room[: values.size][place])
    assert (room[values.size :] == 99).all()
    scale, zero_point = blocks.parameters()
    return room[: values.size].tolist(), scale.tolist(), zero_point.tolist()


def narrower(rule: Rule, denominator: Fraction) -> Rule:
    return replace(rule, scale=replace(rule.scale, denominator=denominator))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("segment", [2, 31, 32, 33, 63, 64, 100, 128])
@pytest.mark.parametrize("extra", [0, 1])
def test_segments_around_the_lanes(rule: Rule, segment: int, extra: int) -> None:
    values = np.random.default_rng(segment).standard_normal(3 * segment + extra).astype(single)
    values[5 % segment] = single(-7.5)  # a scale that makes ties of halves
    values[:segment] = np.rint(values[:segment] * 2) / 2
    assert folded(values, segment, rule) == oracle(values, segment, rule)


@examples(300)
@given(st.data())
def test_any_bits_by_any_plain_rule(data: st.DataObject) -> None:
    rule = RULES[data.draw(st.sampled_from(sorted(RULES)))]
    if rule.zero_point.form == ZeroForm.FIXED:
        steps = data.draw(st.sampled_from([Fraction(127), Fraction(255, 2), Fraction(8)]))
        scaling = data.draw(st.sampled_from([Scaling.DIVIDE, Scaling.RECIPROCAL]))
        rule = replace(narrower(rule, steps), affine=replace(rule.affine, scaling=scaling))
    kind = data.draw(st.sampled_from([draws.bit_patterns, draws.half_steps, draws.ordinary]))
    values = data.draw(kind(FLOAT32, data.draw(st.sampled_from([2, 31, 32, 33, 65, 96]))))
    segment = data.draw(st.sampled_from([2, 3, 32, 40, 96]))
    values = np.ascontiguousarray(values)
    if np.isfinite(values).all():
        assert folded(values, segment, rule) == oracle(values, segment, rule)
    else:
        blocks = dense_blocks(values, Layout.of(values, (segment,)), rule)
        assert blocks is not None
        assert not blocks.fold(lambda place: np.empty(values.size, np.int8)[place])


@pytest.mark.parametrize("segment", [32, 33, 96, 128])
@pytest.mark.parametrize("begin", [0, 1, 16, 32])
def test_codes_past_the_cache(monkeypatch: pytest.MonkeyPatch, segment: int, begin: int) -> None:
    # Wherever codes begin: such stores fault on a place that is no multiple of their size.
    monkeypatch.setattr(dense, "_CACHE", 0)
    values = np.random.default_rng(begin).standard_normal(5 * segment).astype(single)
    blocks = dense_blocks(values, Layout.of(values, (segment,)), RULES["int8"])
    room = new_memory(values.size + 64, np.int8)
    room[:] = 99
    target = room[begin : begin + values.size]
    assert blocks is not None
    assert blocks.fold(lambda place: target[place])
    assert target.tolist() == oracle(values, segment, RULES["int8"])[0]
    assert (room[:begin] == 99).all()
    assert (room[begin + values.size :] == 99).all()


@pytest.mark.parametrize("scaling", [Scaling.DIVIDE, Scaling.RECIPROCAL])
@pytest.mark.parametrize("denominator", [Fraction(255, 2), Fraction(257, 2), Fraction(140)])
def test_codes_beyond_the_ends_are_held(scaling: Scaling, denominator: Fraction) -> None:
    rule = narrower(RULES["int8"], denominator)
    rule = replace(rule, affine=replace(rule.affine, scaling=scaling))
    values = np.linspace(-3, 3, 160, dtype=single)
    found = folded(values, 80, rule)
    assert found == oracle(values, 80, rule)
    assert (min(found[0]), max(found[0])) == (-128, 127)


@pytest.mark.parametrize("size", [1.5 * 2.0**-126, 2.0**-125, 3e38])
def test_steps_whose_factors_are_no_use(size: float) -> None:
    values = (np.linspace(-127, 127, 509) * min(size, 3e38 / 127)).astype(single)
    found = folded(values, 509, RULES["int8"])
    assert found == oracle(values, 509, RULES["int8"])
    assert len(set(found[0])) > 250


def test_a_step_that_is_no_normal_number_is_divided_by() -> None:
    rule = RULES["int8"]
    tiny = replace(rule.scale.tiny[0], below=Fraction(1, 1 << 149))
    rule = replace(rule, scale=replace(rule.scale, tiny=(tiny,)))
    values = (np.linspace(-127, 127, 160) * 2.0**-140).astype(single)
    found = folded(values, 80, rule)
    assert found == oracle(values, 80, rule)
    assert len(set(found[0])) > 100


@pytest.mark.parametrize("layout", [LOW_NIBBLE_FIRST, HIGH_NIBBLE_FIRST], ids=lambda x: x.name)
@pytest.mark.parametrize(("name", "offset"), [("int4", 0), ("int4", 8), ("uint4", 0)])
@pytest.mark.parametrize("segment", [2, 30, 32, 34, 98])
def test_two_codes_a_byte(layout: object, name: str, offset: int, segment: int) -> None:
    rule = RULES[name]
    values = np.random.default_rng(segment).standard_normal(4 * segment).astype(single)
    codes, scales, zero_points = oracle(values, segment, rule)
    found = quantize_packed(values, (segment,), rule, layout, offset)
    assert list(found.packed) == list(exact_packing.pack(codes, layout, offset))
    assert (found.scale.tolist(), found.zero_point.tolist()) == (scales, zero_points)
    back = dequantize_packed(found, values.shape, (segment,), rule, layout, offset)
    expected = [
        number
        for i, (scale, zero) in enumerate(zip(scales, zero_points, strict=True))
        for number in exact_affine.dequantize(
            codes[i * segment : (i + 1) * segment], scale, zero, rule.affine
        )
    ]
    assert back.tolist() == expected


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("shape", [(RUN * 2 + 5,), (2, RUN + 33)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_few_blocks_too_large_for_one_thread(name: str, shape: tuple, dtype: type) -> None:
    rule, block = RULES[name], (1,) * (len(shape) - 1) + shape[-1:]
    values = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    values.reshape(-1)[-1] = 6  # the end that sets the scale stands last
    found = quantize_array(values, block, rule)
    for row, codes, scale, zero in zip(
        values.reshape(-1, shape[-1]),
        found.codes.reshape(-1, shape[-1]),
        found.scale.reshape(-1),
        found.zero_point.reshape(-1),
        strict=True,
    ):
        ends = [float(row.min()), float(row.max())]
        group = exact.quantize_group(ends, rule)
        assert (float(scale), int(zero)) == (group.scale, group.zero_point)
        places = np.unique(np.concatenate([np.arange(0, row.size, 997), np.arange(row.size)[-70:]]))
        asked = [float(x) for x in row[places]]
        assert codes[places].tolist() == exact_affine.quantize(
            asked, group.scale, group.zero_point, rule.affine
        )


@pytest.mark.parametrize("place", [0, RUN + 7, 2 * RUN + 3])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named_in_large_blocks_too(place: int, bad: float) -> None:
    values = np.ones(2 * RUN + 4, single)
    values[place] = bad
    with pytest.raises(NonFiniteValue, match=f"index {place}:"):
        quantize_array(values, values.shape, RULES["int8"])
