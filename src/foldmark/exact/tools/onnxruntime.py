"""ONNX Runtime: the Python quantizers, the kernels, and the block quantizers of MatMulNBits."""

from fractions import Fraction
from typing import Final

from foldmark.exact.catalog import (
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT4,
    INT8,
    INT16,
    INT32,
    UINT2,
    UINT4,
    UINT8,
    UINT16,
)
from foldmark.exact.number import IntegerFormat
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import (
    AffineRule,
    DataType,
    Extent,
    Infinity,
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
from foldmark.exact.tools.tiny import EXACTLY_ZERO, zero_extent

__all__ = ["ENTRIES"]

_VERSION = "onnxruntime 1.32.0"
_QUANT_UTILS = "onnxruntime/quantization/quant_utils.py: compute_scale_zp, quantize_nparray"
_SMALLEST_NORMAL = float(FLOAT32.smallest_normal)

# Scales below the smallest normal float32 become 1 with zero point 0, also for symmetric uint8.
_TINY_IS_ONE = TinyRange(
    test=TinyTest.SCALE,
    below=_SMALLEST_NORMAL,
    action=TinyAction.SCALE,
    value=1.0,
    zero_point=0,
)


def _symmetric_weight(
    name: str, codes: IntegerFormat, denominator: Fraction, zero_point: int
) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.MAGNITUDE,
            denominator=denominator,
            precision=FLOAT64,
            tiny=(_TINY_IS_ONE,),
        ),
        zero_point=ZeroPointRule(
            fixed=zero_point, lowest=codes.minimum, highest=codes.maximum, precision=FLOAT64
        ),
        affine=AffineRule(codes=codes),
        source=_QUANT_UTILS,
        versions=_VERSION,
    )


def _asymmetric_weight(name: str, codes: IntegerFormat, lowest: int, highest: int) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.SPAN,
            denominator=Fraction(highest - lowest),
            precision=FLOAT64,
            tiny=(_TINY_IS_ONE,),
        ),
        zero_point=ZeroPointRule(
            form=ZeroForm.ROUND_DIFFERENCE,
            lowest=lowest,
            highest=highest,
            scale=ScaleUse.UNROUNDED,
            precision=FLOAT64,
        ),
        affine=AffineRule(codes=codes),
        source=_QUANT_UTILS,
        versions=_VERSION,
    )


ONNXRUNTIME_WEIGHT_INT8: Final = _symmetric_weight(
    "ONNXRUNTIME_WEIGHT_INT8", INT8, Fraction(127), 0
)
ONNXRUNTIME_WEIGHT_INT8_ASYMMETRIC: Final = _asymmetric_weight(
    "ONNXRUNTIME_WEIGHT_INT8_ASYMMETRIC", INT8, -128, 127
)
# reduce_range shrinks what the scale is divided by; codes are still clipped to the full type.
ONNXRUNTIME_WEIGHT_INT8_REDUCED: Final = _symmetric_weight(
    "ONNXRUNTIME_WEIGHT_INT8_REDUCED", INT8, Fraction(64), 0
)
ONNXRUNTIME_WEIGHT_UINT8: Final = _asymmetric_weight("ONNXRUNTIME_WEIGHT_UINT8", UINT8, 0, 255)
ONNXRUNTIME_WEIGHT_UINT8_REDUCED: Final = _asymmetric_weight(
    "ONNXRUNTIME_WEIGHT_UINT8_REDUCED", UINT8, 0, 127
)
ONNXRUNTIME_WEIGHT_UINT8_SYMMETRIC: Final = _symmetric_weight(
    "ONNXRUNTIME_WEIGHT_UINT8_SYMMETRIC", UINT8, Fraction(255, 2), 128
)
ONNXRUNTIME_WEIGHT_INT16: Final = _symmetric_weight(
    "ONNXRUNTIME_WEIGHT_INT16", INT16, Fraction(32767), 0
)
ONNXRUNTIME_WEIGHT_UINT16: Final = _asymmetric_weight("ONNXRUNTIME_WEIGHT_UINT16", UINT16, 0, 65535)
# Symmetric int4 keeps the code -8, so the magnitude is divided by 7.5.
ONNXRUNTIME_WEIGHT_INT4: Final = _symmetric_weight(
    "ONNXRUNTIME_WEIGHT_INT4", INT4, Fraction(15, 2), 0
)
ONNXRUNTIME_WEIGHT_UINT4: Final = _asymmetric_weight("ONNXRUNTIME_WEIGHT_UINT4", UINT4, 0, 15)

