"""PyTorch: observers, quantize_per_tensor and per_channel by version, fake and dynamic."""

from fractions import Fraction
from typing import Final

from foldmark.exact.catalog import FLOAT32, FLOAT64, INT8, UINT8
from foldmark.exact.number import IntegerFormat
from foldmark.exact.rule import (
    AffineRule,
    Extent,
    Infinity,
    NotANumber,
    Rule,
    ScaleRule,
    Scaling,
    TinyAction,
    TinyRange,
    TinyTest,
    ZeroForm,
    ZeroOrder,
    ZeroPointRule,
)
from foldmark.exact.tools.entry import Entry, Operator
from foldmark.exact.tools.tiny import scale_at_least

__all__ = ["ENTRIES"]

_VERSION = "torch 2.13.0"
_NATIVE = "aten/src/ATen/native/quantized/cpu/kernels/QuantizedOpKernels.cpp; fbgemm QuantUtils.h"
_EPSILON = float(FLOAT32.epsilon)


def _per_tensor(codes: IntegerFormat, order: ZeroOrder, nan: NotANumber) -> AffineRule:
    return AffineRule(
        codes=codes,
        scaling=Scaling.RECIPROCAL,
        order=order,
        nan=nan,
        infinity=Infinity.SATURATE,
    )


def _operator(
    name: str, codes: IntegerFormat, order: ZeroOrder, nan: NotANumber, versions: str
) -> Operator:
    return Operator(
        name=name, affine=_per_tensor(codes, order, nan), source=_NATIVE, versions=versions
    )


# 2.13 adds the zero point before rounding: per tensor in a fused multiply-add, per channel in an
# addition of its own. 2.12 and 2.14 add it after rounding.
TORCH_2_13_PER_TENSOR_INT8: Final = _operator(
    "TORCH_2_13_PER_TENSOR_INT8", INT8, ZeroOrder.FUSED, NotANumber.HIGHEST, _VERSION
)
TORCH_2_13_PER_TENSOR_UINT8: Final = _operator(
    "TORCH_2_13_PER_TENSOR_UINT8", UINT8, ZeroOrder.FUSED, NotANumber.HIGHEST, _VERSION
)
TORCH_2_13_PER_CHANNEL_INT8: Final = _operator(
    "TORCH_2_13_PER_CHANNEL_INT8", INT8, ZeroOrder.BEFORE_ROUNDING, NotANumber.ZERO, _VERSION
)
TORCH_2_13_PER_CHANNEL_UINT8: Final = _operator(
    "TORCH_2_13_PER_CHANNEL_UINT8", UINT8, ZeroOrder.BEFORE_ROUNDING, NotANumber.ZERO, _VERSION
)
_OTHERS = "torch 2.12.0 and 2.14.1, per tensor and per channel"
TORCH_QUANTIZE_INT8: Final = _operator(
    "TORCH_QUANTIZE_INT8", INT8, ZeroOrder.AFTER_ROUNDING, NotANumber.RAISE, _OTHERS
)
TORCH_QUANTIZE_UINT8: Final = _operator(
    "TORCH_QUANTIZE_UINT8", UINT8, ZeroOrder.AFTER_ROUNDING, NotANumber.RAISE, _OTHERS
)

_ARM = "torch 2.13, ARM, read and not run"
# The NEON kernel rounds before it adds the zero point, in every version that was read.
TORCH_ARM_QUANTIZE_INT8: Final = _operator(
    "TORCH_ARM_QUANTIZE_INT8", INT8, ZeroOrder.AFTER_ROUNDING, NotANumber.RAISE, _ARM
)
TORCH_ARM_QUANTIZE_UINT8: Final = _operator(
    "TORCH_ARM_QUANTIZE_UINT8", UINT8, ZeroOrder.AFTER_ROUNDING, NotANumber.RAISE, _ARM
)


def _fake_quantize(name: str, codes: IntegerFormat) -> Operator:
    return Operator(
        name=name,
        affine=_per_tensor(codes, ZeroOrder.AFTER_ROUNDING, NotANumber.LOWEST),
        source="aten/src/ATen/native/quantized/cpu/kernels: fake_quantize_tensor_cachemask_kernel",
        versions="torch 2.12.0 to 2.14.1",
    )


