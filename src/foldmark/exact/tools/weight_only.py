"""GPTQ, AutoAWQ, SmoothQuant, NVIDIA ModelOpt, AMD Quark and coremltools."""

from dataclasses import replace
from fractions import Fraction
from typing import Final

from foldmark.exact.catalog import FLOAT16, FLOAT32, FLOAT64, INT4, INT8, INT8_NARROW, UINT4, UINT8
from foldmark.exact.number import IntegerFormat
from foldmark.exact.rule import (
    AffineRule,
    Clip,
    DataType,
    Extent,
    NotANumber,
    Rule,
    ScaleRule,
    ScaleUse,
    Scaling,
    TinyAction,
    TinyRange,
    TinyTest,
    ZeroDivisor,
    ZeroForm,
    ZeroInRange,
    ZeroOrder,
    ZeroPointRule,
)
from foldmark.exact.tools.entry import Entry, Operator
from foldmark.exact.tools.tiny import extent_at_least, scale_at_least, zero_extent

__all__ = ["ENTRIES"]

_DATA = DataType.DATA

_GPTQ = "quant.py of IST-DASLab/gptq: Quantizer.find_params, quantize"
_GPTQ_VERSION = "IST-DASLab/gptq 2d65066e (2023-07-11)"
GPTQ_UINT4_ASYMMETRIC: Final = Rule(
    name="GPTQ_UINT4_ASYMMETRIC",
    scale=ScaleRule(
        extent=Extent.SPAN,
        denominator=Fraction(15),
        tiny=zero_extent(TinyAction.ENDS, 1.0),
    ),
    zero_point=ZeroPointRule(form=ZeroForm.ROUND_DIFFERENCE, lowest=0, highest=15),
    affine=AffineRule(codes=UINT4),
    source=_GPTQ,
    versions=_GPTQ_VERSION,
)
# A row without a negative number keeps its low end at 0 and saturates: [1, 2, 3, 4] -> 12 15 15 15.
GPTQ_UINT4_SYMMETRIC: Final = Rule(
    name="GPTQ_UINT4_SYMMETRIC",
    scale=ScaleRule(
        extent=Extent.MIRRORED_SPAN,
        denominator=Fraction(15),
        tiny=zero_extent(TinyAction.ENDS, 1.0),
    ),
    zero_point=ZeroPointRule(fixed=8, lowest=0, highest=15),
    affine=AffineRule(codes=UINT4),
    source=_GPTQ,
    versions=_GPTQ_VERSION,
)

# GPTQModel computes in the weight's dtype and writes scales in float16.
_GPTQMODEL = "gptqmodel/quantization/quantizer.py: Quantizer.find_params"
_GPTQMODEL_VERSION = "GPTQModel 7.7.0, mse off, float32 weights, read and not run"
GPTQMODEL_UINT4_ASYMMETRIC: Final = Rule(
    name="GPTQMODEL_UINT4_ASYMMETRIC",
    scale=replace(GPTQ_UINT4_ASYMMETRIC.scale, precision=_DATA, stored=FLOAT16),
    zero_point=replace(GPTQ_UINT4_ASYMMETRIC.zero_point, scale=ScaleUse.UNROUNDED, precision=_DATA),
    affine=AffineRule(codes=UINT4, scale=ScaleUse.UNROUNDED, precision=_DATA),
    source=_GPTQMODEL,
    versions=_GPTQMODEL_VERSION,
)
GPTQMODEL_UINT4_SYMMETRIC: Final = Rule(
    name="GPTQMODEL_UINT4_SYMMETRIC",
    scale=replace(GPTQ_UINT4_SYMMETRIC.scale, precision=_DATA, stored=FLOAT16),
    zero_point=GPTQ_UINT4_SYMMETRIC.zero_point,
    affine=AffineRule(codes=UINT4, scale=ScaleUse.UNROUNDED, precision=_DATA),
    source=_GPTQMODEL,
    versions=_GPTQMODEL_VERSION,
)

