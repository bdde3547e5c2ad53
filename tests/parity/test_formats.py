"""Every code of every float format decodes, and every neighbourhood encodes, as the oracle does."""

import numpy as np
import pytest

from foldmark.errors import InvalidScheme, NonFiniteValue
from foldmark.exact.catalog import E2M1, E4M3FN, E8M0, FLOAT_FORMATS, NF4
from foldmark.exact.number import FloatFormat, Overflow, Specials
from foldmark.exact.rounding import Rounding
from foldmark.kernels.formats import decode, encode, round_to_format

SMALL = [number_format for number_format in FLOAT_FORMATS if number_format.bits <= 8]
NARROW = [number_format for number_format in FLOAT_FORMATS if number_format.bits <= 16]


def neighbourhoods(number_format: FloatFormat) -> np.ndarray:
    """Return every number, every midpoint, what lies beside them, and what lies beyond."""
    codes = range(1 << number_format.bits)
    numbers = np.array([number_format.decode(code) for code in codes])
    numbers = np.sort(numbers[np.isfinite(numbers)])
    middles = (numbers[1:] + numbers[:-1]) / 2
    top = float(number_format.maximum)
    beyond = np.array([top * 1.01, top * 1.1, top * 1.5, top * 4, np.inf, 0.0, 1e-300])
    near = np.concatenate([numbers, middles, beyond])
    near = np.concatenate([near, np.nextafter(near, np.inf), np.nextafter(near, -np.inf)])
    return near[near > 0] if number_format.specials == Specials.EXPONENT_ONLY else near


@pytest.mark.parametrize("number_format", NARROW, ids=lambda f: f.name)
def test_every_code(number_format: FloatFormat) -> None:
    codes = np.arange(1 << number_format.bits)
    expected = np.array([number_format.decode(int(code)) for code in codes])
    assert np.array_equal(decode(codes, number_format), expected, equal_nan=True)
    numbers = expected[np.isfinite(expected)]
    assert np.array_equal(round_to_format(numbers, number_format), numbers)


@pytest.mark.parametrize("number_format", SMALL, ids=lambda f: f.name)
@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("overflow", Overflow)
def test_neighbourhoods(number_format: FloatFormat, rounding: Rounding, overflow: Overflow) -> None:
    values = neighbourhoods(number_format)
    expected = [number_format.encode(value, rounding, overflow) for value in values.tolist()]
    assert encode(values, number_format, rounding, overflow).tolist() == expected


@pytest.mark.parametrize("number_format", SMALL, ids=lambda f: f.name)
def test_bit_patterns_of_float32(number_format: FloatFormat) -> None:
    bits = np.random.default_rng(7).integers(0, 1 << 32, 2000, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    values = values[~np.isnan(values)] if number_format.specials == Specials.NONE else values
    values = np.abs(values) if number_format.specials == Specials.EXPONENT_ONLY else values
    expected = [number_format.encode(value) for value in values.tolist()]
    assert encode(values, number_format).tolist() == expected


def test_what_has_no_code() -> None:
    with pytest.raises(NonFiniteValue):
        encode(np.array([np.nan]), E2M1)
    with pytest.raises(InvalidScheme, match="no negative numbers"):
        encode(np.array([-1.0]), E8M0)
    with pytest.raises(InvalidScheme, match="no such code"):
        decode(np.array([16]), NF4)


def test_casts_above_the_top_of_e4m3_and_a_scale_never_calibrated() -> None:
    cast = [448, 463, 464, 465, 480, 1000, -1000]
    found = round_to_format(np.array(cast, np.float32), E4M3FN)
    assert found[:3].tolist() == [448, 448, 448]
    assert np.isnan(found[3:]).all()
    held = encode(np.array(cast, np.float32), E4M3FN, overflow=Overflow.SATURATE)
    assert decode(held, E4M3FN).tolist() == [448] * 6 + [-448]
    keys = np.array([900, -921, 3.5, 0.02, 448], np.float32)
    unscaled = round_to_format(keys, E4M3FN)
    assert np.isnan(unscaled[:2]).all()
    scale = np.float32(921 / 448)
    scaled = round_to_format(keys / scale, E4M3FN) * scale
    assert np.allclose(scaled, [921, -921, 3.598, 0.0201, 460.5], rtol=3e-3)


def test_float32_to_float16_for_every_pattern_near_a_float16() -> None:
    from foldmark.kernels.floats import narrow_to_float16

    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    steps = np.arange(-2, 3, dtype=np.int64)
    middles = halves.view(np.uint32).astype(np.int64)[:, None] + (1 << 12) + steps
    near = np.concatenate([halves.view(np.uint32).astype(np.int64)[:, None] + steps, middles], 1)
    drawn = np.random.default_rng(5).integers(0, 1 << 32, 200_000)
    values = np.concatenate([near.ravel() % (1 << 32), drawn]).astype(np.uint32).view(np.float32)
    out = np.empty(values.shape, np.float16)
    narrow_to_float16(values, out)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(np.float16)
    same = out.view(np.uint16) == expected.view(np.uint16)
    assert (same | (np.isnan(out) & np.isnan(values))).all()