# The other reduced ranges: reduced symmetric uint8 has its zero point at 64.
ONNXRUNTIME_WEIGHT_INT8_ASYMMETRIC_REDUCED: Final = _asymmetric_weight(
    "ONNXRUNTIME_WEIGHT_INT8_ASYMMETRIC_REDUCED", INT8, -64, 64
)
ONNXRUNTIME_WEIGHT_UINT8_SYMMETRIC_REDUCED: Final = _symmetric_weight(
    "ONNXRUNTIME_WEIGHT_UINT8_SYMMETRIC_REDUCED", UINT8, Fraction(127, 2), 64
)
ONNXRUNTIME_WEIGHT_INT16_REDUCED: Final = _symmetric_weight(
    "ONNXRUNTIME_WEIGHT_INT16_REDUCED", INT16, Fraction(16384), 0
)
ONNXRUNTIME_WEIGHT_UINT16_REDUCED: Final = _asymmetric_weight(
    "ONNXRUNTIME_WEIGHT_UINT16_REDUCED", UINT16, 0, 32767
)
ONNXRUNTIME_WEIGHT_INT4_REDUCED: Final = _symmetric_weight(
    "ONNXRUNTIME_WEIGHT_INT4_REDUCED", INT4, Fraction(7, 2), 0
)
ONNXRUNTIME_WEIGHT_UINT4_REDUCED: Final = _asymmetric_weight(
    "ONNXRUNTIME_WEIGHT_UINT4_REDUCED", UINT4, 0, 7
)

# Blocks of a weight (BlockSize) divide by the stored scale for the zero point too.
ONNXRUNTIME_WEIGHT_BLOCKS_UINT4: Final = Rule(
    name="ONNXRUNTIME_WEIGHT_BLOCKS_UINT4",
    scale=ScaleRule(
        extent=Extent.SPAN,
        denominator=Fraction(15),
        precision=FLOAT64,
        extent_precision=DataType.DATA,
        tiny=(_TINY_IS_ONE,),
    ),
    zero_point=ZeroPointRule(
        form=ZeroForm.ROUND_DIFFERENCE, lowest=0, highest=15, precision=FLOAT64
    ),
    affine=AffineRule(codes=UINT4),
    source="onnxruntime/quantization/quant_utils.py: compute_scale_zp_blocked; float32 weights",
    versions=_VERSION,
)

_SNAP = "onnxruntime/quantization/quant_utils.py: snap_zero_point_to_uint8"
# ActivationRestrictedAsymmetric has two zero points: the middle if a value is negative, else 0.
ONNXRUNTIME_RESTRICTED_UINT8: Final = Rule(
    name="ONNXRUNTIME_RESTRICTED_UINT8",
    scale=ScaleRule(
        extent=Extent.LARGER_SIDE,
        denominator=Fraction(127),
        denominator_below=Fraction(128),
        precision=FLOAT64,
        stored=FLOAT32,
    ),
    zero_point=ZeroPointRule(fixed=128, lowest=0, highest=255),
    affine=AffineRule(codes=UINT8, nan=NotANumber.LOWEST, infinity=Infinity.SATURATE),
    source=f"{_SNAP}, a range with negative values; codes by QuantizeLinear",
    versions=_VERSION,
)
ONNXRUNTIME_RESTRICTED_UINT8_NONNEGATIVE: Final = Rule(
    name="ONNXRUNTIME_RESTRICTED_UINT8_NONNEGATIVE",
    scale=ScaleRule(
        extent=Extent.MAGNITUDE,
        denominator=Fraction(255),
        precision=FLOAT64,
        stored=FLOAT32,
        tiny=zero_extent(TinyAction.EXTENT, 1.0),
    ),
    zero_point=ZeroPointRule(lowest=0, highest=255),
    affine=AffineRule(codes=UINT8, nan=NotANumber.LOWEST, infinity=Infinity.SATURATE),
    source=f"{_SNAP}, a range without negative values; codes by QuantizeLinear",
    versions=_VERSION,
)

