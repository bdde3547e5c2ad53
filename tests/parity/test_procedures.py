"""The fast twins of the searches give what the oracle's give, row by row."""

import numpy as np
import pytest

from foldmark.errors import DataMismatch, NonFiniteValue
from foldmark.exact import requantize as exact_requantize
from foldmark.exact.catalog import BITSANDBYTES_FP4, FLOAT32, INT8, NF4
from foldmark.exact.requantize import FixedPointMultiplier, FixedPointRounding
from foldmark.exact.tools import codebooks as exact_codebooks
from foldmark.exact.tools import fake_quantize as exact_fake
from foldmark.exact.tools import half_quadratic as exact_half
from foldmark.exact.tools import histogram as exact_histogram
from foldmark.exact.tools import kquants as exact_kquants
from foldmark.exact.tools import searches as exact_searches
from foldmark.exact.tools.fake_quantize import LevelRange, RangeWidth
from foldmark.kernels import requantize as fast_requantize
from foldmark.kernels.tools import codebooks, half_quadratic, histogram, kquants, searches
from foldmark.kernels.tools import fake_quantize as fast_fake


def rows(length: int, count: int = 12) -> np.ndarray:
    """Return rows of many kinds: gaussian, half-steps, constant, one-sided, zero, tiny."""
    generator = np.random.default_rng(length)
    found = generator.standard_normal((count, length))
    found[1] = np.round(found[1] * 4) / 2
    found[2], found[3], found[4] = 0, 3, -2.5
    found[5], found[6] = np.abs(found[5]), -np.abs(found[6])
    found[7] *= 1e-20
    found[8, 0] = 100
    return found.astype(np.float32)


SEARCHES = [
    (searches.quantize_mlx, exact_searches.quantize_mlx),
    (searches.quantize_mlx_metal, exact_searches.quantize_mlx_metal),
    (codebooks.quantize_fp4_on_cuda, exact_codebooks.quantize_fp4_on_cuda),
    (searches.quantize_k_quant, exact_searches.quantize_k_quant),
    (searches.quantize_gptq_mse_symmetric, exact_searches.quantize_gptq_mse_symmetric),
    (searches.quantize_gptq_mse_asymmetric, exact_searches.quantize_gptq_mse_asymmetric),
]


@pytest.mark.parametrize("pair", SEARCHES, ids=lambda pair: pair[0].__name__)
@pytest.mark.parametrize("length", [4, 9, 32, 133])
def test_searches(pair: tuple, length: int) -> None:
    fast, exact = pair
    if "gptq" not in fast.__name__ or length < 10:
        values = rows(length, 9)
        found = fast(values)
        for row, numbers in enumerate(values.tolist()):
            group = exact(numbers, FLOAT32)
            assert found.codes[row].tolist() == list(group.codes), row
            assert float(found.scale[row]) == group.scale
            assert float(found.zero_point[row]) == group.zero_point


@pytest.mark.parametrize(
    "variant", [exact_half.ONNXRUNTIME_STEPS, exact_half.HQQ_STEPS, exact_half.HQQ_START]
)
def test_half_quadratic(variant: exact_half.HalfQuadratic) -> None:
    values = rows(8)
    found = half_quadratic.quantize_half_quadratic(values, variant)
    for row, numbers in enumerate(values.tolist()):
        group = exact_half.quantize_half_quadratic(numbers, variant)
        assert found.codes[row].tolist() == list(group.codes)
        assert (found.scale[row], found.zero_point[row]) == (group.scale, group.zero_point)


@pytest.mark.parametrize("book", [NF4, BITSANDBYTES_FP4], ids=lambda book: book.name)
def test_codebooks(book: object) -> None:
    values = rows(64)
    values[9, :16], values[9, 16:] = book.numbers, 1.0  # every number, and every border
    values[10, :15], values[10, 15:] = book.borders, -1.0
    found = codebooks.quantize_with_codebook(values, book)
    restored = codebooks.dequantize_with_codebook(found, book)
    for row, numbers in enumerate(values.tolist()):
        group = exact_codebooks.quantize_with_codebook(numbers, FLOAT32, book)
        assert found.codes[row].tolist() == list(group.codes)
        assert found.scale[row] == group.scale
        assert restored[row].tolist() == exact_codebooks.dequantize_with_codebook(group, book)
    values[3, 5] = np.nan
    with pytest.raises(NonFiniteValue, match=r"\[3, 5\]"):
        codebooks.quantize_with_codebook(values, book)


def test_k_quants() -> None:
    values = rows(256)[[0, 2, 5]]
    for fast, exact in (
        (kquants.quantize_q4_k, exact_kquants.quantize_q4_k),
        (kquants.quantize_q6_k, exact_kquants.quantize_q6_k),
    ):
        expected = b"".join(exact(numbers).to_bytes() for numbers in values.tolist())
        assert fast(values).to_bytes() == expected
        with pytest.raises(DataMismatch, match="super block"):
            fast(values[:, :255])


