"""Blocks of narrow floats that share a scale: the OCP microscaling formats, and NVFP4.

An MX block of 32 elements has one power of two: X = 2^(floor(log2(max |v|)) - emax), with emax the
exponent of the element format's largest number; elements are v / X, to nearest even, saturated.

An NVFP4 block of 16 E2M1 elements has a scale in E4M3, and the tensor has one in float32:
    tensor scale = max |v| / (6 * 448);  block scale = E4M3(block max / 6 / tensor scale)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Final

from foldmark.errors import DataMismatch, NonFiniteValue
from foldmark.exact.catalog import E2M1, E2M3, E3M2, E4M3FN, E5M2, E8M0, FLOAT32
from foldmark.exact.number import FloatFormat, Overflow
from foldmark.exact.rounding import Rounding
from foldmark.exact.single import divide, multiply

__all__ = [
    "MXFP4",
    "MXFP6_E2M3",
    "MXFP6_E3M2",
    "MXFP8_E4M3",
    "MXFP8_E5M2",
    "MX_FORMATS",
    "NVFP4_BLOCK",
    "MicroscaledBlock",
    "MicroscalingFormat",
    "dequantize_mx",
    "dequantize_nvfp4",
    "nvfp4_tensor_scale",
    "quantize_mx",
    "quantize_nvfp4",
]


@dataclass(frozen=True, slots=True)
class MicroscalingFormat:
    """Elements of one float format under a shared power of two in E8M0."""

    name: str
    element: FloatFormat
    block_size: int = 32

    @property
    def largest_exponent(self) -> int:
        """The exponent of the largest element: floor(log2(maximum))."""
        return _exponent(self.element.maximum)

    @property
    def bits_per_value(self) -> Fraction:
        """Bits of an element with its share of the block's scale."""
        return self.element.bits + Fraction(E8M0.bits, self.block_size)


# OCP Microscaling Formats (MX) Specification v1.0, section 5.1.
MXFP8_E4M3: Final = MicroscalingFormat("mxfp8_e4m3", E4M3FN)
MXFP8_E5M2: Final = MicroscalingFormat("mxfp8_e5m2", E5M2)
MXFP6_E2M3: Final = MicroscalingFormat("mxfp6_e2m3", E2M3)
MXFP6_E3M2: Final = MicroscalingFormat("mxfp6_e3m2", E3M2)
MXFP4: Final = MicroscalingFormat("mxfp4", E2M1)
MX_FORMATS: Final = (MXFP8_E4M3, MXFP8_E5M2, MXFP6_E2M3, MXFP6_E3M2, MXFP4)

NVFP4_BLOCK: Final = 16


@dataclass(frozen=True, slots=True)
class MicroscaledBlock:
    """Codes of the elements and the code of their shared scale."""

    codes: tuple[int, ...]
    scale: int


def quantize_mx(values: Sequence[float], number_format: MicroscalingFormat) -> MicroscaledBlock:
    """Return one block; a block of zeros gets the smallest scale.

    The scale saturates at 2^-127 and 2^127. Raises DataMismatch for a block of another size,
    NonFiniteValue naming the first index that is not finite.
    """
    _demand_block(values, number_format.block_size)
    largest = max(abs(Fraction(value)) for value in values)
    power = _exponent(largest) - number_format.largest_exponent if largest else -E8M0.bias
    power = min(max(power, -E8M0.bias), E8M0.bias)
    scale = Fraction(2) ** power
    element = number_format.element
    codes = (_encode(value, Fraction(value) / scale, element) for value in values)
    return MicroscaledBlock(tuple(codes), power + E8M0.bias)


def dequantize_mx(block: MicroscaledBlock, number_format: MicroscalingFormat) -> list[float]:
    """Return element * scale for every code; all NaN when the scale is NaN."""
    scale = E8M0.decode(block.scale)
    return [number_format.element.decode(code) * scale for code in block.codes]


def nvfp4_tensor_scale(values: Sequence[float]) -> float:
    """Return fl(max |v| / (6 * 448)), the float32 scale of a whole tensor."""
    largest = max((abs(value) for value in values), default=0.0)
    return divide(FLOAT32.round(largest), float(E2M1.maximum * E4M3FN.maximum))


def quantize_nvfp4(values: Sequence[float], tensor_scale: float) -> MicroscaledBlock:
    """Return one block of 16 under a given tensor scale.

    The block's scale is rounded to E4M3 and saturated; elements are divided by the product of both
    scales in float32. A scale of zero gives codes of zero. Raises DataMismatch for a block of
    another size, NonFiniteValue naming the first index that is not finite.
    """
    _demand_block(values, NVFP4_BLOCK)
    largest = max(abs(value) for value in values)
    wanted = divide(divide(FLOAT32.round(largest), 6.0), tensor_scale) if tensor_scale else 0.0
    code = E4M3FN.encode(wanted, Rounding.HALF_EVEN, Overflow.SATURATE)
    step = multiply(E4M3FN.decode(code), tensor_scale)
    codes = (
        _encode(value, Fraction(divide(FLOAT32.round(value), step)) if step else Fraction(0), E2M1)
        for value in values
    )
    return MicroscaledBlock(tuple(codes), code)


def dequantize_nvfp4(block: MicroscaledBlock, tensor_scale: float) -> list[float]:
    """Return fl(element * fl(block scale * tensor scale)) for every code, in float32."""
    step = multiply(E4M3FN.decode(block.scale), tensor_scale)
    return [multiply(E2M1.decode(code), step) for code in block.codes]


def _encode(value: float, scaled: Fraction, element: FloatFormat) -> int:
    if scaled == 0:
        return element.encode(0.0 * (1 if value >= 0 else -1))
    return element.encode(scaled, Rounding.HALF_EVEN, Overflow.SATURATE)


def _exponent(positive: Fraction) -> int:
    """Return floor(log2(positive))."""
    guess = positive.numerator.bit_length() - positive.denominator.bit_length()
    return guess if positive >= Fraction(2) ** guess else guess - 1


def _demand_block(values: Sequence[float], size: int) -> None:
    if len(values) != size:
        raise DataMismatch("not a block", got=f"{len(values)} values", expected=str(size))
    for index, value in enumerate(values):
        if not isfinite(value):
            raise NonFiniteValue("not finite", where=f"index {index}", got=str(value))