# For float16 weights the scale becomes 1 only where its float16 value would be zero.
ONNXRUNTIME_WEIGHT_INT8_FLOAT16: Final = Rule(
    name="ONNXRUNTIME_WEIGHT_INT8_FLOAT16",
    scale=ScaleRule(
        extent=Extent.MAGNITUDE,
        denominator=Fraction(127),
        precision=FLOAT64,
        stored=FLOAT16,
        tiny=(
            TinyRange(
                test=TinyTest.SCALE,
                below=2.0**-25 * (1 + 2.0**-52),
                action=TinyAction.SCALE,
                value=1.0,
                zero_point=0,
            ),
        ),
    ),
    zero_point=ZeroPointRule(lowest=-128, highest=127, precision=FLOAT64),
    affine=AffineRule(codes=INT8),
    source=_QUANT_UTILS,
    versions=_VERSION,
)


def _activation_of_matmul(name: str, rounding: Rounding) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(extent=Extent.MAGNITUDE, denominator=Fraction(127), stored=FLOAT32),
        zero_point=ZeroPointRule(lowest=-128, highest=127),
        affine=AffineRule(
            codes=INT8,
            scaling=Scaling.RATIO,
            ratio=Fraction(127),
            rounding=rounding,
            zero_divisor=ZeroDivisor.ZERO,
        ),
        source="core/mlas/lib/sqnbitgemm_kernel_*.h: QuantizeARow, accuracy level 4",
        versions=f"{_VERSION}, read and not run",
    )


# What MatMulNBits does to activations differs between CPUs: ties to even by AVX, away by NEON.
ONNXRUNTIME_MATMULNBITS_ACTIVATION_X86: Final = _activation_of_matmul(
    "ONNXRUNTIME_MATMULNBITS_ACTIVATION_X86", Rounding.HALF_EVEN
)
ONNXRUNTIME_MATMULNBITS_ACTIVATION_ARM: Final = _activation_of_matmul(
    "ONNXRUNTIME_MATMULNBITS_ACTIVATION_ARM", Rounding.HALF_AWAY
)

ONNXRUNTIME_DYNAMIC_UINT8: Final = Rule(
    name="ONNXRUNTIME_DYNAMIC_UINT8",
    scale=ScaleRule(
        extent=Extent.SPAN,
        denominator=Fraction(255),
        stored=FLOAT32,
        tiny=zero_extent(TinyAction.SCALE, 1.0, zero_point=0),
    ),
    zero_point=ZeroPointRule(form=ZeroForm.ROUND_DIFFERENCE, lowest=0, highest=255),
    affine=AffineRule(codes=UINT8, nan=NotANumber.LOWEST, infinity=Infinity.SATURATE),
    source="core/util/qmath.h, providers/cpu/quantization/dynamicquantizelinear.cc",
    versions=_VERSION,
)


def _quantize_linear(codes: IntegerFormat) -> Operator:
    return Operator(
        name=f"ONNXRUNTIME_QUANTIZELINEAR_{codes.name.upper()}",
        affine=AffineRule(codes=codes, nan=NotANumber.LOWEST, infinity=Infinity.SATURATE),
        source="core/mlas/lib/quantize.cpp; ONNX operator QuantizeLinear",
        versions=_VERSION,
    )


ONNXRUNTIME_QUANTIZELINEAR_INT8: Final = _quantize_linear(INT8)
ONNXRUNTIME_QUANTIZELINEAR_UINT8: Final = _quantize_linear(UINT8)
ONNXRUNTIME_QUANTIZELINEAR_INT16: Final = _quantize_linear(INT16)
ONNXRUNTIME_QUANTIZELINEAR_UINT16: Final = _quantize_linear(UINT16)
ONNXRUNTIME_QUANTIZELINEAR_INT4: Final = _quantize_linear(INT4)
ONNXRUNTIME_QUANTIZELINEAR_UINT4: Final = _quantize_linear(UINT4)

