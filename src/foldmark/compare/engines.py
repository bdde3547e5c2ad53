"""The engines that answer vectors: the oracle, and the fast twin behind the same signatures.

An engine offers functions by name, with the oracle's arguments: lists and formats in, lists out.
What it does not offer it does not answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foldmark.exact import affine, dot, group, packing, requantize
from foldmark.exact.catalog import BITSANDBYTES_FP4, FLOAT32, NF4
from foldmark.exact.dot import EXACT as EXACT_SUM
from foldmark.exact.dot import Accumulator
from foldmark.exact.group import QuantizedGroup
from foldmark.exact.number import Codebook, FloatFormat, IntegerFormat
from foldmark.exact.packing import BitLayout
from foldmark.exact.requantize import FixedPointMultiplier
from foldmark.exact.rule import AffineRule, Rule
from foldmark.exact.tools import CATALOGUE, fake_quantize, half_quadratic, kquants
from foldmark.exact.tools.entry import Procedure
from foldmark.exact.tools.fake_quantize import LevelRange, RangeWidth
from foldmark.exact.tools.half_quadratic import HalfQuadratic
from foldmark.kernels import affine as fast_affine
from foldmark.kernels import dot as fast_dot
from foldmark.kernels import group as fast_group
from foldmark.kernels import packing as fast_packing
from foldmark.kernels import requantize as fast_requantize
from foldmark.kernels.floats import dtype_of
from foldmark.kernels.fold import QuantizedGroup as FastGroup
from foldmark.kernels.tools import codebooks as fast_codebooks
from foldmark.kernels.tools import fake_quantize as fast_fake_quantize
from foldmark.kernels.tools import half_quadratic as fast_half_quadratic
from foldmark.kernels.tools import histogram as fast_histogram
from foldmark.kernels.tools import kquants as fast_kquants
from foldmark.kernels.tools import searches as fast_searches

__all__ = ["ENGINES", "Engine"]


@dataclass(frozen=True, slots=True)
class Engine:
    """A name, as tables show it, and the functions that the engine offers."""

    name: str
    functions: Mapping[str, Callable[..., Any]]


_EXACT_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    function.__name__: function
    for function in (
        group.quantize_group,
        affine.quantize,
        dot.integer_dot,
        packing.pack,
        requantize.requantize_float,
        requantize.multiply_by_quantized_multiplier,
        requantize.rounding_divide_by_power_of_two,
        requantize.saturating_rounding_doubling_high_multiply,
        kquants.quantize_q4_k,
        kquants.quantize_q6_k,
        fake_quantize.openvino_fake_quantize,
        fake_quantize.nncf_symmetric_ranges,
        fake_quantize.nncf_asymmetric_ranges,
    )
} | {name: entry.quantize for name, entry in CATALOGUE.items() if isinstance(entry, Procedure)}


def _array(values: Sequence[float], data: FloatFormat) -> NDArray[Any]:
    return np.array(values, dtype=np.float64).astype(dtype_of(data))


def _number(parameter: NDArray[Any]) -> float:
    number = parameter.reshape(()).item()
    assert isinstance(number, int | float)
    return number


def _quantize_group(values: Sequence[float], rule: Rule, data: FloatFormat) -> QuantizedGroup:
    fast = fast_group.quantize_group(_array(values, data), rule)
    zero_point = fast.zero_point.astype(np.float64) if rule.affine.zero_is_real else fast.zero_point
    return QuantizedGroup(
        tuple(fast.codes.tolist()),
        _number(fast.scale.astype(np.float64)),
        _number(zero_point),
    )


def _quantize(
    values: Sequence[float], scale: float, zero_point: float, rule: AffineRule, data: FloatFormat
) -> list[int]:
    scales = np.array(scale, dtype=np.float32)
    codes: list[int] = fast_affine.quantize(
        _array(values, data), scales, np.array(zero_point), rule
    ).tolist()
    return codes


def _integer_dot(
    a: Sequence[int],
    b: Sequence[int],
    zero_a: int = 0,
    zero_b: int = 0,
    accumulator: Accumulator = EXACT_SUM,
) -> int:
    return int(fast_dot.integer_dot(np.array(a), np.array(b), zero_a, zero_b, accumulator))


def _pack(codes: Sequence[int], layout: BitLayout, offset: int = 0) -> bytes:
    return fast_packing.pack(np.array(codes), layout, offset).tobytes()


def _as_group(fast: FastGroup, data: FloatFormat) -> QuantizedGroup:
    """Return the one group of a fast procedure, its scale in the dtype that is stored."""
    zero_point = fast.zero_point.reshape(())
    real = zero_point.dtype.kind == "f"
    return QuantizedGroup(
        tuple(fast.codes.reshape(-1).tolist()),
        _number(fast.scale.astype(dtype_of(data)).astype(np.float64)),
        _number(zero_point.astype(np.float64) if real else zero_point),
    )


def _by_rows(function: Callable[..., FastGroup], *arguments: object) -> Callable[..., Any]:
    def quantize(values: Sequence[float], data: FloatFormat) -> QuantizedGroup:
        return _as_group(function(np.array([values], np.float32), *arguments), data)

    return quantize


def _by_histogram(values: Sequence[float], data: FloatFormat) -> QuantizedGroup:
    return _as_group(fast_histogram.quantize_by_histogram(_array(values, data)), FLOAT32)


def _ranges(
    function: Callable[..., fast_fake_quantize.LevelRanges],
) -> Callable[..., list[LevelRange]]:
    def ranges(
        lows: Sequence[float], highs: Sequence[float], width: RangeWidth
    ) -> list[LevelRange]:
        found = function(np.array(lows, np.float32), np.array(highs, np.float32), width)
        pairs = zip(found.low.tolist(), found.high.tolist(), strict=True)
        return [LevelRange(low, high, found.levels) for low, high in pairs]

    return ranges


def _fake_quantize(value: float, ends: LevelRange) -> float:
    return float(fast_fake_quantize.openvino_fake_quantize(np.array([value]), ends)[0])


def _requantize_float(accumulator: int, scale: float, zero_point: int, codes: IntegerFormat) -> int:
    sums = np.array([accumulator])
    return int(fast_requantize.requantize_float(sums, scale, zero_point, codes)[0])


def _multiplied(x: int, multiplier: FixedPointMultiplier) -> int:
    return int(fast_requantize.multiply_by_quantized_multiplier(np.array([x]), multiplier)[0])


def _divided(x: int, exponent: int) -> int:
    return int(fast_requantize.rounding_divide_by_power_of_two(np.array([x]), exponent)[0])


def _high_multiplied(a: int, b: int) -> int:
    product = fast_requantize.saturating_rounding_doubling_high_multiply
    return int(product(np.array([a]), np.array([b]))[0])


def _with_codebook(codebook: Codebook) -> Callable[..., Any]:
    return _by_rows(fast_codebooks.quantize_with_codebook, codebook)


def _half_quadratic(variant: HalfQuadratic) -> Callable[..., Any]:
    return _by_rows(fast_half_quadratic.quantize_half_quadratic, variant)


_FAST_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "quantize_group": _quantize_group,
    "quantize": _quantize,
    "integer_dot": _integer_dot,
    "pack": _pack,
    "requantize_float": _requantize_float,
    "multiply_by_quantized_multiplier": _multiplied,
    "rounding_divide_by_power_of_two": _divided,
    "saturating_rounding_doubling_high_multiply": _high_multiplied,
    "quantize_q4_k": lambda values: fast_kquants.quantize_q4_k(np.array([values])),
    "quantize_q6_k": lambda values: fast_kquants.quantize_q6_k(np.array([values])),
    "openvino_fake_quantize": _fake_quantize,
    "nncf_symmetric_ranges": _ranges(fast_fake_quantize.nncf_symmetric_ranges),
    "nncf_asymmetric_ranges": _ranges(fast_fake_quantize.nncf_asymmetric_ranges),
    "BITSANDBYTES_NF4_BLOCK": _with_codebook(NF4),
    "BITSANDBYTES_FP4_BLOCK": _with_codebook(BITSANDBYTES_FP4),
    "BITSANDBYTES_FP4_BLOCK_CUDA": _by_rows(fast_codebooks.quantize_fp4_on_cuda),
    "MLX_METAL_AFFINE_4": _by_rows(fast_searches.quantize_mlx_metal),
    "MLX_AFFINE_4": _by_rows(fast_searches.quantize_mlx),
    "GPTQ_UINT4_ASYMMETRIC_MSE": _by_rows(fast_searches.quantize_gptq_mse_asymmetric),
    "GPTQ_UINT4_SYMMETRIC_MSE": _by_rows(fast_searches.quantize_gptq_mse_symmetric),
    "ONNXRUNTIME_K_QUANT_4": _by_rows(fast_searches.quantize_k_quant),
    "ONNXRUNTIME_HQQ_4": _half_quadratic(half_quadratic.ONNXRUNTIME_STEPS),
    "HQQ_4": _half_quadratic(half_quadratic.HQQ_STEPS),
    "HQQ_4_UNOPTIMIZED": _half_quadratic(half_quadratic.HQQ_START),
    "TORCH_HISTOGRAM_UINT8": _by_histogram,
}

ENGINES: Final = (Engine("exact", _EXACT_FUNCTIONS), Engine("fast", _FAST_FUNCTIONS))
"""In the order in which tables show them."""
