"""Every code of every float format of up to 16 bits, decoded and encoded as ml_dtypes does."""

import math
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldmark.errors import InvalidScheme, NonFiniteValue
from foldmark.exact import catalog
from foldmark.exact.catalog import FLOAT_FORMATS, INTEGER_FORMATS
from foldmark.exact.number import FloatFormat, IntegerFormat, Overflow

SMALL = [f for f in FLOAT_FORMATS if f.bits <= 16]


def their_dtype(number_format: FloatFormat) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, number_format.name, number_format.name))


def all_codes(number_format: FloatFormat) -> np.ndarray:
    return np.arange(1 << number_format.bits, dtype=f"u{their_dtype(number_format).itemsize}")


@pytest.mark.parametrize("number_format", SMALL, ids=lambda f: f.name)
def test_every_code_decodes_as_ml_dtypes(number_format: FloatFormat) -> None:
    codes = all_codes(number_format)
    theirs = codes.view(their_dtype(number_format)).astype(np.float32).tolist()
    for code, expected in zip(codes.tolist(), theirs, strict=True):
        ours = number_format.decode(code)
        assert struct.pack("<f", ours)[:3] == struct.pack("<f", expected)[:3] or (
            math.isnan(ours) and math.isnan(expected)
        )


@pytest.mark.parametrize("number_format", SMALL, ids=lambda f: f.name)
def test_every_finite_code_comes_back(number_format: FloatFormat) -> None:
    for code in all_codes(number_format).tolist():
        value = number_format.decode(code)
        if math.isfinite(value):
            assert number_format.encode(value) == code


@pytest.mark.parametrize("number_format", SMALL, ids=lambda f: f.name)
def test_between_neighbours_as_ml_dtypes(number_format: FloatFormat) -> None:
    codes = all_codes(number_format)
    theirs = their_dtype(number_format)
    with np.errstate(invalid="ignore"):
        numbers = np.unique(codes.view(theirs).astype(np.float64)[:: max(1, codes.size // 512)])
    numbers = numbers[np.isfinite(numbers)]
    if number_format == catalog.E8M0:
        numbers = numbers[1:]  # ml_dtypes rounds every float32 subnormal up, nearest or not
    gaps = np.diff(numbers)
    inputs = [numbers[:-1] + gaps * share for share in (0.25, 0.4375, 0.5, 0.5625, 0.75)]
    flat = np.concatenate([*inputs, [1.25 * float(number_format.maximum)]])
    with np.errstate(over="ignore"):
        flat = flat.astype(np.float32)  # ml_dtypes rounds from float32
        expected = flat.astype(theirs).view(codes.dtype).tolist()
    assert [number_format.encode(float(value)) for value in flat] == expected


@given(st.integers(0, (1 << 64) - 1))
def test_float32_of_any_float64_as_the_machine(pattern: int) -> None:
    value = struct.unpack("<d", struct.pack("<Q", pattern))[0]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        expected = np.float64(value).astype(np.float32)
    ours = catalog.FLOAT32.round(value)
    assert np.float32(ours).tobytes() == expected.tobytes() or math.isnan(value)


@given(st.integers(0, (1 << 64) - 1))
def test_float64_codes_are_bit_patterns(pattern: int) -> None:
    value = struct.unpack("<d", struct.pack("<Q", pattern))[0]
    if not math.isnan(value):
        assert catalog.FLOAT64.encode(value) == pattern
        assert catalog.FLOAT64.decode(pattern) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [(448, 448), (463, 448), (464, 448), (465, math.nan), (1000, math.nan), (-1000, math.nan)],
)
def test_e4m3fn_overflows_to_nan(value: float, expected: float) -> None:
    rounded = catalog.E4M3FN.round(float(value))
    assert rounded == expected or (math.isnan(rounded) and math.isnan(expected))
    assert catalog.E4M3FN.round(float(value), overflow=Overflow.SATURATE) == math.copysign(
        448, value
    )


def test_a_format_without_nan_refuses_nan() -> None:
    with pytest.raises(NonFiniteValue, match="float4_e2m1fn: the format has no NaN"):
        catalog.E2M1.encode(math.nan)


def test_a_format_without_sign_refuses_negative_numbers() -> None:
    with pytest.raises(InvalidScheme, match="no negative numbers"):
        catalog.E8M0.encode(-1.0)


@pytest.mark.parametrize("number_format", INTEGER_FORMATS, ids=lambda f: f.name)
def test_integers_clip_and_wrap(number_format: IntegerFormat) -> None:
    low, high = number_format.minimum, number_format.maximum
    assert number_format.clip(high + 1) == high
    assert number_format.clip(low - 1) == low
    period = 1 << number_format.bits
    assert number_format.wrap(high + period) == high
    assert number_format.wrap(low - period) == low


def test_a_range_must_fit_its_bits() -> None:
    with pytest.raises(InvalidScheme, match=r"got -9\.\.7 in 4 bits"):
        IntegerFormat("wide", 4, -9, 7)
