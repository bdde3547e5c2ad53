"""OpenVINO's NNCF and Intel Neural Compressor."""

from dataclasses import replace
from fractions import Fraction
from typing import Final

from foldmark.exact.catalog import FLOAT16, FLOAT32, INT4, INT8, UINT4, UINT8
from foldmark.exact.number import IntegerFormat
from foldmark.exact.rule import (
    AffineRule,
    Extent,
    Rule,
    ScaleRule,
    ScaleUse,
    TinyAction,
    ZeroForm,
    ZeroInRange,
    ZeroOrder,
    ZeroPointRule,
)
from foldmark.exact.tools.entry import Entry
from foldmark.exact.tools.tiny import scale_at_least, zero_extent

__all__ = ["ENTRIES"]

_NNCF = "nncf 3.4.0"
_LOWERING = "nncf/quantization/algorithms/weight_compression/weight_lowering.py"
_EPSILON = float(FLOAT32.epsilon)
_NNCF_TINY = scale_at_least(_EPSILON)


def _nncf_symmetric(name: str, codes: IntegerFormat) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.SIGNED_MAGNITUDE,
            denominator=Fraction(1 << (codes.bits - 1)),
            zero_in_range=ZeroInRange.FREE,
            tiny=_NNCF_TINY,
        ),
        zero_point=ZeroPointRule(lowest=codes.minimum, highest=codes.maximum),
        affine=AffineRule(codes=codes),
        source=_LOWERING,
        versions=_NNCF,
    )


def _nncf_asymmetric(name: str, codes: IntegerFormat) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(extent=Extent.SPAN, denominator=Fraction(codes.steps), tiny=_NNCF_TINY),
        zero_point=ZeroPointRule(
            form=ZeroForm.ROUND_QUOTIENT, lowest=codes.minimum, highest=codes.maximum
        ),
        affine=AffineRule(codes=codes, order=ZeroOrder.BEFORE_ROUNDING),
        source=_LOWERING,
        versions=_NNCF,
    )


NNCF_INT8_SYMMETRIC: Final = _nncf_symmetric("NNCF_INT8_SYMMETRIC", INT8)
NNCF_INT4_SYMMETRIC: Final = _nncf_symmetric("NNCF_INT4_SYMMETRIC", INT4)
NNCF_UINT8_ASYMMETRIC: Final = _nncf_asymmetric("NNCF_UINT8_ASYMMETRIC", UINT8)
NNCF_UINT4_ASYMMETRIC: Final = _nncf_asymmetric("NNCF_UINT4_ASYMMETRIC", UINT4)


def _in_openvino(rule: Rule) -> Rule:
    """Return what the compressed OpenVINO model holds: the scale in float16, the codes as before.

    Those were computed with the float32 scale.
    """
    return replace(
        rule,
        name=rule.name.replace("NNCF", "NNCF_OPENVINO"),
        scale=replace(rule.scale, stored=FLOAT16),
        zero_point=replace(rule.zero_point, scale=ScaleUse.UNROUNDED),
        affine=replace(rule.affine, scale=ScaleUse.UNROUNDED),
        versions=f"{_NNCF}, OpenVINO models, read and not run",
    )


NNCF_OPENVINO_INT8_SYMMETRIC: Final = _in_openvino(NNCF_INT8_SYMMETRIC)
NNCF_OPENVINO_INT4_SYMMETRIC: Final = _in_openvino(NNCF_INT4_SYMMETRIC)
NNCF_OPENVINO_UINT8_ASYMMETRIC: Final = _in_openvino(NNCF_UINT8_ASYMMETRIC)
NNCF_OPENVINO_UINT4_ASYMMETRIC: Final = _in_openvino(NNCF_UINT4_ASYMMETRIC)

_INC = "neural-compressor 3.10"
_UTILITY = "neural_compressor/torch/algorithms/weight_only/utility.py"


def _inc_asymmetric(name: str, codes: IntegerFormat) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.SPAN,
            denominator=Fraction(codes.steps),
            tiny=zero_extent(TinyAction.ENDS, 1.0),
        ),
        zero_point=ZeroPointRule(
            form=ZeroForm.ROUND_DIFFERENCE, lowest=codes.minimum, highest=codes.maximum
        ),
        affine=AffineRule(codes=codes),
        source=f"{_UTILITY}: qdq_weight_asym",
        versions=_INC,
    )


def _inc_symmetric(name: str, codes: IntegerFormat) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.MAGNITUDE,
            denominator=Fraction(codes.maximum),
            tiny=zero_extent(TinyAction.EXTENT, 1.0),
        ),
        zero_point=ZeroPointRule(lowest=codes.minimum, highest=codes.maximum),
        affine=AffineRule(codes=codes),
        source=f"{_UTILITY}: qdq_weight_sym, full_range=False",
        versions=_INC,
    )


def _inc_full_range(name: str, codes: IntegerFormat) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.SIGNED_MAGNITUDE,
            denominator=Fraction(-codes.minimum),
            zero_in_range=ZeroInRange.FREE,
            tiny=zero_extent(TinyAction.EXTENT, 1.0),
        ),
        zero_point=ZeroPointRule(lowest=codes.minimum, highest=codes.maximum),
        affine=AffineRule(codes=codes),
        source=f"{_UTILITY}: qdq_weight_sym, full_range=True",
        versions=_INC,
    )


INC_UINT4_ASYMMETRIC: Final = _inc_asymmetric("INC_UINT4_ASYMMETRIC", UINT4)
INC_UINT8_ASYMMETRIC: Final = _inc_asymmetric("INC_UINT8_ASYMMETRIC", UINT8)
INC_INT4_SYMMETRIC: Final = _inc_symmetric("INC_INT4_SYMMETRIC", INT4)
INC_INT8_SYMMETRIC: Final = _inc_symmetric("INC_INT8_SYMMETRIC", INT8)
INC_INT4_FULL_RANGE: Final = _inc_full_range("INC_INT4_FULL_RANGE", INT4)
INC_INT8_FULL_RANGE: Final = _inc_full_range("INC_INT8_FULL_RANGE", INT8)

ENTRIES: Final[tuple[Entry, ...]] = (
    NNCF_INT8_SYMMETRIC,
    NNCF_INT4_SYMMETRIC,
    NNCF_UINT8_ASYMMETRIC,
    NNCF_UINT4_ASYMMETRIC,
    NNCF_OPENVINO_INT8_SYMMETRIC,
    NNCF_OPENVINO_INT4_SYMMETRIC,
    NNCF_OPENVINO_UINT8_ASYMMETRIC,
    NNCF_OPENVINO_UINT4_ASYMMETRIC,
    INC_UINT4_ASYMMETRIC,
    INC_UINT8_ASYMMETRIC,
    INC_INT4_SYMMETRIC,
    INC_INT8_SYMMETRIC,
    INC_INT4_FULL_RANGE,
    INC_INT8_FULL_RANGE,
)