def _fake_quantize_per_channel(name: str, codes: IntegerFormat) -> Operator:
    return Operator(
        name=name,
        affine=AffineRule(codes=codes, scaling=Scaling.RECIPROCAL),
        source="aten/src/ATen/native/quantized/cpu/kernels: fake_quant_per_channel_cachemask_cpu",
        versions="torch 2.12.0 to 2.14.1, integer zero points",
    )


def _decomposed(name: str, codes: IntegerFormat) -> Operator:
    return Operator(
        name=name,
        affine=AffineRule(codes=codes, scaling=Scaling.RECIPROCAL),
        source="torch/ao/quantization/fx/_decomposed.py: quantize_per_tensor, per_channel",
        versions=_VERSION,
    )


TORCH_FAKE_QUANTIZE_INT8: Final = _fake_quantize("TORCH_FAKE_QUANTIZE_INT8", INT8)
TORCH_FAKE_QUANTIZE_UINT8: Final = _fake_quantize("TORCH_FAKE_QUANTIZE_UINT8", UINT8)
TORCH_FAKE_QUANTIZE_PER_CHANNEL_INT8: Final = _fake_quantize_per_channel(
    "TORCH_FAKE_QUANTIZE_PER_CHANNEL_INT8", INT8
)
TORCH_FAKE_QUANTIZE_PER_CHANNEL_UINT8: Final = _fake_quantize_per_channel(
    "TORCH_FAKE_QUANTIZE_PER_CHANNEL_UINT8", UINT8
)
# A zero point that is a float is added before rounding, an integer one after.
TORCH_FAKE_QUANTIZE_FLOAT_ZERO_INT8: Final = Operator(
    name="TORCH_FAKE_QUANTIZE_FLOAT_ZERO_INT8",
    affine=AffineRule(codes=INT8, scaling=Scaling.RECIPROCAL, order=ZeroOrder.BEFORE_ROUNDING),
    source="aten/src/ATen/native/quantized/cpu/kernels: fake_quant_per_channel_cachemask_cpu",
    versions="torch 2.12.0 to 2.14.1, float zero points",
)
TORCH_DECOMPOSED_INT8: Final = _decomposed("TORCH_DECOMPOSED_INT8", INT8)
TORCH_DECOMPOSED_UINT8: Final = _decomposed("TORCH_DECOMPOSED_UINT8", UINT8)


def _observer(name: str, scale: ScaleRule, zero_point: ZeroPointRule, codes: IntegerFormat) -> Rule:
    return Rule(
        name=name,
        scale=scale,
        zero_point=zero_point,
        affine=_per_tensor(codes, ZeroOrder.FUSED, NotANumber.RAISE),
        source="torch/ao/quantization/observer.py; codes by quantize_per_tensor",
        versions=_VERSION,
    )


def _affine_observer(name: str, codes: IntegerFormat, lowest: int, highest: int) -> Rule:
    return _observer(
        name,
        ScaleRule(
            extent=Extent.SPAN,
            denominator=Fraction(highest - lowest),
            stored=FLOAT32,
            tiny=scale_at_least(_EPSILON),
        ),
        ZeroPointRule(form=ZeroForm.ROUND_QUOTIENT, lowest=lowest, highest=highest),
        codes,
    )


def _symmetric_observer(
    name: str, codes: IntegerFormat, denominator: Fraction, zero_point: int, epsilon: float
) -> Rule:
    return _observer(
        name,
        ScaleRule(
            extent=Extent.MAGNITUDE,
            denominator=denominator,
            stored=FLOAT32,
            tiny=scale_at_least(epsilon),
        ),
        ZeroPointRule(fixed=zero_point, lowest=codes.minimum, highest=codes.maximum),
        codes,
    )


