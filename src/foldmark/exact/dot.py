"""Integer dot and matrix products with a stated accumulator, zero points corrected exactly.

With codes a and b, zero points za and zb and K products:

    sum (a - za)(b - zb)  =  sum a b  -  zb sum a  -  za sum b  +  K za zb
                             products    row term     column term  constant
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from foldmark.errors import DataMismatch
from foldmark.exact.catalog import (
    BFLOAT16,
    E2M1,
    E2M3,
    E3M2,
    E4M3FN,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
)
from foldmark.exact.number import FloatFormat, IntegerFormat

__all__ = [
    "EXACT",
    "INT32_WRAPPING",
    "Accumulator",
    "AccumulatorOverflow",
    "DotTerms",
    "accumulator_format",
    "dot_terms",
    "integer_dot",
    "integer_matmul",
    "longest_safe_dot",
    "saturating_pairs",
    "saturating_pairs_dot",
]


class AccumulatorOverflow(Enum):
    """What an accumulator does with a sum that does not fit."""

    WRAP = "the low bits are kept, as two's complement registers do"
    SATURATE = "the sum stops at the largest or smallest number"


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A register that products are summed in; without a format it never overflows."""

    number_format: IntegerFormat | None
    overflow: AccumulatorOverflow = AccumulatorOverflow.WRAP

    def add(self, total: int, term: int) -> int:
        """Return total + term as the register holds it."""
        if self.number_format is None:
            return total + term
        if self.overflow == AccumulatorOverflow.WRAP:
            return self.number_format.wrap(total + term)
        return self.number_format.clip(total + term)


EXACT: Final = Accumulator(None)
INT32_WRAPPING: Final = Accumulator(INT32)
_INT16_SATURATING: Final = Accumulator(INT16, AccumulatorOverflow.SATURATE)


def accumulator_format(operand: IntegerFormat | FloatFormat) -> IntegerFormat | FloatFormat:
    """Return the format that products of `operand` are summed in by the field's kernels.

    float64 in itself; all narrower floats in float32; integers of up to 8 bits in int32, wider
    ones in int64.
    """
    narrow = (FLOAT32, FLOAT16, BFLOAT16, E4M3FN, E5M2, E4M3FNUZ, E5M2FNUZ, E2M1, E2M3, E3M2)
    if isinstance(operand, FloatFormat):
        return FLOAT32 if operand in narrow else FLOAT64
    return INT32 if operand.bits <= 8 else INT64


def longest_safe_dot(a: IntegerFormat, b: IntegerFormat, accumulator: IntegerFormat = INT32) -> int:
    """Return the greatest length K at which no dot product of such codes can overflow.

    K = min(floor(max / largest product), floor(min / smallest product)).
    """
    corners = [x * y for x in (a.minimum, a.maximum) for y in (b.minimum, b.maximum)]
    limits = []
    if max(corners) > 0:
        limits.append(accumulator.maximum // max(corners))
    if min(corners) < 0:
        limits.append(accumulator.minimum // min(corners))
    return min(limits)


@dataclass(frozen=True, slots=True)
class DotTerms:
    """The four sums that a dot product with zero points is made of."""

    products: int
    row_term: int
    column_term: int
    constant: int

    @property
    def total(self) -> int:
        """The dot product of what the codes stand for, in steps of scale_a * scale_b."""
        return self.products - self.row_term - self.column_term + self.constant


def dot_terms(a: Sequence[int], b: Sequence[int], zero_a: int = 0, zero_b: int = 0) -> DotTerms:
    """Return the four terms of the dot product of two lists of codes, exactly."""
    _demand_equal_lengths(a, b)
    return DotTerms(
        products=sum(x * y for x, y in zip(a, b, strict=True)),
        row_term=zero_b * sum(a),
        column_term=zero_a * sum(b),
        constant=len(a) * zero_a * zero_b,
    )


def integer_dot(
    a: Sequence[int],
    b: Sequence[int],
    zero_a: int = 0,
    zero_b: int = 0,
    accumulator: Accumulator = EXACT,
) -> int:
    """Return sum (a - zero_a)(b - zero_b), added up in order in the accumulator.

    Raises DataMismatch when the lists differ in length.
    """
    _demand_equal_lengths(a, b)
    total = 0
    for x, y in zip(a, b, strict=True):
        total = accumulator.add(total, (x - zero_a) * (y - zero_b))
    return total


def integer_matmul(
    a: Sequence[Sequence[int]],
    b: Sequence[Sequence[int]],
    zero_a: int = 0,
    zero_b: int = 0,
    accumulator: Accumulator = EXACT,
) -> list[list[int]]:
    """Return the matrix product of two matrices of codes.

    a  (rows, K)
    b  (K, columns)
    -> (rows, columns)  in steps of scale_a * scale_b

    Raises DataMismatch when the inner lengths differ.
    """
    if a and len(a[0]) != len(b):
        raise DataMismatch("inner lengths differ", got=f"(.., {len(a[0])}) by ({len(b)}, ..)")
    columns = list(zip(*b, strict=True))
    return [[integer_dot(row, c, zero_a, zero_b, accumulator) for c in columns] for row in a]


def saturating_pairs_dot(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the dot product of uint8 by int8 as AVX2 without VNNI computes it.

    VPMADDUBSW adds two neighbouring products into an int16 that saturates; the pairs are then
    summed in int32. 255 * 127 + 255 * 127 = 64770 becomes 32767.
    """
    total = 0
    for first, second in _pairs(a, b):
        total = INT32_WRAPPING.add(total, _INT16_SATURATING.add(first, second))
    return total


def saturating_pairs(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """Return the indices of the first elements of the pairs whose int16 sum saturates.

    An empty list means that the AVX2 result is exact. Weights within -64..64 never saturate:
    2 * 255 * 64 = 32640.
    """
    return [
        2 * index
        for index, (first, second) in enumerate(_pairs(a, b))
        if INT16.clip(first + second) != first + second
    ]


def _pairs(a: Sequence[int], b: Sequence[int]) -> list[tuple[int, int]]:
    _demand_equal_lengths(a, b)
    for x, y in zip(a, b, strict=True):
        if UINT8.clip(x) != x or INT8.clip(y) != y:
            raise DataMismatch("not a uint8 by int8 product", got=f"{x} by {y}")
    products = [x * y for x, y in zip(a, b, strict=True)]
    if len(products) % 2:
        products.append(0)
    return list(zip(products[::2], products[1::2], strict=True))


def _demand_equal_lengths(a: Sequence[int], b: Sequence[int]) -> None:
    if len(a) != len(b):
        raise DataMismatch("two lists of different lengths", got=f"{len(a)} and {len(b)}")