# Until 1.29 float16 input was divided in float32 and cast to an integer without being rounded.
ONNXRUNTIME_1_29_QUANTIZELINEAR_INT8_FLOAT16: Final = Operator(
    name="ONNXRUNTIME_1_29_QUANTIZELINEAR_INT8_FLOAT16",
    affine=AffineRule(codes=INT8, rounding=Rounding.TOWARD_ZERO),
    source="core/providers/cpu/quantization/quantize_linear.cc",
    versions="onnxruntime 1.20 to 1.29",
)

# A bias is divided by the product of its input's and its weight's scales.
ONNXRUNTIME_BIAS_INT32: Final = Operator(
    name="ONNXRUNTIME_BIAS_INT32",
    affine=AffineRule(codes=INT32, precision=FLOAT64),
    source="onnxruntime/quantization/base_quantizer.py: quantize_bias_static_impl",
    versions=f"{_VERSION}, read and not run",
)

# The operator's reference in Python goes through int32 before it clips: not an oracle.
ONNX_REFERENCE_QUANTIZELINEAR_INT8: Final = Operator(
    name="ONNX_REFERENCE_QUANTIZELINEAR_INT8",
    affine=AffineRule(codes=INT8, nan=NotANumber.LOWEST, infinity=Infinity.CAST_TO_INT32),
    source="onnx/reference/ops/op_quantize_linear.py",
    versions="onnx 1.23.2",
)

_Q4_DQ = "core/mlas/lib/q4_dq.cpp"


def _mlas_asymmetric(name: str, codes: IntegerFormat, order: ZeroOrder) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(extent=Extent.SPAN, denominator=Fraction(codes.steps)),
        zero_point=ZeroPointRule(
            form=ZeroForm.ROUND_DIFFERENCE,
            lowest=codes.minimum,
            highest=codes.maximum,
            scale=ScaleUse.UNROUNDED,
            rounding=Rounding.HALF_AWAY,
        ),
        affine=AffineRule(
            codes=codes,
            scaling=Scaling.RECIPROCAL,
            order=order,
            rounding=Rounding.HALF_AWAY,
            zero_divisor=ZeroDivisor.ZERO,
        ),
        source=_Q4_DQ,
        versions=_VERSION,
    )


def _mlas_symmetric(name: str, codes: IntegerFormat, middle: int, order: ZeroOrder) -> Rule:
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.SIGNED_MAGNITUDE, denominator=Fraction(1 << (codes.bits - 1))
        ),
        zero_point=ZeroPointRule(fixed=middle, lowest=codes.minimum, highest=codes.maximum),
        affine=AffineRule(
            codes=codes,
            scaling=Scaling.RECIPROCAL,
            order=order,
            rounding=Rounding.HALF_AWAY,
            zero_divisor=ZeroDivisor.ZERO,
        ),
        source=_Q4_DQ,
        versions=_VERSION,
    )