TORCH_OBSERVER_UINT8: Final = _affine_observer("TORCH_OBSERVER_UINT8", UINT8, 0, 255)
# The default observer of activations divides by 127, yet codes may reach 255.
TORCH_OBSERVER_UINT8_REDUCED: Final = _affine_observer(
    "TORCH_OBSERVER_UINT8_REDUCED", UINT8, 0, 127
)
TORCH_OBSERVER_UINT8_SYMMETRIC: Final = _symmetric_observer(
    "TORCH_OBSERVER_UINT8_SYMMETRIC", UINT8, Fraction(255, 2), 128, _EPSILON
)
# quant_min=0, quant_max=127: the zero point is the middle of the range that was asked for.
TORCH_OBSERVER_UINT8_SYMMETRIC_REDUCED: Final = _symmetric_observer(
    "TORCH_OBSERVER_UINT8_SYMMETRIC_REDUCED", UINT8, Fraction(127, 2), 63, _EPSILON
)
TORCH_OBSERVER_INT8: Final = _symmetric_observer(
    "TORCH_OBSERVER_INT8", INT8, Fraction(255, 2), 0, _EPSILON
)
TORCH_OBSERVER_INT8_REDUCED: Final = _symmetric_observer(
    "TORCH_OBSERVER_INT8_REDUCED", INT8, Fraction(127, 2), 0, _EPSILON
)
TORCH_OBSERVER_INT8_NARROW: Final = _symmetric_observer(
    "TORCH_OBSERVER_INT8_NARROW", INT8, Fraction(127), 0, 2.0**-12
)


def _dynamic(name: str, highest: int) -> Rule:
    """Return the rule of dynamic activations: float64, the better end decides the zero point."""
    # A float32 scale of at most 2^-128 has an infinite reciprocal: it becomes 0.1.
    hopeless = TinyRange(
        test=TinyTest.SCALE,
        below=2.0**-128 * (1 + 2.0**-22),
        action=TinyAction.SCALE,
        value=0.1,
    )
    small = float(FLOAT32.round(6.1e-5))
    stretched = TinyRange(test=TinyTest.SCALE, below=small, action=TinyAction.STRETCH, value=small)
    return Rule(
        name=name,
        scale=ScaleRule(
            extent=Extent.SPAN,
            denominator=Fraction(highest),
            precision=FLOAT64,
            stored=FLOAT64,
            tiny=(hopeless, stretched),
        ),
        zero_point=ZeroPointRule(
            form=ZeroForm.SMALLER_ERROR, lowest=0, highest=highest, precision=FLOAT64
        ),
        affine=_per_tensor(UINT8, ZeroOrder.FUSED, NotANumber.RAISE),
        source="aten/src/ATen/native/quantized/cpu/QuantUtils.h: ChooseQuantizationParams",
        versions=_VERSION,
    )


TORCH_DYNAMIC_UINT8: Final = _dynamic("TORCH_DYNAMIC_UINT8", 255)
TORCH_DYNAMIC_UINT8_REDUCED: Final = _dynamic("TORCH_DYNAMIC_UINT8_REDUCED", 127)

ENTRIES: Final[tuple[Entry, ...]] = (
    TORCH_2_13_PER_TENSOR_INT8,
    TORCH_2_13_PER_TENSOR_UINT8,
    TORCH_2_13_PER_CHANNEL_INT8,
    TORCH_2_13_PER_CHANNEL_UINT8,
    TORCH_QUANTIZE_INT8,
    TORCH_QUANTIZE_UINT8,
    TORCH_ARM_QUANTIZE_INT8,
    TORCH_ARM_QUANTIZE_UINT8,
    TORCH_FAKE_QUANTIZE_INT8,
    TORCH_FAKE_QUANTIZE_UINT8,
    TORCH_FAKE_QUANTIZE_PER_CHANNEL_INT8,
    TORCH_FAKE_QUANTIZE_PER_CHANNEL_UINT8,
    TORCH_FAKE_QUANTIZE_FLOAT_ZERO_INT8,
    TORCH_DECOMPOSED_INT8,
    TORCH_DECOMPOSED_UINT8,
    TORCH_OBSERVER_UINT8,
    TORCH_OBSERVER_UINT8_REDUCED,
    TORCH_OBSERVER_UINT8_SYMMETRIC,
    TORCH_OBSERVER_UINT8_SYMMETRIC_REDUCED,
    TORCH_OBSERVER_INT8,
    TORCH_OBSERVER_INT8_REDUCED,
    TORCH_OBSERVER_INT8_NARROW,
    TORCH_DYNAMIC_UINT8,
    TORCH_DYNAMIC_UINT8_REDUCED,
)
