"""Arrays to the codes of a float format or code book, and back.

`encode` and `decode` are methods of the formats in the oracle, which cannot know arrays; here they
are functions that take the format after the values.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import InvalidScheme, NonFiniteValue
from foldmark.exact.number import Codebook, FloatFormat, Overflow, Specials
from foldmark.exact.rounding import Rounding
from foldmark.kernels.blocks import PIECE
from foldmark.kernels.floats import format_of
from foldmark.kernels.rounding import round_to_int
from foldmark.kernels.threads import each

__all__ = ["decode", "encode", "round_to_format"]

Codes = NDArray[np.unsignedinteger[Any]]


def decode(codes: Codes, number_format: FloatFormat | Codebook) -> NDArray[np.float32]:
    """Return the numbers that codes of up to 16 bits stand for, in float32, which holds them all.

    Exact twins: the methods decode of foldmark.exact.number.FloatFormat and Codebook.
    """
    if codes.size and int(codes.max()) >= 1 << number_format.bits:
        raise InvalidScheme("no such code", where=number_format.name, got=str(int(codes.max())))
    return _numbers(number_format)[codes]


def encode(
    values: NDArray[Any],
    number_format: FloatFormat,
    rounding: Rounding = Rounding.HALF_EVEN,
    overflow: Overflow = Overflow.SPECIAL,
) -> Codes:
    """Return the codes of the numbers of a format of up to 16 bits that stand for values.

    values  any shape   float32, float16, bfloat16 or float64
    ->      same shape  uint8 or uint16

    Raises NonFiniteValue for NaN where the format has none, InvalidScheme for a negative number
    where there is no sign. Exact twin: the method encode of foldmark.exact.number.FloatFormat.
    """
    format_of(values.dtype)
    flat = values.reshape(-1)
    out: Codes = np.empty(flat.size, np.uint8 if number_format.bits <= 8 else np.uint16)
    power_only = number_format.specials == Specials.EXPONENT_ONLY
    code_of = _encode_powers if power_only else _encode_numbers

    def run(first: int) -> None:
        with np.errstate(invalid="ignore"):  # a signalling NaN is as good as any
            part = flat[first : first + PIECE].astype(np.float64)
        codes = _settled(part, code_of, number_format, rounding, overflow)
        out[first : first + PIECE] = codes

    each(run, range(0, flat.size, PIECE))
    return out.reshape(values.shape)


def round_to_format(
    values: NDArray[Any],
    number_format: FloatFormat,
    rounding: Rounding = Rounding.HALF_EVEN,
    overflow: Overflow = Overflow.SPECIAL,
) -> NDArray[np.float32]:
    """Return the numbers of a format of up to 16 bits that stand for values.

    Exact twin: the method round of foldmark.exact.number.FloatFormat.
    """
    return decode(encode(values, number_format, rounding, overflow), number_format)


@cache
def _numbers(number_format: FloatFormat | Codebook) -> NDArray[np.float32]:
    count = 1 << number_format.bits
    if isinstance(number_format, Codebook):
        count = len(number_format.numbers)
    return np.array([number_format.decode(code) for code in range(count)], np.float32)


def _settled(
    values: NDArray[np.float64],
    code_of: Callable[..., tuple[NDArray[np.int64], NDArray[np.bool_]]],
    number_format: FloatFormat,
    rounding: Rounding,
    overflow: Overflow,
) -> NDArray[np.int64]:
    """Return codes; the oracle is asked what becomes of NaN, and of what is too large."""
    finite = np.isfinite(values)
    codes, beyond = code_of(np.where(finite, values, 0.0), number_format, rounding)
    for sign, chosen in ((1.0, values > 0), (-1.0, values < 0)):
        too_large = chosen & (beyond | np.isinf(values))
        if too_large.any():
            codes[too_large] = number_format.encode(sign * np.inf, rounding, overflow)
    nan = np.isnan(values)
    if nan.any():
        if number_format.specials == Specials.NONE:
            place = int(np.argmax(nan))
            raise NonFiniteValue("the format has no NaN", where=number_format.name, got=str(place))
        codes[nan] = number_format.encode(float("nan"))
    return codes


def _encode_numbers(
    values: NDArray[np.float64], number_format: FloatFormat, rounding: Rounding
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return codes, and which values round beyond the largest number.

    Counting quanta from an exponent's first number walks through the codes in order.
    """
    lowest = 1 - number_format.bias
    exponent = np.maximum(np.frexp(values)[1].astype(np.int64) - 1, lowest)
    exponent = np.where(values == 0, lowest, exponent)
    quanta = np.ldexp(values, (number_format.mantissa_bits - exponent).astype(np.int32))
    count = np.abs(round_to_int(quanta, rounding)).astype(np.int64)
    with np.errstate(over="ignore"):
        shift = (exponent - number_format.mantissa_bits).astype(np.int32)
        size = np.ldexp(count.astype(np.float64), shift)
    codes = ((exponent - lowest) << number_format.mantissa_bits) + count
    negative = np.signbit(values)
    if number_format.specials == Specials.FNUZ:
        negative &= codes > 0  # there is one zero
    codes |= negative.astype(np.int64) << (number_format.bits - 1)
    return codes, size > float(number_format.maximum)


def _encode_powers(
    values: NDArray[np.float64], number_format: FloatFormat, rounding: Rounding
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return codes of a format that has an exponent and nothing else."""
    if (values < 0).any():
        got = str(float(values[values < 0][0]))
        raise InvalidScheme("no negative numbers", where=number_format.name, got=got)
    mantissa, exponent = np.frexp(values)
    whole = round_to_int(2 * mantissa, rounding).astype(np.int64)
    codes = exponent.astype(np.int64) - 1 + number_format.bias + whole - 1
    codes = np.where(values <= float(number_format.smallest), 0, codes)
    return codes, codes >= (1 << number_format.bits) - 1