ONNXRUNTIME_MATMULNBITS_4_ASYMMETRIC: Final = _mlas_asymmetric(
    "ONNXRUNTIME_MATMULNBITS_4_ASYMMETRIC", UINT4, ZeroOrder.BEFORE_ROUNDING
)
ONNXRUNTIME_MATMULNBITS_2_ASYMMETRIC: Final = _mlas_asymmetric(
    "ONNXRUNTIME_MATMULNBITS_2_ASYMMETRIC", UINT2, ZeroOrder.BEFORE_ROUNDING
)
ONNXRUNTIME_MATMULNBITS_2_SYMMETRIC: Final = _mlas_symmetric(
    "ONNXRUNTIME_MATMULNBITS_2_SYMMETRIC", UINT2, 2, ZeroOrder.BEFORE_ROUNDING
)
ONNXRUNTIME_MATMULNBITS_8_ASYMMETRIC: Final = _mlas_asymmetric(
    "ONNXRUNTIME_MATMULNBITS_8_ASYMMETRIC", UINT8, ZeroOrder.BEFORE_ROUNDING
)
ONNXRUNTIME_MATMULNBITS_4_SYMMETRIC: Final = _mlas_symmetric(
    "ONNXRUNTIME_MATMULNBITS_4_SYMMETRIC", UINT4, 8, ZeroOrder.BEFORE_ROUNDING
)
ONNXRUNTIME_MATMULNBITS_8_SYMMETRIC: Final = _mlas_symmetric(
    "ONNXRUNTIME_MATMULNBITS_8_SYMMETRIC", UINT8, 128, ZeroOrder.BEFORE_ROUNDING
)
ONNXRUNTIME_BLOCK_QDQ_4_ASYMMETRIC: Final = _mlas_asymmetric(
    "ONNXRUNTIME_BLOCK_QDQ_4_ASYMMETRIC", UINT4, ZeroOrder.AFTER_ROUNDING
)
ONNXRUNTIME_BLOCK_QDQ_4_SYMMETRIC: Final = _mlas_symmetric(
    "ONNXRUNTIME_BLOCK_QDQ_4_SYMMETRIC", INT4, 0, ZeroOrder.AFTER_ROUNDING
)

_GATHER = "quantization/matmul_nbits_quantizer.py: quant_slice_symmetric, quant_slice_asymmetric"
ONNXRUNTIME_GATHER_4_SYMMETRIC: Final = Rule(
    name="ONNXRUNTIME_GATHER_4_SYMMETRIC",
    scale=ScaleRule(extent=Extent.SIGNED_MAGNITUDE, denominator=Fraction(8)),
    zero_point=ZeroPointRule(lowest=-8, highest=7),
    affine=AffineRule(codes=INT4, zero_divisor=ZeroDivisor.ZERO),
    source=_GATHER,
    versions=_VERSION,
)
ONNXRUNTIME_GATHER_4_ASYMMETRIC: Final = Rule(
    name="ONNXRUNTIME_GATHER_4_ASYMMETRIC",
    scale=ScaleRule(
        extent=Extent.SPAN,
        denominator=Fraction(15),
        tiny=(
            TinyRange(
                test=TinyTest.SCALE,
                below=EXACTLY_ZERO,
                action=TinyAction.SCALE,
                value=0.0,
                zero_point=8,
            ),
        ),
    ),
    zero_point=ZeroPointRule(form=ZeroForm.ROUND_DIFFERENCE, lowest=0, highest=15),
    affine=AffineRule(codes=UINT4, order=ZeroOrder.BEFORE_ROUNDING, zero_divisor=ZeroDivisor.ZERO),
    source=_GATHER,
    versions=_VERSION,
)

_WEIGHT_ONLY = "quantization/neural_compressor/weight_only.py: quant_tensor"
ONNXRUNTIME_RTN_4_SYMMETRIC: Final = Rule(
    name="ONNXRUNTIME_RTN_4_SYMMETRIC",
    scale=ScaleRule(
        extent=Extent.MAGNITUDE,
        denominator=Fraction(15, 2),
        precision=FLOAT64,
        tiny=zero_extent(TinyAction.SCALE, 1.0),
    ),
    zero_point=ZeroPointRule(fixed=8, lowest=0, highest=15, precision=FLOAT64),
    affine=AffineRule(
        codes=UINT4,
        scale=ScaleUse.UNROUNDED,
        order=ZeroOrder.BEFORE_ROUNDING,
        precision=FLOAT64,
    ),
    source=_WEIGHT_ONLY,
    versions=_VERSION,
)
ONNXRUNTIME_RTN_4_ASYMMETRIC: Final = Rule(
    name="ONNXRUNTIME_RTN_4_ASYMMETRIC",
    scale=ScaleRule(
        extent=Extent.SPAN,
        denominator=Fraction(15),
        zero_in_range=ZeroInRange.FREE,
        precision=FLOAT64,
        extent_precision=FLOAT32,
        tiny=zero_extent(TinyAction.SCALE, 1.0, zero_point=0),
    ),
    zero_point=ZeroPointRule(
        form=ZeroForm.ROUND_DIFFERENCE,
        lowest=0,
        highest=15,
        scale=ScaleUse.UNROUNDED,
        precision=FLOAT64,
    ),
    affine=AffineRule(
        codes=UINT4,
        scale=ScaleUse.UNROUNDED,
        order=ZeroOrder.BEFORE_ROUNDING,
        precision=FLOAT64,
    ),
    source=_WEIGHT_ONLY,
    versions=_VERSION,
)

