"""torchao: choose_qparams_affine with quantize_affine, Int8Tensor, per token, tinygemm."""

from fractions import Fraction
from typing import Final

from foldmark.exact.catalog import FLOAT32, INT4, INT8, INT8_NARROW, UINT4
from foldmark.exact.number import IntegerFormat
from foldmark.exact.rule import (
    AffineRule,
    DataConstant,
    DataType,
    Extent,
    Rule,
    ScaleRule,
    Scaling,
    ZeroForm,
    ZeroInRange,
    ZeroOrder,
    ZeroPointRule,
)
from foldmark.exact.tools.entry import Entry, Operator
from foldmark.exact.tools.tiny import scale_at_least

__all__ = ["ENTRIES"]

_VERSION = "torchao 0.18.0"
_PRIMITIVES = "torchao/quantization/quant_primitives.py: choose_qparams_affine, quantize_affine"
_DATA = DataType.DATA


_NORMAL = scale_at_least(DataConstant.SMALLEST_NORMAL)


def _rule(name: str, scale: ScaleRule, zero_point: ZeroPointRule, codes: IntegerFormat) -> Rule:
    return Rule(
        name=name,
        scale=scale,
        zero_point=zero_point,
        affine=AffineRule(codes=codes, scaling=Scaling.RECIPROCAL, precision=_DATA),
        source=_PRIMITIVES,
        versions=_VERSION,
    )


def _symmetric(codes: IntegerFormat) -> Rule:
    return _rule(
        f"TORCHAO_{codes.name.upper()}_SYMMETRIC",
        ScaleRule(
            extent=Extent.MAGNITUDE,
            denominator=Fraction(codes.steps, 2),
            precision=_DATA,
            tiny=_NORMAL,
        ),
        ZeroPointRule(lowest=codes.minimum, highest=codes.maximum),
        codes,
    )


def _without_clipping(codes: IntegerFormat) -> Rule:
    return _rule(
        f"TORCHAO_{codes.name.upper()}_WITHOUT_CLIPPING",
        ScaleRule(
            extent=Extent.LARGER_SIDE,
            denominator=Fraction(codes.maximum),
            denominator_below=Fraction(-codes.minimum),
            precision=_DATA,
            tiny=_NORMAL,
        ),
        ZeroPointRule(lowest=codes.minimum, highest=codes.maximum),
        codes,
    )


def _asymmetric(codes: IntegerFormat) -> Rule:
    return _rule(
        f"TORCHAO_{codes.name.upper()}_ASYMMETRIC",
        ScaleRule(
            extent=Extent.SPAN,
            denominator=Fraction(codes.steps),
            precision=_DATA,
            tiny=_NORMAL,
        ),
        ZeroPointRule(
            form=ZeroForm.ROUND_QUOTIENT,
            lowest=codes.minimum,
            highest=codes.maximum,
            precision=_DATA,
        ),
        codes,
    )


TORCHAO_INT8_SYMMETRIC: Final = _symmetric(INT8)
TORCHAO_INT4_SYMMETRIC: Final = _symmetric(INT4)
TORCHAO_INT8_WITHOUT_CLIPPING: Final = _without_clipping(INT8)
TORCHAO_INT4_WITHOUT_CLIPPING: Final = _without_clipping(INT4)
TORCHAO_INT8_ASYMMETRIC: Final = _asymmetric(INT8)
TORCHAO_INT4_ASYMMETRIC: Final = _asymmetric(INT4)
TORCHAO_INT8_TENSOR: Final = Rule(
    name="TORCHAO_INT8_TENSOR",
    scale=ScaleRule(
        extent=Extent.MAGNITUDE,
        denominator=Fraction(255, 2),
        precision=_DATA,
        stored=FLOAT32,
        tiny=scale_at_least(float(FLOAT32.epsilon)),
    ),
    zero_point=ZeroPointRule(lowest=-128, highest=127),
    affine=AffineRule(codes=INT8, scaling=Scaling.RECIPROCAL),
    source="torchao/quantization/quantize_/workflows/int8/int8_tensor.py: Int8Tensor.from_hp",
    versions=_VERSION,
)
TORCHAO_PER_TOKEN_INT8: Final = Rule(
    name="TORCHAO_PER_TOKEN_INT8",
    scale=ScaleRule(
        extent=Extent.MAGNITUDE,
        denominator=Fraction(127),
        precision=_DATA,
        tiny=scale_at_least(1e-5),
    ),
    zero_point=ZeroPointRule(lowest=-127, highest=127),
    affine=AffineRule(codes=INT8_NARROW, scaling=Scaling.RECIPROCAL, precision=_DATA),
    source="torchao/quantization/utils.py: _quantize_activation_per_token_absmax",
    versions=_VERSION,
)
TORCHAO_TINYGEMM_INT4: Final = Rule(
    name="TORCHAO_TINYGEMM_INT4",
    scale=ScaleRule(
        extent=Extent.SPAN,
        denominator=Fraction(15),
        zero_in_range=ZeroInRange.FREE,
        precision=_DATA,
        tiny=scale_at_least(1e-6),
    ),
    zero_point=ZeroPointRule(form=ZeroForm.MIDDLE, fixed=8, lowest=0, highest=15, precision=_DATA),
    affine=AffineRule(codes=UINT4, order=ZeroOrder.SUBTRACTED, middle=8, precision=_DATA),
    source="torchao/quantization/quant_primitives.py: _choose_qparams_affine_tinygemm",
    versions=_VERSION,
)
TORCHAO_QUANTIZE_AFFINE_UINT8: Final = Operator(
    name="TORCHAO_QUANTIZE_AFFINE_UINT8",
    affine=AffineRule(
        codes=IntegerFormat("uint8", 8, 0, 255), scaling=Scaling.RECIPROCAL, precision=_DATA
    ),
    source="torchao/quantization/quant_primitives.py: quantize_affine",
    versions=_VERSION,
)

ENTRIES: Final[tuple[Entry, ...]] = (
    TORCHAO_INT8_SYMMETRIC,
    TORCHAO_INT4_SYMMETRIC,
    TORCHAO_INT8_WITHOUT_CLIPPING,
    TORCHAO_INT4_WITHOUT_CLIPPING,
    TORCHAO_INT8_ASYMMETRIC,
    TORCHAO_INT4_ASYMMETRIC,
    TORCHAO_INT8_TENSOR,
    TORCHAO_PER_TOKEN_INT8,
    TORCHAO_TINYGEMM_INT4,
    TORCHAO_QUANTIZE_AFFINE_UINT8,
)