_AWQ = "awq/quantize/quantizer.py: pseudo_quantize_tensor"
_AWQ_VERSION = "AutoAWQ 0.2.9"
AWQ_UINT4_ASYMMETRIC: Final = Rule(
    name="AWQ_UINT4_ASYMMETRIC",
    scale=ScaleRule(
        extent=Extent.SPAN,
        denominator=Fraction(15),
        zero_in_range=ZeroInRange.FREE,
        precision=_DATA,
        tiny=extent_at_least(1e-5),
    ),
    zero_point=ZeroPointRule(form=ZeroForm.ROUND_QUOTIENT, lowest=0, highest=15, precision=_DATA),
    affine=AffineRule(codes=UINT4, precision=_DATA),
    source=_AWQ,
    versions=_AWQ_VERSION,
)
AWQ_INT4_SYMMETRIC: Final = Rule(
    name="AWQ_INT4_SYMMETRIC",
    scale=ScaleRule(
        extent=Extent.MAGNITUDE,
        denominator=Fraction(7),
        precision=_DATA,
        tiny=extent_at_least(1e-5),
    ),
    zero_point=ZeroPointRule(lowest=-8, highest=7),
    affine=AffineRule(codes=INT4, precision=_DATA),
    source=_AWQ,
    versions=_AWQ_VERSION,
)
SMOOTHQUANT_INT8: Final = Rule(
    name="SMOOTHQUANT_INT8",
    scale=ScaleRule(
        extent=Extent.MAGNITUDE,
        denominator=Fraction(127),
        precision=_DATA,
        tiny=extent_at_least(1e-5),
    ),
    zero_point=ZeroPointRule(lowest=-127, highest=127),
    affine=AffineRule(codes=INT8, precision=_DATA, clip=Clip.NONE),
    source="smoothquant/fake_quant.py: quantize_weight_per_channel_absmax",
    versions="smoothquant c61476d7 (2024-07-12)",
)

_MODELOPT = "nvidia-modelopt 0.47.0"
# The scale is never stored: codes come from fl(127 / maximum).
MODELOPT_FAKE_INT8: Final = Rule(
    name="MODELOPT_FAKE_INT8",
    scale=ScaleRule(
        extent=Extent.MAGNITUDE,
        denominator=Fraction(127),
        precision=FLOAT64,
        stored=FLOAT64,
        tiny=(
            TinyRange(
                test=TinyTest.EXTENT,
                below=2.0**-24 * (1 + 2.0**-23),
                action=TinyAction.EXTENT,
                value=0.0,
            ),
        ),
    ),
    zero_point=ZeroPointRule(lowest=-127, highest=127),
    affine=AffineRule(
        codes=INT8_NARROW,
        scaling=Scaling.RATIO,
        ratio=Fraction(127),
        zero_divisor=ZeroDivisor.ZERO,
    ),
    source="modelopt/torch/quantization/tensor_quant.py: _tensor_quant, narrow range",
    versions=_MODELOPT,
)
# What is exported is divided by the stored scale and may reach -128: not what was trained with.
MODELOPT_EXPORT_INT8: Final = Rule(
    name="MODELOPT_EXPORT_INT8",
    scale=ScaleRule(extent=Extent.MAGNITUDE, denominator=Fraction(127), stored=FLOAT32),
    zero_point=ZeroPointRule(lowest=-128, highest=127),
    affine=AffineRule(codes=INT8, nan=NotANumber.ZERO),
    source="modelopt/torch/export/quant_utils.py: to_quantized_weight",
    versions=f"{_MODELOPT}, read and not run",
)
# The inverse of the scale is kept, 7 times the reciprocal of the magnitude, as torch divides.
MODELOPT_INT4_TENSOR: Final = Rule(
    name="MODELOPT_INT4_TENSOR",
    scale=ScaleRule(
        extent=Extent.MAGNITUDE, denominator=Fraction(7), precision=FLOAT64, stored=FLOAT64
    ),
    zero_point=ZeroPointRule(fixed=8, lowest=0, highest=15),
    affine=AffineRule(
        codes=UINT4,
        scaling=Scaling.RATIO_OF_RECIPROCAL,
        ratio=Fraction(7),
        precision=_DATA,
        nan=NotANumber.ZERO,
    ),
    source="modelopt/torch/quantization/qtensor/int4_tensor.py: INT4QTensor.quantize",
    versions=f"{_MODELOPT}, without its CUDA extension, read and not run",
)
# The export for int4 AWQ is given the scales that its search has found.
MODELOPT_EXPORT_INT4: Final = Operator(
    name="MODELOPT_EXPORT_INT4",
    affine=AffineRule(codes=INT4),
    source="modelopt/torch/export/quant_utils.py: to_quantized_weight, int4 AWQ",
    versions=f"{_MODELOPT}, read and not run",
)
MODELOPT_ONNX_INT4: Final = Rule(
    name="MODELOPT_ONNX_INT4",
    scale=ScaleRule(extent=Extent.MAGNITUDE, denominator=Fraction(7), tiny=extent_at_least(1e-5)),
    zero_point=ZeroPointRule(lowest=-8, highest=7),
    affine=AffineRule(codes=INT4),
    source="modelopt/onnx/quantization/quant_utils.py: find_scales, rtn",
    versions=_MODELOPT,
)
MODELOPT_ONNX_UINT4: Final = Rule(
    name="MODELOPT_ONNX_UINT4",
    scale=ScaleRule(
        extent=Extent.SPAN,
        denominator=Fraction(15),
        zero_in_range=ZeroInRange.FREE,
        tiny=extent_at_least(1e-5),
    ),
    zero_point=ZeroPointRule(form=ZeroForm.ROUND_QUOTIENT, lowest=0, highest=15),
    affine=AffineRule(codes=UINT4),
    source="modelopt/onnx/quantization/quant_utils.py: find_scales, rtn, use_zero_point",
    versions=_MODELOPT,
)