ENTRIES: Final[tuple[Entry, ...]] = (
    ONNXRUNTIME_WEIGHT_INT8,
    ONNXRUNTIME_WEIGHT_INT8_ASYMMETRIC,
    ONNXRUNTIME_WEIGHT_INT8_REDUCED,
    ONNXRUNTIME_WEIGHT_UINT8,
    ONNXRUNTIME_WEIGHT_UINT8_REDUCED,
    ONNXRUNTIME_WEIGHT_UINT8_SYMMETRIC,
    ONNXRUNTIME_WEIGHT_INT16,
    ONNXRUNTIME_WEIGHT_UINT16,
    ONNXRUNTIME_WEIGHT_INT4,
    ONNXRUNTIME_WEIGHT_UINT4,
    ONNXRUNTIME_WEIGHT_INT8_FLOAT16,
    ONNXRUNTIME_WEIGHT_INT8_ASYMMETRIC_REDUCED,
    ONNXRUNTIME_WEIGHT_UINT8_SYMMETRIC_REDUCED,
    ONNXRUNTIME_WEIGHT_INT16_REDUCED,
    ONNXRUNTIME_WEIGHT_UINT16_REDUCED,
    ONNXRUNTIME_WEIGHT_INT4_REDUCED,
    ONNXRUNTIME_WEIGHT_UINT4_REDUCED,
    ONNXRUNTIME_WEIGHT_BLOCKS_UINT4,
    ONNXRUNTIME_RESTRICTED_UINT8,
    ONNXRUNTIME_RESTRICTED_UINT8_NONNEGATIVE,
    ONNXRUNTIME_BIAS_INT32,
    ONNXRUNTIME_MATMULNBITS_ACTIVATION_X86,
    ONNXRUNTIME_MATMULNBITS_ACTIVATION_ARM,
    ONNXRUNTIME_DYNAMIC_UINT8,
    ONNXRUNTIME_QUANTIZELINEAR_INT8,
    ONNXRUNTIME_QUANTIZELINEAR_UINT8,
    ONNXRUNTIME_QUANTIZELINEAR_INT16,
    ONNXRUNTIME_QUANTIZELINEAR_UINT16,
    ONNXRUNTIME_QUANTIZELINEAR_INT4,
    ONNXRUNTIME_QUANTIZELINEAR_UINT4,
    ONNXRUNTIME_1_29_QUANTIZELINEAR_INT8_FLOAT16,
    ONNX_REFERENCE_QUANTIZELINEAR_INT8,
    ONNXRUNTIME_MATMULNBITS_4_ASYMMETRIC,
    ONNXRUNTIME_MATMULNBITS_4_SYMMETRIC,
    ONNXRUNTIME_MATMULNBITS_2_ASYMMETRIC,
    ONNXRUNTIME_MATMULNBITS_2_SYMMETRIC,
    ONNXRUNTIME_MATMULNBITS_8_ASYMMETRIC,
    ONNXRUNTIME_MATMULNBITS_8_SYMMETRIC,
    ONNXRUNTIME_BLOCK_QDQ_4_ASYMMETRIC,
    ONNXRUNTIME_BLOCK_QDQ_4_SYMMETRIC,
    ONNXRUNTIME_GATHER_4_ASYMMETRIC,
    ONNXRUNTIME_GATHER_4_SYMMETRIC,
    ONNXRUNTIME_RTN_4_ASYMMETRIC,
    ONNXRUNTIME_RTN_4_SYMMETRIC,
)
