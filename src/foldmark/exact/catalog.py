"""The number formats of the field, each an instance with the text that defines it."""

from typing import Final

from foldmark.exact.number import Codebook, FloatFormat, IntegerFormat, Specials

__all__ = [
    "BFLOAT16",
    "BITSANDBYTES_FP4",
    "E2M1",
    "E2M3",
    "E3M2",
    "E4M3FN",
    "E4M3FNUZ",
    "E5M2",
    "E5M2FNUZ",
    "E8M0",
    "FLOAT16",
    "FLOAT32",
    "FLOAT64",
    "FLOAT_FORMATS",
    "INT2",
    "INT3",
    "INT4",
    "INT4_NARROW",
    "INT5",
    "INT6",
    "INT8",
    "INT8_NARROW",
    "INT16",
    "INT16_NARROW",
    "INT32",
    "INT64",
    "INTEGER_FORMATS",
    "NF4",
    "UINT2",
    "UINT3",
    "UINT4",
    "UINT5",
    "UINT6",
    "UINT8",
    "UINT16",
    "UINT32",
]


def _signed(bits: int) -> IntegerFormat:
    return IntegerFormat(f"int{bits}", bits, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _unsigned(bits: int) -> IntegerFormat:
    return IntegerFormat(f"uint{bits}", bits, 0, (1 << bits) - 1)


INT2: Final = _signed(2)
INT3: Final = _signed(3)
INT4: Final = _signed(4)
INT5: Final = _signed(5)
INT6: Final = _signed(6)
INT8: Final = _signed(8)
INT16: Final = _signed(16)
INT32: Final = _signed(32)
INT64: Final = _signed(64)
UINT2: Final = _unsigned(2)
UINT3: Final = _unsigned(3)
UINT4: Final = _unsigned(4)
UINT5: Final = _unsigned(5)
UINT6: Final = _unsigned(6)
UINT8: Final = _unsigned(8)
UINT16: Final = _unsigned(16)
UINT32: Final = _unsigned(32)
INT4_NARROW: Final = IntegerFormat("int4 narrow", 4, -7, 7)
INT8_NARROW: Final = IntegerFormat("int8 narrow", 8, -127, 127)
INT16_NARROW: Final = IntegerFormat("int16 narrow", 16, -32767, 32767)

# IEEE 754-2019, binary64, binary32 and binary16.
FLOAT64: Final = FloatFormat("float64", 11, 52, 1023, Specials.IEEE)
FLOAT32: Final = FloatFormat("float32", 8, 23, 127, Specials.IEEE)
FLOAT16: Final = FloatFormat("float16", 5, 10, 15, Specials.IEEE)
# The upper half of a binary32.
BFLOAT16: Final = FloatFormat("bfloat16", 8, 7, 127, Specials.IEEE)
# Micikevicius et al. 2022, "FP8 Formats for Deep Learning" (arXiv 2209.05433); OCP OFP8.
E4M3FN: Final = FloatFormat("float8_e4m3fn", 4, 3, 7, Specials.ONE_NAN)
E5M2: Final = FloatFormat("float8_e5m2", 5, 2, 15, Specials.IEEE)
# Noune et al. 2022, "8-bit Numerical Formats for Deep Neural Networks" (arXiv 2206.02915).
E4M3FNUZ: Final = FloatFormat("float8_e4m3fnuz", 4, 3, 8, Specials.FNUZ)
E5M2FNUZ: Final = FloatFormat("float8_e5m2fnuz", 5, 2, 16, Specials.FNUZ)
# OCP Microscaling Formats (MX) Specification v1.0, sections 5.3 and 5.4.
E8M0: Final = FloatFormat("float8_e8m0fnu", 8, 0, 127, Specials.EXPONENT_ONLY)
E2M1: Final = FloatFormat("float4_e2m1fn", 2, 1, 1, Specials.NONE)
E2M3: Final = FloatFormat("float6_e2m3fn", 2, 3, 1, Specials.NONE)
E3M2: Final = FloatFormat("float6_e3m2fn", 3, 2, 3, Specials.NONE)

# Dettmers et al. 2023, "QLoRA" (arXiv 2305.14314): quantiles of a normal distribution.
NF4: Final = Codebook(
    "nf4",
    4,
    (
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ),
)
# bitsandbytes: 1/12 of the numbers of a float with three exponent steps; code 8 is a second zero.
_FP4_POSITIVE = (
    *(0.0, 0.0052083334885537624, 0.6666666865348816, 1.0),
    *(0.3333333432674408, 0.5, 0.1666666716337204, 0.25),
)
BITSANDBYTES_FP4: Final = Codebook("fp4", 4, (*_FP4_POSITIVE, *(-x for x in _FP4_POSITIVE)))

INTEGER_FORMATS: Final = (
    *(INT2, INT3, INT4, INT5, INT6, INT8, INT16, INT32, INT64),
    *(UINT2, UINT3, UINT4, UINT5, UINT6, UINT8, UINT16, UINT32),
    *(INT4_NARROW, INT8_NARROW, INT16_NARROW),
)
FLOAT_FORMATS: Final = (
    *(FLOAT64, FLOAT32, FLOAT16, BFLOAT16),
    *(E4M3FN, E5M2, E4M3FNUZ, E5M2FNUZ),
    *(E8M0, E2M1, E2M3, E3M2),
)
