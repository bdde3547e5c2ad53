"""TensorFlow Lite, gemmlowp and the AI Edge Quantizer."""

from dataclasses import replace
from fractions import Fraction
from typing import Final

from foldmark.exact.catalog import BFLOAT16, FLOAT32, FLOAT64, INT4, INT8, INT8_NARROW, UINT8
from foldmark.exact.number import IntegerFormat
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import (
    AffineRule,
    Extent,
    Rule,
    ScaleRule,
    ScaleUse,
    Scaling,
    TinyAction,
    ZeroDivisor,
    ZeroForm,
    ZeroOrder,
    ZeroPointRule,
)
from foldmark.exact.tools.entry import Entry, Operator
from foldmark.exact.tools.tiny import extent_at_least, zero_extent

__all__ = ["ENTRIES"]

_TFLITE = "tflite-micro 90b983c2 (2026-08-20)"

TFLITE_HYBRID_INT8_SYMMETRIC: Final = Rule(
    name="TFLITE_HYBRID_INT8_SYMMETRIC",
    scale=ScaleRule(
        extent=Extent.MAGNITUDE,
        denominator=Fraction(127),
        stored=FLOAT32,
        tiny=zero_extent(TinyAction.SCALE, 1.0),
    ),
    zero_point=ZeroPointRule(lowest=-127, highest=127),
    affine=AffineRule(
        codes=INT8_NARROW,
        scaling=Scaling.RATIO,
        ratio=Fraction(127),
        rounding=Rounding.HALF_AWAY,
        zero_divisor=ZeroDivisor.ZERO,
    ),
    source="tflite/kernels/internal/portable_tensor_utils: PortableSymmetricQuantizeFloats",
    versions=_TFLITE,
)
TFLITE_HYBRID_INT8_ASYMMETRIC: Final = Rule(
    name="TFLITE_HYBRID_INT8_ASYMMETRIC",
    scale=ScaleRule(
        extent=Extent.SPAN,
        denominator=Fraction(255),
        precision=FLOAT64,
        stored=FLOAT32,
        tiny=zero_extent(TinyAction.SCALE, 1.0, zero_point=0),
    ),
    zero_point=ZeroPointRule(
        form=ZeroForm.SMALLER_ERROR,
        lowest=-128,
        highest=127,
        scale=ScaleUse.UNROUNDED,
        precision=FLOAT64,
        rounding=Rounding.HALF_AWAY,
    ),
    affine=AffineRule(
        codes=INT8,
        scaling=Scaling.RECIPROCAL,
        order=ZeroOrder.BEFORE_ROUNDING,
        rounding=Rounding.HALF_AWAY,
    ),
    source="tflite/kernels/internal/portable_tensor_utils: PortableAsymmetricQuantizeFloats",
    versions=_TFLITE,
)
TFLITE_CONVERTER_WEIGHT_INT8: Final = Rule(
    name="TFLITE_CONVERTER_WEIGHT_INT8",
    scale=ScaleRule(extent=Extent.MAGNITUDE, denominator=Fraction(127), stored=FLOAT32),
    zero_point=ZeroPointRule(lowest=-127, highest=127),
    affine=AffineRule(
        codes=INT8_NARROW,
        scaling=Scaling.RATIO,
        ratio=Fraction(127),
        rounding=Rounding.HALF_AWAY,
        zero_divisor=ZeroDivisor.ZERO,
    ),
    source="tensorflow/lite/tools/optimize/quantization_utils.cc: SymmetricPerChannelQuantization",
    versions="tensorflow 0004ac98, read and not run",
)
# What the converter does to a constant per channel since it is written in MLIR. Channels of a layer
# with a bias may get a larger scale afterwards, so that the bias fits its 32 bits.
TFLITE_MLIR_WEIGHT_INT8: Final = Rule(
    name="TFLITE_MLIR_WEIGHT_INT8",
    scale=ScaleRule(
        extent=Extent.MAGNITUDE,
        denominator=Fraction(127),
        stored=FLOAT32,
        tiny=extent_at_least(5e-7),
    ),
    zero_point=ZeroPointRule(lowest=-127, highest=127),
    affine=AffineRule(codes=INT8_NARROW, scaling=Scaling.RECIPROCAL, rounding=Rounding.HALF_AWAY),
    source="tensorflow/compiler/mlir/quantization/common/quantization_lib/quantization_utils.cc: "
    "ExpandVerySmallRange, QuantizeLegacy",
    versions="tensorflow 2.21.0",
)
TFLITE_CONVERTER_ACTIVATION_INT8: Final = Rule(
    name="TFLITE_CONVERTER_ACTIVATION_INT8",
    scale=ScaleRule(extent=Extent.SPAN, denominator=Fraction(255), stored=FLOAT32),
    zero_point=ZeroPointRule(
        form=ZeroForm.ROUND_DIFFERENCE, lowest=-128, highest=127, rounding=Rounding.HALF_AWAY
    ),
    affine=AffineRule(codes=INT8, rounding=Rounding.HALF_AWAY, zero_divisor=ZeroDivisor.ZERO),
    source="tensorflow/lite/tools/optimize/quantization_utils.cc; codes by the QUANTIZE operator",
    versions="tensorflow 0004ac98, read and not run",
)
TFLITE_QUANTIZE_REFERENCE_INT8: Final = Operator(
    name="TFLITE_QUANTIZE_REFERENCE_INT8",
    affine=AffineRule(codes=INT8, rounding=Rounding.HALF_AWAY),
    source="tflite/kernels/internal/reference/quantize.h: AffineQuantize",
    versions="LiteRT f6745779 (2026-08-21), read and not run",
)
TFLITE_QUANTIZE_OPTIMIZED_INT8: Final = Operator(
    name="TFLITE_QUANTIZE_OPTIMIZED_INT8",
    affine=AffineRule(codes=INT8, rounding=Rounding.HALF_AWAY, precision=FLOAT64),
    source="tflite/kernels/internal/optimized/optimized_ops.h: AffineQuantize, no NEON",
    versions="LiteRT f6745779 (2026-08-21), read and not run",
)
TFLITE_QUANTIZE_ARM64_INT8: Final = Operator(
    name="TFLITE_QUANTIZE_ARM64_INT8",
    affine=AffineRule(codes=INT8, scaling=Scaling.RECIPROCAL),
    source="tflite/kernels/internal/optimized/optimized_ops.h: AffineQuantize, RoundToNearest",
    versions="LiteRT f6745779 (2026-08-21), 64-bit ARM, read and not run",
)
GEMMLOWP_EXAMPLE_UINT8: Final = Rule(
    name="GEMMLOWP_EXAMPLE_UINT8",
    scale=ScaleRule(
        extent=Extent.SPAN, denominator=Fraction(255), precision=FLOAT64, stored=FLOAT32
    ),
    zero_point=ZeroPointRule(
        form=ZeroForm.ROUND_DIFFERENCE,
        lowest=0,
        highest=255,
        scale=ScaleUse.UNROUNDED,
        precision=FLOAT64,
        rounding=Rounding.HALF_AWAY,
    ),
    affine=AffineRule(codes=UINT8, order=ZeroOrder.BEFORE_ROUNDING, rounding=Rounding.HALF_AWAY),
    source="gemmlowp/doc/quantization_example.cc",
    versions="gemmlowp 16e8662c, read and not run",
)

