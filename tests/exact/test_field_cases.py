"""Faults that users of quantizers met: the right value of each, by the oracle and its fast twin."""

import math
from fractions import Fraction

import numpy as np
import pytest

from foldmark import rules
from foldmark.errors import NonFiniteValue
from foldmark.exact import catalog, dot, hazards
from foldmark.exact.affine import dequantize, quantize
from foldmark.exact.arithmetic import divide, multiply
from foldmark.exact.group import quantize_group
from foldmark.exact.requantize import requantize_float
from foldmark.exact.rounding import Rounding, round_to_int
from foldmark.exact.rule import AffineRule, Rule, ScaleRule, ZeroPointRule
from foldmark.kernels import arithmetic as fast_arithmetic
from foldmark.kernels import dot as fast_dot
from foldmark.kernels import hazards as fast_hazards
from foldmark.kernels.affine import dequantize as fast_dequantize
from foldmark.kernels.affine import quantize as fast_quantize
from foldmark.kernels.fold import quantize_array
from foldmark.kernels.formats import round_to_format as fast_round
from foldmark.kernels.group import quantize_group as fast_quantize_group
from foldmark.kernels.requantize import requantize_float as fast_requantize_float

ONNX = rules.ONNXRUNTIME_QUANTIZELINEAR_INT8.affine
DYNAMIC = rules.ONNXRUNTIME_DYNAMIC_UINT8


def both(values, scale: float, zero: int, rule: AffineRule, data=catalog.FLOAT32) -> list[int]:
    """Return the codes by the oracle, after the fast twin gave the same."""
    dtype = np.float16 if data == catalog.FLOAT16 else np.float32
    exact = quantize([float(dtype(v)) for v in values], float(dtype(scale)), zero, rule, data)
    array = np.array(values, dtype=dtype)
    assert fast_quantize(array, dtype(scale), np.array(zero), rule).tolist() == exact
    return exact


def both_groups(values, rule: Rule):
    single = [catalog.FLOAT32.round(v) for v in values]
    exact = quantize_group(single, rule)
    fast = fast_quantize_group(np.array(single, np.float32), rule)
    assert fast.codes.tolist() == list(exact.codes)
    assert (fast.scale.item(), fast.zero_point.item()) == (exact.scale, exact.zero_point)
    return exact


def test_ties_go_to_even_and_a_tie_in_the_zero_point_shifts_all() -> None:
    halves = [0.25, 0.75, 1.25, 1.75, -0.25, -0.75, -1.25, -1.75]
    assert both(halves, 0.5, 0, ONNX) == [0, 2, 2, 4, 0, -2, -2, -4]
    away = rules.TFLITE_QUANTIZE_REFERENCE_INT8.affine
    assert both(halves, 0.5, 0, away) == [1, 2, 3, 4, -1, -2, -3, -4]
    wide = both_groups([-253.0, 257.0], DYNAMIC)
    assert (wide.zero_point, wide.codes) == (126, (0, 254))
    assert both_groups([-127.0, 128.0, 0.5], DYNAMIC).codes == (0, 255, 127)
    even = both_groups([-2.5, 2.5], DYNAMIC)
    assert (even.scale, even.zero_point) == (divide(5.0, 255.0, catalog.FLOAT32), 127)


def test_half_precision_input_is_rounded_and_not_cut_off() -> None:
    values = [0.05001831, -0.05001831, 2.11, 2.6, 5.5, 80.9]
    assert both(values, 0.09997559, 0, ONNX, catalog.FLOAT16) == [1, -1, 21, 26, 55, 127]
    wholes = [2.11, 2.5, 2.6, 5.3, 5.5, 5.9, 61.3, 62.5, 80.9]
    assert both(wholes, 1.0, 0, ONNX, catalog.FLOAT16) == [2, 2, 3, 5, 6, 6, 61, 62, 81]
    cut = rules.ONNXRUNTIME_1_29_QUANTIZELINEAR_INT8_FLOAT16.affine
    assert both(wholes, 1.0, 0, cut, catalog.FLOAT16) == [2, 2, 2, 5, 5, 5, 61, 62, 80]


def test_huge_values_saturate_where_the_reference_wraps() -> None:
    huge = [3e9, -3e9, 1e38, math.inf, -math.inf, math.nan]
    assert both(huge, 1.0, 0, ONNX) == [127, -128, 127, 127, -128, -128]
    reference = rules.ONNX_REFERENCE_QUANTIZELINEAR_INT8.affine
    assert both(huge, 1.0, 0, reference) == [-128] * 6
    by_100 = 100 * 100 * 100
    for total, scale, codes, right in (
        (by_100, 5.0, catalog.UINT8, 255),
        (-by_100, 2.0, catalog.INT8, -128),
    ):
        assert requantize_float(total, scale, 0, codes) == right
        assert fast_requantize_float(np.array([total]), scale, 0, codes).tolist() == [right]


