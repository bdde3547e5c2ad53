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
from foldmark.exact.dot import EXACT as EXACT_SUM
from foldmark.exact.dot import Accumulator
from foldmark.exact.group import QuantizedGroup
from foldmark.exact.number import FloatFormat
from foldmark.exact.packing import BitLayout
from foldmark.exact.rule import AffineRule, Rule
from foldmark.exact.tools import CATALOGUE, fake_quantize, kquants
from foldmark.exact.tools.entry import Procedure
from foldmark.kernels import affine as fast_affine
from foldmark.kernels import dot as fast_dot
from foldmark.kernels import group as fast_group
from foldmark.kernels import packing as fast_packing
from foldmark.kernels.floats import dtype_of

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


ENGINES: Final = (
    Engine("exact", _EXACT_FUNCTIONS),
    Engine(
        "fast",
        {
            "quantize_group": _quantize_group,
            "quantize": _quantize,
            "integer_dot": _integer_dot,
            "pack": _pack,
        },
    ),
)
"""In the order in which tables show them."""
