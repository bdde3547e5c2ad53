"""Hypothesis strategies that look where quantizers part: bit patterns, half-steps, odd zeros."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from foldmark.errors import InvalidScheme
from foldmark.exact.catalog import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT2,
    INT4,
    INT8,
    INT8_NARROW,
    INT16,
    INT32,
    UINT4,
    UINT8,
    UINT16,
)
from foldmark.exact.number import FloatFormat
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import (
    AffineRule,
    Clip,
    DataConstant,
    DataType,
    Extent,
    ExtremeTie,
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
from foldmark.kernels.floats import dtype_of

DATA = (FLOAT32, FLOAT16, BFLOAT16, FLOAT64)
CODES = (INT8, UINT8, INT4, UINT4, INT16, UINT16, INT8_NARROW, INT2, INT32)
REAL_FORMS = (ZeroForm.LOW, ZeroForm.MIDDLE)
# Around the widths of vector registers, so that a loop's tail is seen too.
LENGTHS = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65])


def bit_patterns(data: FloatFormat, length: int) -> st.SearchStrategy[np.ndarray]:
    """Draw arrays whose every bit is free: subnormals, infinities, NaN, both zeros."""
    dtype = dtype_of(data)
    return st.binary(min_size=length * dtype.itemsize, max_size=length * dtype.itemsize).map(
        lambda raw: np.frombuffer(raw, dtype)
    )


def half_steps(data: FloatFormat, length: int) -> st.SearchStrategy[np.ndarray]:
    """Draw multiples of one half: ties for any scale that is a power of two."""
    numbers = st.lists(st.integers(-300, 300), min_size=length, max_size=length)
    return numbers.map(lambda halves: (np.array(halves, np.float64) / 2).astype(dtype_of(data)))


def ordinary(data: FloatFormat, length: int) -> st.SearchStrategy[np.ndarray]:
    """Draw numbers as weights are: of either or of one sign, large or small together."""

    def make(seed: int, exponent: int, sign: int) -> np.ndarray:
        numbers = np.random.default_rng(seed).standard_normal(length) * 10.0**exponent
        return (np.abs(numbers) * sign if sign else numbers).astype(dtype_of(data))

    return st.builds(
        make, st.integers(0, 2**32), st.integers(-6, 4), st.sampled_from([0, 0, 1, -1])
    )


def constant(data: FloatFormat, length: int) -> st.SearchStrategy[np.ndarray]:
    """Draw arrays of one number, zero and nearly zero among them."""
    return st.sampled_from([0.0, -0.0, 3.0, -2.5, 1e-7, 1e-40]).map(
        lambda number: np.full(length, number).astype(dtype_of(data))
    )


@st.composite
def arrays(draw: st.DrawFn, data: FloatFormat) -> np.ndarray:
    """Draw an array of any of these kinds."""
    kind = draw(st.sampled_from([bit_patterns, half_steps, ordinary, constant]))
    return draw(kind(data, draw(LENGTHS)))


PRECISIONS = st.sampled_from([FLOAT32, FLOAT32, FLOAT64, DataType.DATA, FLOAT16, BFLOAT16])


@st.composite
def affine_rules(draw: st.DrawFn) -> AffineRule:
    """Draw any map from values to codes that the vocabulary can say."""
    order = draw(st.sampled_from(ZeroOrder))
    scaling = draw(st.sampled_from(Scaling))
    if order == ZeroOrder.FUSED and scaling == Scaling.DIVIDE:
        scaling = Scaling.RECIPROCAL
    return AffineRule(
        codes=draw(st.sampled_from(CODES)),
        scaling=scaling,
        ratio=Fraction(draw(st.sampled_from([127, 7, 255]))),
        scale=draw(st.sampled_from(ScaleUse)),
        order=order,
        middle=draw(st.sampled_from([0, 8])),
        rounding=draw(st.sampled_from(Rounding)),
        precision=draw(PRECISIONS),
        clip=draw(st.sampled_from([Clip.SATURATE, Clip.SATURATE, Clip.NONE])),
        zero_divisor=draw(st.sampled_from(ZeroDivisor)),
        nan=draw(st.sampled_from(NotANumber)),
        infinity=draw(st.sampled_from(Infinity)),
    )


@st.composite
def tiny_ranges(draw: st.DrawFn) -> TinyRange:
    """Draw a treatment of small ranges."""
    return TinyRange(
        test=draw(st.sampled_from(TinyTest)),
        below=draw(st.sampled_from([5e-324, 1e-38, 1e-5, *DataConstant])),
        action=draw(st.sampled_from(TinyAction)),
        value=draw(st.sampled_from([1.0, 0.1, 1e-5, DataConstant.EPSILON])),
        zero_point=draw(st.sampled_from([None, 0, 3])),
    )


ANY_AFFINE = affine_rules()


def affine_rules_of_numpy() -> st.SearchStrategy[AffineRule]:
    """Draw maps that may be computed by numpy alone, and some that only look like it."""
    return st.builds(
        AffineRule,
        codes=st.sampled_from(CODES),
        zero_divisor=st.sampled_from(ZeroDivisor),
        nan=st.sampled_from(NotANumber),
        infinity=st.sampled_from(Infinity),
    )


@st.composite
def rules(draw: st.DrawFn, affines: st.SearchStrategy[AffineRule] = ANY_AFFINE) -> Rule:
    """Draw any whole rule that does not contradict itself."""
    affine = draw(affines)
    forms = [form for form in ZeroForm if (form in REAL_FORMS) == affine.zero_is_real]
    scale = ScaleRule(
        extent=draw(st.sampled_from(Extent)),
        denominator=Fraction(draw(st.sampled_from([255, 254, 30, 15, 8])), 2),
        denominator_below=Fraction(draw(st.sampled_from([128, 7]))),
        zero_in_range=draw(st.sampled_from(ZeroInRange)),
        tie=draw(st.sampled_from(ExtremeTie)),
        precision=draw(st.sampled_from([FLOAT32, FLOAT64, DataType.DATA])),
        extent_precision=draw(st.sampled_from([None, FLOAT32, FLOAT64])),
        stored=draw(st.sampled_from([DataType.DATA, FLOAT32, FLOAT16, FLOAT64])),
        tiny=tuple(draw(st.lists(tiny_ranges(), max_size=2))),
    )
    zero = ZeroPointRule(
        form=draw(st.sampled_from(forms)),
        fixed=draw(st.sampled_from([0, 3, 8])),
        lowest=affine.codes.minimum,
        highest=affine.codes.maximum,
        scale=draw(st.sampled_from(ScaleUse)),
        precision=draw(st.sampled_from([FLOAT32, FLOAT64, DataType.DATA])),
        rounding=draw(st.sampled_from(Rounding)),
        clip=draw(st.sampled_from([Clip.SATURATE, Clip.NONE])),
    )
    rule = {"name": "drawn", "scale": scale, "zero_point": zero, "source": "", "versions": ""}
    try:
        return Rule(affine=affine, **rule)
    except InvalidScheme:
        return Rule(affine=replace(affine, scaling=Scaling.RECIPROCAL), **rule)