@pytest.mark.parametrize("row", [0, 1, 3, 5, 8])
def test_histogram(row: int) -> None:
    values = rows(300)[row]
    assert histogram.search_range(values) == exact_histogram.search_range(values.tolist())
    group = exact_histogram.quantize_by_histogram(values.tolist(), FLOAT32)
    found = histogram.quantize_by_histogram(values)
    assert found.codes.tolist() == list(group.codes)
    assert (found.scale.item(), found.zero_point.item()) == (group.scale, group.zero_point)


def test_openvino_levels() -> None:
    values = np.concatenate([np.arange(-300, 300) / 2, [np.nan, np.inf, -np.inf, 1e30]])
    values = values.astype(np.float32)
    for ends in (LevelRange(-127.0, 127.0, 255), LevelRange(-128.0, 127.0, 256)):
        expected = [exact_fake.openvino_fake_quantize(value, ends) for value in values.tolist()]
        assert fast_fake.openvino_fake_quantize(values, ends).tolist() == expected


@pytest.mark.parametrize("width", RangeWidth)
@pytest.mark.parametrize("sign", [1, -1])
def test_nncf_ranges(width: RangeWidth, sign: int) -> None:
    ends = np.sort(np.random.default_rng(0).standard_normal((20, 2)).astype(np.float32), axis=1)
    ends[0], ends[1], ends[2] = 0, (1e-5, 2e-5), (-1, 0)
    ends = np.abs(ends) if sign < 0 else ends
    lows, highs = ends.min(1), ends.max(1)
    for fast, exact in (
        (fast_fake.nncf_symmetric_ranges, exact_fake.nncf_symmetric_ranges),
        (fast_fake.nncf_asymmetric_ranges, exact_fake.nncf_asymmetric_ranges),
    ):
        found, expected = fast(lows, highs, width), exact(lows.tolist(), highs.tolist(), width)
        assert found.low.tolist() == [range_.low for range_ in expected]
        assert found.high.tolist() == [range_.high for range_ in expected]
        assert found.levels == expected[0].levels


ACCUMULATORS = np.concatenate(
    [
        np.arange(-40, 40),
        [2**31 - 1, -(2**31), 2**30, -(2**30), 65536, -65537],
        np.random.default_rng(1).integers(-(2**31), 2**31, 300),
    ]
)
MULTIPLIERS = [exact_requantize.quantize_multiplier(x) for x in (0.5, 0.3, 0.25, 1e-3, 1.7, 0.0)]


@pytest.mark.parametrize("multiplier", MULTIPLIERS, ids=str)
@pytest.mark.parametrize("rounding", FixedPointRounding)
def test_fixed_point(multiplier: FixedPointMultiplier, rounding: FixedPointRounding) -> None:
    sums = ACCUMULATORS // 8 if multiplier.shift > 0 else ACCUMULATORS
    arguments = (multiplier, 3, INT8, rounding)
    expected = [exact_requantize.requantize_fixed_point(x, *arguments) for x in sums.tolist()]
    assert fast_requantize.requantize_fixed_point(sums, *arguments).tolist() == expected
    product = exact_requantize.multiply_by_quantized_multiplier
    expected = [product(x, multiplier, rounding) for x in sums.tolist()]
    found = fast_requantize.multiply_by_quantized_multiplier(sums, multiplier, rounding)
    assert found.tolist() == expected


def test_float_requantization_and_gemmlowp_steps() -> None:
    exact, fast = exact_requantize, fast_requantize
    sums = ACCUMULATORS
    for scale in (0.5, 0.0037, 1.0, 250.0):
        single = float(np.float32(scale))
        expected = [exact.requantize_float(x, single, -5, INT8) for x in sums.tolist()]
        assert fast.requantize_float(sums, single, -5, INT8).tolist() == expected
    for exponent in (0, 1, 7, 31):
        expected = [exact.rounding_divide_by_power_of_two(x, exponent) for x in sums.tolist()]
        assert fast.rounding_divide_by_power_of_two(sums, exponent).tolist() == expected
    other = np.roll(sums, 3)
    pairs = zip(sums.tolist(), other.tolist(), strict=True)
    expected = [exact.saturating_rounding_doubling_high_multiply(a, b) for a, b in pairs]
    assert fast.saturating_rounding_doubling_high_multiply(sums, other).tolist() == expected
    lowest = np.array([-(2**31)])
    assert fast.saturating_rounding_doubling_high_multiply(lowest, lowest)[0] == 2**31 - 1
    for multiplier in MULTIPLIERS:
        expected = [exact.multiply_by_reduced_multiplier(x, multiplier) for x in sums.tolist()]
        assert fast.multiply_by_reduced_multiplier(sums, multiplier).tolist() == expected
