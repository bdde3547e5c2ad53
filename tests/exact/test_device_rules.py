"""What tools do on other devices, worked by hand where no such device is at hand."""

import math

import pytest

from foldmark import rules
from foldmark.errors import NonFiniteValue
from foldmark.exact.affine import quantize
from foldmark.exact.catalog import BITSANDBYTES_FP4, FLOAT32
from foldmark.exact.group import quantize_group
from foldmark.exact.tools.codebooks import quantize_fp4_on_cuda, quantize_with_codebook
from foldmark.exact.tools.searches import quantize_mlx, quantize_mlx_metal


def test_metal_rounds_halves_away_from_zero() -> None:
    # s = 16 / 15 becomes 15 / 14 with the edge at code 0; 15 / 28 of it is half a step.
    values = [15.0, 15.0 - 15 / 28, -1.0, 15.0 - 3 * 15 / 28]
    on_cpu, on_metal = quantize_mlx(values, FLOAT32), quantize_mlx_metal(values, FLOAT32)
    assert on_cpu.scale == on_metal.scale
    assert on_cpu.codes != on_metal.codes
    assert on_metal.codes[1] == 1
    assert on_cpu.codes[1] == 0


def test_metal_takes_negative_groups_up_to_zero() -> None:
    on_metal = quantize_mlx_metal([-15.0, -14.0, -8.0], FLOAT32)
    assert (on_metal.scale, on_metal.zero_point, on_metal.codes) == (1.0, -15.0, (0, 1, 7))
    assert quantize_mlx([-15.0, -14.0, -8.0], FLOAT32).codes == (0, 2, 15)


def test_cuda_rounds_fp4_by_magnitude() -> None:
    border = FLOAT32.round(0.0859375)  # between 0.0052 and 0.1667
    above = math.nextafter(border, 1.0)
    numbers = [1.0, border, -border, FLOAT32.round(above + 2**-27), -0.001, 0.0]
    on_cuda = quantize_fp4_on_cuda(numbers, FLOAT32)
    assert on_cuda.codes == (3, 1, 9, 6, 8, 0)
    assert quantize_with_codebook(numbers, FLOAT32, BITSANDBYTES_FP4).codes[4] in (0, 8)
    assert quantize_fp4_on_cuda([0.0, 0.0], FLOAT32).codes == (0, 0)
    with pytest.raises(NonFiniteValue, match="index 1"):
        quantize_fp4_on_cuda([1.0, math.nan], FLOAT32)


def test_fp4_gives_every_number_of_its_book_back_on_cuda() -> None:
    book = [BITSANDBYTES_FP4.decode(code) for code in range(16)]
    assert quantize_fp4_on_cuda(book, FLOAT32).codes == (*range(8), 0, *range(9, 16))


def test_arm_adds_the_zero_point_after_rounding() -> None:
    given = ([0.5, 1.5, -0.5], 1.0, 1)
    assert quantize(*given, rules.TORCH_ARM_QUANTIZE_INT8.affine) == [1, 3, 1]
    assert quantize(*given, rules.TORCH_2_13_PER_TENSOR_INT8.affine) == [2, 2, 0]


def test_a_scale_kept_in_float16_leaves_the_codes_alone() -> None:
    values = [0.1 * n - 0.7 for n in range(20)]
    kept = quantize_group(values, rules.NNCF_OPENVINO_UINT8_ASYMMETRIC)
    plain = quantize_group(values, rules.NNCF_UINT8_ASYMMETRIC)
    assert (kept.codes, kept.zero_point) == (plain.codes, plain.zero_point)
    assert kept.scale != plain.scale
