"""optimum-quanto, bitsandbytes and compressed-tensors."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from foldmark.exact.catalog import FLOAT32, INT4, INT8, UINT2, UINT4
from foldmark.exact.number import IntegerFormat
from foldmark.exact.rule import (
    AffineRule,
    DataConstant,
    DataType,
    Extent,
    NotANumber,
    Rule,
    ScaleRule,
    Scaling,
    TinyAction,
    TinyRange,
    TinyTest,
    ZeroForm,
    ZeroInRange,
    ZeroOrder,
    ZeroPointRule,
)
from foldmark.exact.tools.entry import Entry
from foldmark.exact.tools.tiny import EXACTLY_ZERO

__all__ = ["ENTRIES", "outlier_columns"]

_DATA = DataType.DATA
_QUANTO = "optimum-quanto 0.2.7"

QUANTO_INT8: Final = Rule(
    name="QUANTO_INT8",
    scale=ScaleRule(extent=Extent.MAGNITUDE, denominator=Fraction(127), precision=_DATA),
    zero_point=ZeroPointRule(lowest=-128, highest=127),
    affine=AffineRule(codes=INT8, precision=_DATA, nan=NotANumber.ZERO),
    source="optimum/quanto/tensor/optimizers/absmax_optimizer.py; qbytes quantization",
    versions=_QUANTO,
)
QUANTO_INT4_SHIFT: Final = Rule(
    name="QUANTO_INT4_SHIFT",
    scale=ScaleRule(
        extent=Extent.SPAN,
        denominator=Fraction(15),
        zero_in_range=ZeroInRange.FREE,
        precision=_DATA,
    ),
    zero_point=ZeroPointRule(form=ZeroForm.LOW, lowest=0, highest=15, precision=_DATA),
    affine=AffineRule(
        codes=UINT4, order=ZeroOrder.SUBTRACTED, precision=_DATA, nan=NotANumber.ZERO
    ),
    source="optimum/quanto/tensor/optimizers/max_optimizer.py (stores the shift -low)",
    versions=_QUANTO,
)
QUANTO_INT4_ZERO_POINT: Final = Rule(
    name="QUANTO_INT4_ZERO_POINT",
    scale=ScaleRule(
        extent=Extent.SPAN,
        denominator=Fraction(15),
        zero_in_range=ZeroInRange.FREE,
        precision=_DATA,
    ),
    zero_point=ZeroPointRule(form=ZeroForm.ROUND_DIFFERENCE, lowest=0, highest=15, precision=_DATA),
    affine=AffineRule(codes=UINT4, precision=_DATA, nan=NotANumber.ZERO),
    source="optimum/quanto/tensor/optimizers/max_optimizer.py, zeropoint=True",
    versions=_QUANTO,
)
QUANTO_INT2_SHIFT: Final = replace(
    QUANTO_INT4_SHIFT,
    name="QUANTO_INT2_SHIFT",
    scale=replace(QUANTO_INT4_SHIFT.scale, denominator=Fraction(3)),
    zero_point=replace(QUANTO_INT4_SHIFT.zero_point, highest=3),
    affine=replace(QUANTO_INT4_SHIFT.affine, codes=UINT2),
    versions=f"{_QUANTO}, read and not run",
)

BITSANDBYTES_INT8: Final = Rule(
    name="BITSANDBYTES_INT8",
    scale=ScaleRule(extent=Extent.MAGNITUDE, denominator=Fraction(1), stored=FLOAT32),
    zero_point=ZeroPointRule(lowest=-128, highest=127),
    affine=AffineRule(
        codes=INT8,
        scaling=Scaling.RATIO_OF_RECIPROCAL,
        ratio=Fraction(127),
        codes_per_scale=Fraction(127),
        nan=NotANumber.ZERO,
    ),
    source="bitsandbytes/backends/default/ops.py: int8_vectorwise_quant; the row maximum is stored",
    versions="bitsandbytes 0.50.2, CPU",
)


def outlier_columns(rows: Sequence[Sequence[float]], threshold: float) -> list[int]:
    """Return the columns that hold a magnitude of at least `threshold`.

    bitsandbytes keeps these in float16 beside the int8 matrix, where their codes are 0; each row's
    maximum is taken without the outlying values themselves, but with the rest of their columns.
    """
    columns = enumerate(zip(*rows, strict=True))
    return [index for index, column in columns if any(abs(v) >= threshold for v in column)]


_COMPRESSED = "compressed-tensors 0.20.1"
_HELPERS = "compressed_tensors/quantization/utils/helpers.py: calculate_qparams; forward.py"
_ZERO_IS_EPSILON = (
    TinyRange(
        test=TinyTest.SCALE,
        below=EXACTLY_ZERO,
        action=TinyAction.SCALE,
        value=DataConstant.EPSILON,
        zero_point=0,
    ),
)


def _compressed_symmetric(name: str, codes: IntegerFormat) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.MAGNITUDE,
            denominator=Fraction(codes.steps, 2),
            precision=_DATA,
            tiny=_ZERO_IS_EPSILON,
        ),
        zero_point=ZeroPointRule(lowest=codes.minimum, highest=codes.maximum),
        affine=AffineRule(codes=codes, order=ZeroOrder.BEFORE_ROUNDING, precision=_DATA),
        source=_HELPERS,
        versions=_COMPRESSED,
    )


def _compressed_asymmetric(name: str, codes: IntegerFormat) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.SPAN,
            denominator=Fraction(codes.steps),
            precision=_DATA,
            tiny=_ZERO_IS_EPSILON,
        ),
        zero_point=ZeroPointRule(
            form=ZeroForm.ROUND_DIFFERENCE,
            lowest=codes.minimum,
            highest=codes.maximum,
            precision=_DATA,
        ),
        affine=AffineRule(codes=codes, order=ZeroOrder.BEFORE_ROUNDING, precision=_DATA),
        source=_HELPERS,
        versions=_COMPRESSED,
    )


COMPRESSED_TENSORS_INT8_SYMMETRIC: Final = _compressed_symmetric(
    "COMPRESSED_TENSORS_INT8_SYMMETRIC", INT8
)
COMPRESSED_TENSORS_INT4_SYMMETRIC: Final = _compressed_symmetric(
    "COMPRESSED_TENSORS_INT4_SYMMETRIC", INT4
)
COMPRESSED_TENSORS_INT8_ASYMMETRIC: Final = _compressed_asymmetric(
    "COMPRESSED_TENSORS_INT8_ASYMMETRIC", INT8
)
COMPRESSED_TENSORS_INT4_ASYMMETRIC: Final = _compressed_asymmetric(
    "COMPRESSED_TENSORS_INT4_ASYMMETRIC", INT4
)

ENTRIES: Final[tuple[Entry, ...]] = (
    QUANTO_INT8,
    QUANTO_INT4_SHIFT,
    QUANTO_INT4_ZERO_POINT,
    QUANTO_INT2_SHIFT,
    BITSANDBYTES_INT8,
    COMPRESSED_TENSORS_INT8_SYMMETRIC,
    COMPRESSED_TENSORS_INT4_SYMMETRIC,
    COMPRESSED_TENSORS_INT8_ASYMMETRIC,
    COMPRESSED_TENSORS_INT4_ASYMMETRIC,
)