_AI_EDGE = "ai-edge-quantizer 0.10.0"
_UNIFORM = "ai_edge_quantizer/algorithms/uniform_quantize/uniform_quantize_tensor.py"


def _ai_edge_symmetric(name: str, codes: IntegerFormat) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.MAGNITUDE,
            denominator=Fraction(codes.maximum),
            stored=FLOAT32,
            tiny=extent_at_least(1e-9),
        ),
        zero_point=ZeroPointRule(lowest=codes.minimum, highest=codes.maximum),
        affine=AffineRule(codes=codes, order=ZeroOrder.BEFORE_ROUNDING),
        source=_UNIFORM,
        versions=_AI_EDGE,
    )


def _ai_edge_asymmetric(name: str, codes: IntegerFormat) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.SPAN,
            denominator=Fraction(codes.steps),
            stored=FLOAT32,
            tiny=extent_at_least(1e-9),
        ),
        zero_point=ZeroPointRule(
            form=ZeroForm.ROUND_DIFFERENCE, lowest=codes.minimum, highest=codes.maximum
        ),
        affine=AffineRule(codes=codes, order=ZeroOrder.BEFORE_ROUNDING),
        source=_UNIFORM,
        versions=_AI_EDGE,
    )


AI_EDGE_INT8_SYMMETRIC: Final = _ai_edge_symmetric("AI_EDGE_INT8_SYMMETRIC", INT8_NARROW)
# Only eight bits and more are clipped narrowly; int4 divides by 7 and keeps the code -8.
AI_EDGE_INT4_SYMMETRIC: Final = _ai_edge_symmetric("AI_EDGE_INT4_SYMMETRIC", INT4)
AI_EDGE_INT8_ASYMMETRIC: Final = _ai_edge_asymmetric("AI_EDGE_INT8_ASYMMETRIC", INT8)
AI_EDGE_INT4_ASYMMETRIC: Final = _ai_edge_asymmetric("AI_EDGE_INT4_ASYMMETRIC", INT4)

# Blocks keep their scale in bfloat16 (and that in float16, which holds it from 2^-17 to 65504).
AI_EDGE_INT4_BLOCKS: Final = Rule(
    name="AI_EDGE_INT4_BLOCKS",
    scale=replace(AI_EDGE_INT4_SYMMETRIC.scale, stored=BFLOAT16),
    zero_point=AI_EDGE_INT4_SYMMETRIC.zero_point,
    affine=AI_EDGE_INT4_SYMMETRIC.affine,
    source=f"{_UNIFORM}, blockwise",
    versions=f"{_AI_EDGE}, scales of 2^-17 to 65504, read and not run",
)

ENTRIES: Final[tuple[Entry, ...]] = (
    TFLITE_HYBRID_INT8_SYMMETRIC,
    TFLITE_HYBRID_INT8_ASYMMETRIC,
    TFLITE_CONVERTER_WEIGHT_INT8,
    TFLITE_MLIR_WEIGHT_INT8,
    TFLITE_CONVERTER_ACTIVATION_INT8,
    TFLITE_QUANTIZE_REFERENCE_INT8,
    TFLITE_QUANTIZE_OPTIMIZED_INT8,
    TFLITE_QUANTIZE_ARM64_INT8,
    GEMMLOWP_EXAMPLE_UINT8,
    AI_EDGE_INT8_SYMMETRIC,
    AI_EDGE_INT4_SYMMETRIC,
    AI_EDGE_INT8_ASYMMETRIC,
    AI_EDGE_INT4_ASYMMETRIC,
    AI_EDGE_INT4_BLOCKS,
)