_QUARK = "amd-quark 0.13"
_QUARK_SOURCE = "quark/torch/quantization/observer: calculate_int_quant_params; real_quantize"
_QUARK_FLOOR = scale_at_least(float(FLOAT32.epsilon))


def _quark_symmetric(name: str, codes: IntegerFormat, order: ZeroOrder) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.MAGNITUDE, denominator=Fraction(codes.steps, 2), tiny=_QUARK_FLOOR
        ),
        zero_point=ZeroPointRule(lowest=codes.minimum, highest=codes.maximum),
        affine=AffineRule(codes=codes, scaling=Scaling.RECIPROCAL, order=order),
        source=_QUARK_SOURCE,
        versions=_QUARK,
    )


def _quark_asymmetric(name: str, codes: IntegerFormat, order: ZeroOrder) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(extent=Extent.SPAN, denominator=Fraction(codes.steps), tiny=_QUARK_FLOOR),
        zero_point=ZeroPointRule(
            form=ZeroForm.ROUND_QUOTIENT, lowest=codes.minimum, highest=codes.maximum
        ),
        affine=AffineRule(codes=codes, scaling=Scaling.RECIPROCAL, order=order),
        source=_QUARK_SOURCE,
        versions=_QUARK,
    )


QUARK_INT8_SYMMETRIC: Final = _quark_symmetric(
    "QUARK_INT8_SYMMETRIC", INT8, ZeroOrder.BEFORE_ROUNDING
)
QUARK_INT4_SYMMETRIC: Final = _quark_symmetric(
    "QUARK_INT4_SYMMETRIC", INT4, ZeroOrder.BEFORE_ROUNDING
)
QUARK_INT8_ASYMMETRIC: Final = _quark_asymmetric(
    "QUARK_INT8_ASYMMETRIC", INT8, ZeroOrder.BEFORE_ROUNDING
)
QUARK_UINT4_ASYMMETRIC: Final = _quark_asymmetric(
    "QUARK_UINT4_ASYMMETRIC", UINT4, ZeroOrder.BEFORE_ROUNDING
)
# Its fake quantization adds the zero point after rounding: one tool, two rules.
QUARK_FAKE_UINT4_ASYMMETRIC: Final = _quark_asymmetric(
    "QUARK_FAKE_UINT4_ASYMMETRIC", UINT4, ZeroOrder.AFTER_ROUNDING
)

# Its ONNX quantizer has ONNX Runtime's formulas, but clips symmetric codes to -127..127.
QUARK_ONNX_INT8_SYMMETRIC: Final = Rule(
    name="QUARK_ONNX_INT8_SYMMETRIC",
    scale=ScaleRule(
        extent=Extent.MAGNITUDE,
        denominator=Fraction(127),
        precision=FLOAT64,
        tiny=(
            TinyRange(
                test=TinyTest.SCALE,
                below=float(FLOAT32.smallest_normal),
                action=TinyAction.SCALE,
                value=1.0,
                zero_point=0,
            ),
        ),
    ),
    zero_point=ZeroPointRule(lowest=-127, highest=127, precision=FLOAT64),
    affine=AffineRule(codes=INT8_NARROW),
    source="quark/onnx: scale and zero point as ONNX Runtime's compute_scale_zp",
    versions=f"{_QUARK}, without power-of-two scales, read and not run",
)

