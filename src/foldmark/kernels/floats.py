"""Arrays of any float dtype, brought piece by piece into a dtype that a processor computes in."""

from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from foldmark.errors import DataMismatch, NonFiniteValue
from foldmark.exact.catalog import (
    BFLOAT16,
    E2M1,
    E2M3,
    E3M2,
    E4M3FN,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0,
    FLOAT16,
    FLOAT32,
    FLOAT64,
)
from foldmark.exact.number import FloatFormat
from foldmark.kernels.blocks import PIECE, Layout, Piece
from foldmark.kernels.compiled import compiled, read_only
from foldmark.kernels.scratch import scratch
from foldmark.kernels.threads import each

__all__ = [
    "Floats",
    "all_finite",
    "dtype_of",
    "first_non_finite",
    "format_of",
    "narrow_to_float16",
    "reader",
    "require_finite",
    "round_in_place",
    "widened",
    "working_dtype",
]

Floats = NDArray[np.floating[Any]]

_DTYPES: Final[dict[FloatFormat, np.dtype[Any]]] = {
    FLOAT64: np.dtype(np.float64),
    FLOAT32: np.dtype(np.float32),
    FLOAT16: np.dtype(np.float16),
    BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    E5M2: np.dtype(ml_dtypes.float8_e5m2),
    E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    E8M0: np.dtype(ml_dtypes.float8_e8m0fnu),
    E2M1: np.dtype(ml_dtypes.float4_e2m1fn),
    E2M3: np.dtype(ml_dtypes.float6_e2m3fn),
    E3M2: np.dtype(ml_dtypes.float6_e3m2fn),
}
_DATA: Final = (FLOAT32, FLOAT16, BFLOAT16, FLOAT64)


def dtype_of(number_format: FloatFormat) -> np.dtype[Any]:
    """Return the dtype that holds a float format's numbers."""
    return _DTYPES[number_format]


def format_of(dtype: np.dtype[Any]) -> FloatFormat:
    """Return the float format of data of a dtype.

    Raises DataMismatch for what is not float32, float16, bfloat16 or float64.
    """
    native = dtype.newbyteorder("=")
    for number_format in _DATA:
        if native == _DTYPES[number_format]:
            return number_format
    raise DataMismatch(
        "real numbers are needed",
        got=f"dtype {dtype}",
        expected="float32, float16, bfloat16 or float64",
    )


def working_dtype(precision: FloatFormat) -> np.dtype[Any]:
    """Return the dtype that holds each step's result: float32 for the halves, which lose nothing.

    A sum, product or quotient of two halves, rounded to float32 and then to the half, is the
    half nearest to the true result, because 24 bits are at least 2 * 11 + 2.
    """
    return _DTYPES[FLOAT64] if precision == FLOAT64 else _DTYPES[FLOAT32]


def reader(array: NDArray[Any], layout: Layout) -> Callable[[Piece], Floats]:
    """Return a function from a piece to its numbers, (rows, columns), float32 or float64.

    Float32 and float64 that lie densely in memory are seen in place; anything else is converted
    or gathered a piece at a time.
    """
    data = format_of(array.dtype)
    rows = layout.rows_of(array) if array.dtype.isnative else None
    if rows is None:
        return _gatherer(array, layout, working_dtype(data))
    dense = rows

    def see(piece: Piece) -> Floats:
        found = dense[piece.first : piece.last, piece.start : piece.stop]
        if data in (FLOAT32, FLOAT64):
            return found
        return widened(found.reshape(-1)).reshape(found.shape)

    return see


