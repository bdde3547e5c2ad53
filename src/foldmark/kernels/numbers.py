"""What codes stand for: an array of codes back to numbers, piece by piece."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.catalog import FLOAT16, FLOAT32
from foldmark.exact.number import FloatFormat
from foldmark.exact.rule import AffineRule, definite
from foldmark.kernels.arithmetic import add, divide, subtract
from foldmark.kernels.blocks import Layout, Piece
from foldmark.kernels.codes import expanded
from foldmark.kernels.compiled import read_only
from foldmark.kernels.floats import Floats, dtype_of, narrow_to_float16
from foldmark.kernels.loops import Codes, unfold
from foldmark.kernels.precision import product, rounded
from foldmark.kernels.scratch import scratch
from foldmark.kernels.threads import each
from foldmark.kernels.unfolding import unfolded

__all__ = ["is_plain", "numbers_from", "numbers_of"]

_EXACT: Final = 1 << 22
"""Up to here a float32 whole number plus another, or plus one half, is exact."""


def numbers_of(
    codes: Codes,
    scale: NDArray[Any],
    zero_point: NDArray[Any],
    rule: AffineRule,
    data: FloatFormat,
    layout: Layout,
) -> Floats:
    """Return the numbers that codes stand for, for a rule of definite precision."""
    source = layout.rows_of(codes)
    plain = data == FLOAT32 and is_plain(codes.dtype, scale, zero_point, rule)
    if plain and source is not None and codes.dtype.isnative:
        found = unfolded(source.reshape(-1), scale, zero_point, layout)
        if found is not None:
            return found

    def read(piece: Piece) -> Codes:
        if source is None:
            return _gathered(codes, layout, piece)
        return source[piece.first : piece.last, piece.start : piece.stop]

    return numbers_from(read, codes.dtype, scale, zero_point, rule, data, layout)


def numbers_from(
    read: Callable[[Piece], Codes],
    dtype: np.dtype[Any],
    scale: NDArray[Any],
    zero_point: NDArray[Any],
    rule: AffineRule,
    data: FloatFormat,
    layout: Layout,
) -> Floats:
    """Return the numbers that the codes of all pieces stand for; `read` gives codes of `dtype`."""
    out = layout.empty(dtype_of(data))
    target = layout.dense_rows_of(out)
    scales, zeros = layout.to_table(scale), layout.to_table(zero_point)
    narrow = is_plain(dtype, scales, zeros, rule)

    def run(piece: Piece) -> None:
        rows = slice(piece.first, piece.last), slice(piece.start, piece.stop)
        place = (piece.grid_rows, piece.grid_columns)
        where = layout.row_of[piece.first : piece.last] - piece.grid_rows.start
        found = read_only(read(piece))
        if narrow:
            there = data == FLOAT32
            numbers = target[rows] if there else scratch("numbers", found.shape, np.float32)
            s, z = scales[place].astype(np.float32), zeros[place].astype(np.float32)
            unfold(found, where, s, z, piece.segment, numbers)
            if data == FLOAT16:
                narrow_to_float16(numbers.reshape(-1), target[rows].reshape(-1))
                return
        else:
            s = expanded(scales[place], where, piece.segment, found.shape)
            z = expanded(zeros[place], where, piece.segment, found.shape)
            numbers = rounded(_unfolded(found, s, z, rule), data)
        if not (narrow and data == FLOAT32):
            with np.errstate(over="ignore"):
                np.copyto(target[rows], numbers, casting="unsafe")

    each(run, layout.pieces())
    return out


def _unfolded(
    codes: Codes, scale: NDArray[Any], zero_point: NDArray[Any], rule: AffineRule
) -> NDArray[np.float64]:
    """Return what codes stand for in any precision, parameters given for every code."""
    precision = definite(rule.precision, FLOAT32)
    scale = scale.astype(np.float64)
    zero_point = zero_point.astype(np.float64)
    if rule.zero_is_real:
        steps = product(codes.astype(np.float64) - rule.middle, scale, precision)
        return add(steps, zero_point, precision)
    steps = product(subtract(codes, zero_point, precision), scale, precision)
    return divide(steps, float(rule.codes_per_scale), precision)


def is_plain(
    codes: np.dtype[Any], scale: NDArray[Any], zero_point: NDArray[Any], rule: AffineRule
) -> bool:
    """Say whether (code - z) * scale in float32, step by step, is what the rule asks for."""
    return (
        rule.precision == FLOAT32
        and not rule.zero_is_real
        and rule.codes_per_scale == 1
        and codes.itemsize <= 2
        and _fits_float32(scale)
        and bool((np.abs(zero_point.astype(np.float64)) <= _EXACT).all())
        and bool((zero_point == np.trunc(zero_point)).all())
    )


def _gathered(codes: Codes, layout: Layout, piece: Piece) -> Codes:
    """Return the codes of a piece of an array that does not lie densely in memory."""
    begin = piece.first * layout.length + piece.start
    walked = codes.transpose(layout.order)
    places = np.unravel_index(np.arange(begin, begin + piece.size), walked.shape)
    found: Codes = walked[places].reshape(piece.last - piece.first, piece.stop - piece.start)
    return found


def _fits_float32(numbers: NDArray[Any]) -> bool:
    with np.errstate(all="ignore"):
        return numbers.dtype == np.float32 or bool(
            np.array_equal(
                numbers.astype(np.float32).astype(np.float64), numbers.astype(np.float64)
            )
        )