def test_a_long_sum_of_products_wraps_and_float32_rounds_it() -> None:
    a, b = [255] * 70_000, [127] * 70_000
    arrays = np.array(a, np.uint8), np.array(b, np.int8)
    for exact, fast, right in (
        (dot.integer_dot(a, b), fast_dot.integer_dot(*arrays), 2_266_950_000),
        (
            dot.integer_dot(a, b, accumulator=dot.INT32_WRAPPING),
            fast_dot.integer_dot(*arrays, accumulator=dot.INT32_WRAPPING),
            -2_028_017_296,
        ),
        (
            dot.saturating_pairs_dot(a, b),
            fast_dot.saturating_pairs_dot(*arrays),
            1_146_845_000,
        ),
    ):
        assert exact == fast == right
    longest = dot.longest_safe_dot(catalog.UINT8, catalog.INT8)
    assert longest * 255 * 128 <= 2**31 - 1 < (longest + 1) * 255 * 128
    squares = np.full(2049, 127, np.int8)
    assert dot.integer_dot([127] * 2049, [127] * 2049) == 33_048_321
    assert fast_dot.integer_dot(squares, squares) == 33_048_321
    assert catalog.FLOAT32.round(33_048_321.0) == 33_048_320


def test_a_zero_channel_has_codes_zero_and_a_finite_scale() -> None:
    zeros = both_groups([0.0] * 9, rules.ONNXRUNTIME_WEIGHT_INT8)
    assert (zeros.scale, set(zeros.codes)) == (1.0, {0})
    for entry in rules.CATALOGUE.values():
        if entry == rules.GEMMLOWP_EXAMPLE_UINT8:
            with pytest.raises(NonFiniteValue, match="not a number has no code"):
                quantize_group([0.0] * 4, entry)  # an example without a guard: 0 / 0
        elif isinstance(entry, Rule):
            group = quantize_group([0.0] * 4, entry)
            assert math.isfinite(group.scale)
            assert len(set(group.codes)) == 1
            fast = fast_quantize_group(np.zeros(4, np.float32), entry)
            assert fast.codes.tolist() == list(group.codes)
            assert float(fast.scale.item()) == group.scale


@pytest.mark.filterwarnings("error")
def test_one_pruned_channel_among_others() -> None:
    weight = np.random.default_rng(0).standard_normal((4, 3, 1, 1)).astype(np.float32)
    weight[1] = 0
    found = quantize_array(weight, (1, 3, 1, 1), rules.ONNXRUNTIME_WEIGHT_INT8)
    assert not found.codes[1].any()
    assert found.scale.reshape(-1)[1] == 1.0
    assert (np.abs(found.codes[[0, 2, 3]]).max((1, 2, 3)) == 127).all()
    tile = np.zeros((128, 128), np.float32)
    tile[77, 3] = -2.5
    alone = quantize_array(tile, (128, 128), rules.ONNXRUNTIME_WEIGHT_INT8)
    assert (alone.codes != 0).sum() == 1
    assert alone.codes[77, 3] == -127


def plain_int4(stored) -> Rule:
    """Return a rule with the largest magnitude at 7 and no guard of any kind."""
    base = rules.AWQ_INT4_SYMMETRIC
    assert isinstance(base, Rule)
    return Rule(
        name="int4 without a guard",
        scale=ScaleRule(extent=base.scale.extent, denominator=Fraction(7), stored=stored),
        zero_point=ZeroPointRule(lowest=-8, highest=7),
        affine=AffineRule(codes=catalog.INT4),
        source="",
        versions="",
    )


def test_scales_that_vanish_in_float16() -> None:
    rule = plain_int4(catalog.FLOAT16)
    small = [1e-6, -5e-7]
    single = [catalog.FLOAT32.round(v) for v in small]
    assert quantize_group(single, rule).scale == pytest.approx(1.192e-7, rel=1e-3)
    assert fast_quantize_group(np.array(small, np.float32), rule).scale.item() == pytest.approx(
        1.192e-7, rel=1e-3
    )
    for rounded in (catalog.FLOAT16.round, lambda x: fast_round(np.array([x]), catalog.FLOAT16)[0]):
        assert rounded(1e-7 / 7) == 0.0
        assert rounded(1e-5 / 7) == pytest.approx(1.4305e-6, rel=1e-4)
    # The first is infinitely many steps, the second NaN.
    with pytest.raises(NonFiniteValue, match="index 1"):
        quantize_group([1e-7, 0.0], rule)
    with pytest.raises(NonFiniteValue, match="index 1"):
        fast_quantize_group(np.array([1e-7, 0.0], np.float32), rule)


