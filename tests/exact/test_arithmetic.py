"""Add, subtract, multiply, divide, fuse and root in a format, as the machine does them."""

import math
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldmark.exact import arithmetic
from foldmark.exact.catalog import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from foldmark.exact.number import FloatFormat

MACHINE = {
    FLOAT64: np.float64,
    FLOAT32: np.float32,
    FLOAT16: np.float16,
    BFLOAT16: ml_dtypes.bfloat16,
}
OPERATIONS = {
    arithmetic.add: np.add,
    arithmetic.subtract: np.subtract,
    arithmetic.multiply: np.multiply,
    arithmetic.divide: np.divide,
}


def number(bits: int, number_format: FloatFormat) -> float:
    return number_format.decode(bits % (1 << number_format.bits))


def same_bits(ours: float, theirs: np.generic) -> bool:
    expected = float(theirs)
    if math.isnan(ours) or math.isnan(expected):
        return math.isnan(ours) and math.isnan(expected)
    return struct.pack("<d", ours) == struct.pack("<d", expected)


bits = st.one_of(
    st.integers(0, (1 << 64) - 1),
    st.sampled_from([0, 1, 1 << 31, 1 << 15, 0x7F800000, 0x7C00, 0x7F80, 0x7F800001]),
)


@pytest.mark.parametrize("number_format", MACHINE, ids=lambda f: f.name)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.__name__)
@given(a=bits, b=bits)
def test_as_the_machine(operation, number_format: FloatFormat, a: int, b: int) -> None:
    x, y = number(a, number_format), number(b, number_format)
    machine = MACHINE[number_format]
    with np.errstate(all="ignore"):
        expected = OPERATIONS[operation](machine(x), machine(y))
    assert same_bits(operation(x, y, number_format), expected)


@pytest.mark.parametrize("number_format", [FLOAT64, FLOAT32], ids=lambda f: f.name)
@given(a=bits)
def test_square_root_as_the_machine(number_format: FloatFormat, a: int) -> None:
    x = number(a, number_format)
    with np.errstate(all="ignore"):
        expected = np.sqrt(MACHINE[number_format](x))
    assert same_bits(arithmetic.square_root(x, number_format), expected)


def test_fused_multiply_add_rounds_once() -> None:
    x = 1 + 2**-12
    separate = arithmetic.add(arithmetic.multiply(x, x, FLOAT32), -1.0, FLOAT32)
    fused = arithmetic.fused_multiply_add(x, x, -1.0, FLOAT32)
    assert separate == 2**-11
    assert fused == 2**-11 + 2**-24


def test_fused_multiply_add_passes_specials_on() -> None:
    assert arithmetic.fused_multiply_add(math.inf, 1.0, 3.0, FLOAT32) == math.inf
    assert math.isnan(arithmetic.fused_multiply_add(math.inf, 0.0, 3.0, FLOAT32))
    assert arithmetic.fused_multiply_add(0.0, 5.0, 3.0, FLOAT32) == 3.0