def widened(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return a contiguous row of float16, bfloat16 or float32 numbers as float32.

    What is converted lies in a buffer that the calling thread's next conversion overwrites.
    """
    if values.dtype == np.float32:
        return values
    out = scratch("widened", values.shape, np.float32)
    if values.dtype == np.float16:
        _widen_float16(read_only(values).view(np.uint16), out.view(np.uint32), out)
    else:
        np.copyto(out, values, casting="unsafe")
    return out


def _gatherer(
    array: NDArray[Any], layout: Layout, dtype: np.dtype[Any]
) -> Callable[[Piece], Floats]:
    walked = array.transpose(layout.order)

    def gather(piece: Piece) -> Floats:
        begin = piece.first * layout.length + piece.start
        out = scratch("gathered", (piece.size,), dtype)
        walk: Any = np.nditer(
            [walked],
            ["external_loop", "buffered", "ranged"],
            [["readonly"]],
            op_dtypes=[dtype],
            order="C",
            casting="unsafe",
            buffersize=min(piece.size, PIECE),
        )
        walk.iterrange = (begin, begin + piece.size)
        filled = 0
        for buffer in walk:
            out[filled : filled + buffer.size] = buffer
            filled += buffer.size
        return out.reshape(piece.last - piece.first, piece.stop - piece.start)

    return gather


@compiled
def _widen_float16(
    halves: NDArray[np.uint16], bits: NDArray[np.uint32], out: NDArray[np.float32]
) -> None:
    """Write float16 codes as float32; `bits` is `out` seen as integers.

        s eeeee mmmmmmmmmm  ->  s (eeeee + 112) mmmmmmmmmm 0000000000000

    Infinities and NaN have 112 more to go; subnormals are their mantissa times 2^-24.
    """
    for i in range(halves.size):
        half = np.uint32(halves[i])
        magnitude = np.uint32(half & np.uint32(0x7FFF))
        wide = np.uint32(np.uint32(magnitude << np.uint32(13)) + np.uint32(112 << 23))
        extra = np.uint32(112 << 23) if magnitude >= np.uint32(0x7C00) else np.uint32(0)
        bits[i] = np.uint32(wide + extra)
    for i in range(halves.size):
        magnitude = np.uint32(halves[i] & np.uint16(0x7FFF))
        small = np.float32(np.int32(magnitude)) * np.float32(2.0**-24)
        out[i] = small if magnitude < np.uint32(0x400) else out[i]
    for i in range(halves.size):
        sign = np.uint32(np.uint32(halves[i] & np.uint16(0x8000)) << np.uint32(16))
        bits[i] = np.uint32(bits[i] | sign)


def narrow_to_float16(values: NDArray[np.float32], out: NDArray[np.float16]) -> None:
    """Write float32 numbers as float16, to nearest with ties to even; both flat and contiguous."""
    magnitude = scratch("magnitude", values.shape, np.float32)
    bits = values.view(np.uint32)
    _narrow_float16(values, bits, magnitude, magnitude.view(np.uint32), out.view(np.uint16))


@compiled
def _narrow_float16(
    values: NDArray[np.float32],
    bits: NDArray[np.uint32],
    magnitude: NDArray[np.float32],
    raised: NDArray[np.uint32],
    out: NDArray[np.uint16],
) -> None:
    """Write float16 codes; `bits` is `values`, and `raised` is `magnitude`, seen as integers.

    Numbers with a full mantissa: drop 13 bits, rounded to even by adding half a step less one,
    plus the last bit that stays; a carry walks into the exponent, and at the top into infinity.
    Smaller ones: 1/2 has the step of float16's subnormals, so adding it rounds to them.
    """
    for i in range(values.size):
        magnitude[i] = abs(values[i]) + np.float32(0.5)
    for i in range(values.size):
        size = np.uint32(bits[i] & np.uint32(0x7FFFFFFF))
        odd = np.uint32(np.uint32(size >> np.uint32(13)) & np.uint32(1))
        carried = np.uint32(np.uint32(size + np.uint32(0xFFF)) + odd)
        normal = np.uint32(np.uint32(carried - np.uint32(112 << 23)) >> np.uint32(13))
        small = np.uint32(raised[i] - np.uint32(0x3F000000))
        code = small if size < np.uint32(0x38800000) else normal
        code = np.uint32(0x7C00) if size >= np.uint32(0x47800000) else code
        code = np.uint32(0x7E00) if size > np.uint32(0x7F800000) else code
        sign = np.uint32(np.uint32(bits[i] >> np.uint32(16)) & np.uint32(0x8000))
        out[i] = np.uint16(code | sign)


def round_in_place(values: Floats, precision: FloatFormat) -> None:
    """Round working numbers to the precision that a step is computed in."""
    if precision in (FLOAT32, FLOAT64):
        return
    if precision not in _DATA:
        raise DataMismatch("no arithmetic in this format", got=precision.name)
    with np.errstate(over="ignore"):
        np.copyto(values, values.astype(_DTYPES[precision]), casting="unsafe")


@compiled
def _largest_magnitude_bits_32(bits: NDArray[np.int32]) -> np.int32:
    largest = np.int32(0)
    for i in range(bits.size):
        largest = max(largest, np.int32(bits[i] & np.int32(0x7FFFFFFF)))
    return largest


@compiled
def _largest_magnitude_bits_64(bits: NDArray[np.int64]) -> np.int64:
    largest = np.int64(0)
    for i in range(bits.size):
        largest = max(largest, bits[i] & np.int64(0x7FFFFFFFFFFFFFFF))
    return largest


def all_finite(values: Floats) -> bool:
    """Say whether a contiguous piece of float32 or float64 holds neither NaN nor infinity.

    Seen as an integer without its sign, every infinity and NaN is at least the pattern of
    infinity, so one maximum over the bits decides.
    """
    flat = read_only(values).reshape(-1)
    if values.dtype == np.float32:
        return bool(_largest_magnitude_bits_32(flat.view(np.int32)) < 0x7F800000)
    return bool(_largest_magnitude_bits_64(flat.view(np.int64)) < 0x7FF0000000000000)


def first_non_finite(array: NDArray[Any]) -> tuple[int, ...] | None:
    """Return the first index, in C order, of a NaN or an infinity; None when there is none."""
    if array.size == 0:
        return None
    layout = Layout.of(array, array.shape)
    read = reader(array, layout)
    suspects: list[int] = []

    def look(piece: Piece) -> None:
        if not all_finite(read(piece)):
            suspects.append(piece.first)

    each(look, layout.pieces())
    if not suspects:
        return None
    for start in range(0, array.size, PIECE):
        places = np.unravel_index(np.arange(start, min(start + PIECE, array.size)), array.shape)
        bad = ~np.isfinite(array[places].astype(np.float64))
        if bad.any():
            return tuple(int(along[np.argmax(bad)]) for along in places)
    return None  # pragma: no cover


def require_finite(array: NDArray[Any], where: str = "") -> None:
    """Raise NonFiniteValue naming the first index of a NaN or an infinity, if there is one."""
    index = first_non_finite(array)
    if index is not None:
        raise NonFiniteValue(
            f"the number at {list(index)} is not finite",
            where=where,
            got=str(float(array[index])),
            todo="repair it, or choose a rule that says what becomes of it",
        )