def test_reciprocals_and_products_that_overflow_or_vanish() -> None:
    single, half = catalog.FLOAT32, catalog.FLOAT16
    tiny, small = single.round(1e-38), half.round(1e-4)
    assert divide(63.0, tiny, single) == fast_arithmetic.divide(63.0, tiny, single) == math.inf
    assert multiply(small, small, half) == fast_arithmetic.multiply(small, small, half) == 0.0


def test_the_runtime_accepts_scales_that_a_verifier_must_refuse() -> None:
    values = [1e-45, 1.0, -1.0, 1e-44]
    assert both(values, 1e-45, 3, ONNX) == [4, 127, -128, 10]
    assert both([0.0, 1.0, -1.0], 0.0, 0, ONNX) == [-128, 127, -128]
    assert math.isnan(dequantize([0], math.inf, 0, ONNX)[0])
    infinite = np.array(np.inf, np.float32)
    assert np.isnan(fast_dequantize(np.zeros(1, np.int8), infinite, np.array(0), ONNX)).all()
    assert both_groups([1e-40, -1e-40], rules.ONNXRUNTIME_WEIGHT_INT8).scale == 1.0


def test_e4m3_overflows_to_nan_unless_the_scale_is_calibrated() -> None:
    keys = [900.0, -921.0, 3.5, 0.02, 448.0]
    e4m3 = catalog.E4M3FN
    cast = [448.0, 463.0, 464.0, 465.0, 480.0, 1000.0, -1000.0]
    for found in ([e4m3.round(x) for x in cast], fast_round(np.array(cast), e4m3).tolist()):
        assert found[:3] == [448.0] * 3
        assert all(math.isnan(x) for x in found[3:])
    uncalibrated = [e4m3.round(k) for k in keys]
    assert [math.isnan(k) for k in uncalibrated] == [True, True, False, False, False]
    scale = catalog.FLOAT32.round(921 / 448)
    calibrated = [e4m3.round(k / scale) * scale for k in keys]
    assert calibrated == pytest.approx([921, -921, 3.598, 0.0201, 460.5], rel=2e-3)
    single = np.array(keys, np.float32) / np.float32(scale)
    assert [float(k) * scale for k in fast_round(single, e4m3)] == calibrated


def test_zero_is_made_part_of_the_range() -> None:
    positive = np.linspace(1, 3, 16, dtype=np.float32).tolist()
    forced = both_groups(positive, rules.ONNXRUNTIME_WEIGHT_INT8_ASYMMETRIC)
    assert forced.zero_point == -128
    assert forced.scale == catalog.FLOAT32.round(3 / 255)
    restored = dequantize(
        forced.codes, forced.scale, -128, rules.ONNXRUNTIME_WEIGHT_INT8_ASYMMETRIC.affine
    )
    assert max(abs(a - b) for a, b in zip(restored, positive, strict=True)) <= forced.scale / 2
    # Without zero its code would be -255.5: held at -128, all that is above 2 is cut off.
    naive = both(positive, 2 / 255, -128, ONNX)
    cut = dequantize(naive, 2 / 255, -128, ONNX)
    assert max(abs(a - b) for a, b in zip(cut, positive, strict=True)) == pytest.approx(1.0)
    saturated = both_groups([1.0, 2.0, 3.0, 4.0], rules.AWQ_UINT4_ASYMMETRIC)
    assert saturated.codes == (5, 10, 15, 15)


def test_a_block_sum_overflows_float16() -> None:
    group = both_groups([3000.0] * 32, rules.GGML_Q8_0)
    assert group.scale == 23.625
    assert hazards.block_sum(group.codes, group.scale) == math.inf
    assert fast_hazards.block_sum(np.array(group.codes), group.scale) == math.inf
    below = both_groups([2046.0] * 32, rules.GGML_Q8_0)
    assert math.isfinite(hazards.block_sum(below.codes, below.scale))
    beyond = both_groups([2048.0] * 32, rules.GGML_Q8_0)
    assert hazards.block_sum(beyond.codes, beyond.scale) == math.inf
    assert math.isnan(multiply(hazards.block_sum(group.codes, group.scale), 0.0, catalog.FLOAT16))


def test_an_exact_tie_is_a_tie_only_in_exact_arithmetic() -> None:
    exact = Fraction(5, 2) / Fraction(5, 255)
    assert round_to_int(exact, Rounding.HALF_EVEN) == 128
    rounded = divide(2.5, divide(5.0, 255.0, catalog.FLOAT32), catalog.FLOAT32)
    assert rounded < 127.5