_COREML = "coremltools 9.0"
_COREML_SOURCE = "coremltools/optimize/_utils.py: compute_qparams, quantize_by_scale_and_zp"
_UINT8_SYMMETRIC = IntegerFormat("uint8 narrow", 8, 0, 254)
_UINT4_SYMMETRIC = IntegerFormat("uint4 narrow", 4, 0, 14)
_INT4_SYMMETRIC = IntegerFormat("int4 narrow", 4, -7, 7)


def _coreml_symmetric(name: str, codes: IntegerFormat) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.MAGNITUDE, denominator=Fraction(codes.steps, 2), precision=_DATA
        ),
        zero_point=ZeroPointRule(
            fixed=(codes.minimum + codes.maximum) // 2,
            lowest=codes.minimum,
            highest=codes.maximum,
        ),
        affine=AffineRule(codes=codes, precision=_DATA, nan=NotANumber.ZERO),
        source=_COREML_SOURCE,
        versions=_COREML,
    )


def _coreml_linear(name: str, codes: IntegerFormat) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(extent=Extent.SPAN, denominator=Fraction(codes.steps), precision=_DATA),
        zero_point=ZeroPointRule(
            form=ZeroForm.FROM_ENDS,
            lowest=codes.minimum,
            highest=codes.maximum,
            precision=_DATA,
        ),
        affine=AffineRule(codes=codes, precision=_DATA, nan=NotANumber.ZERO),
        source=_COREML_SOURCE,
        versions=_COREML,
    )


COREMLTOOLS_INT8_SYMMETRIC: Final = _coreml_symmetric("COREMLTOOLS_INT8_SYMMETRIC", INT8_NARROW)
COREMLTOOLS_UINT8_SYMMETRIC: Final = _coreml_symmetric(
    "COREMLTOOLS_UINT8_SYMMETRIC", _UINT8_SYMMETRIC
)
COREMLTOOLS_INT4_SYMMETRIC: Final = _coreml_symmetric("COREMLTOOLS_INT4_SYMMETRIC", _INT4_SYMMETRIC)
COREMLTOOLS_UINT4_SYMMETRIC: Final = _coreml_symmetric(
    "COREMLTOOLS_UINT4_SYMMETRIC", _UINT4_SYMMETRIC
)
COREMLTOOLS_INT8_LINEAR: Final = _coreml_linear("COREMLTOOLS_INT8_LINEAR", INT8)
COREMLTOOLS_UINT8_LINEAR: Final = _coreml_linear("COREMLTOOLS_UINT8_LINEAR", UINT8)
COREMLTOOLS_INT4_LINEAR: Final = _coreml_linear("COREMLTOOLS_INT4_LINEAR", INT4)
COREMLTOOLS_UINT4_LINEAR: Final = _coreml_linear("COREMLTOOLS_UINT4_LINEAR", UINT4)

ENTRIES: Final[tuple[Entry, ...]] = (
    GPTQ_UINT4_ASYMMETRIC,
    GPTQ_UINT4_SYMMETRIC,
    GPTQMODEL_UINT4_ASYMMETRIC,
    GPTQMODEL_UINT4_SYMMETRIC,
    AWQ_UINT4_ASYMMETRIC,
    AWQ_INT4_SYMMETRIC,
    SMOOTHQUANT_INT8,
    MODELOPT_FAKE_INT8,
    MODELOPT_EXPORT_INT8,
    MODELOPT_INT4_TENSOR,
    MODELOPT_EXPORT_INT4,
    MODELOPT_ONNX_INT4,
    MODELOPT_ONNX_UINT4,
    QUARK_INT8_SYMMETRIC,
    QUARK_INT4_SYMMETRIC,
    QUARK_INT8_ASYMMETRIC,
    QUARK_UINT4_ASYMMETRIC,
    QUARK_FAKE_UINT4_ASYMMETRIC,
    QUARK_ONNX_INT8_SYMMETRIC,
    COREMLTOOLS_INT8_SYMMETRIC,
    COREMLTOOLS_UINT8_SYMMETRIC,
    COREMLTOOLS_INT4_SYMMETRIC,
    COREMLTOOLS_UINT4_SYMMETRIC,
    COREMLTOOLS_INT8_LINEAR,
    COREMLTOOLS_UINT8_LINEAR,
    COREMLTOOLS_INT4_LINEAR,
    COREMLTOOLS_UINT4_LINEAR,
)
