"""Arrays to codes and back, given scale and zero point: the fast twin of `exact.affine`.

An array is walked in pieces that stay in the cache. On each piece the operations of the rule
follow one another, every one a small loop over a scratch buffer: scale, add, round, store. So a
rule that no loop was written for costs a few more passes over the cache and none over memory.
The two commonest rules, which round to even and then add the zero point, have a loop that does
all of it at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foldmark.errors import DataMismatch, InvalidScheme
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.number import FloatFormat
from foldmark.exact.rule import AffineRule, Scaling, ZeroDivisor, definite
from foldmark.kernels.arithmetic import divide, multiply, subtract
from foldmark.kernels.blocks import Layout
from foldmark.kernels.codes import CodesJob, codes_dtype, work_dtype
from foldmark.kernels.floats import Floats, format_of
from foldmark.kernels.loops import Codes
from foldmark.kernels.numbers import numbers_of
from foldmark.kernels.precision import Numbers, rounded
from foldmark.kernels.threads import each

__all__ = [
    "Grid",
    "codes_of",
    "dequantize",
    "fake_quantize",
    "grid_of",
    "offset_of",
    "quantize",
    "step_of",
]


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """What was fixed for every block before any code was computed, in arrays of the grid's shape.

    scale       as stored beside the codes, in the dtype it is stored in
    zero_point  as stored beside the codes: codes, or real numbers where the rule says so
    step        float64; what values are divided by (Scaling.DIVIDE) or multiplied with
    offset      float64; the zero point that codes are computed with
    """

    scale: NDArray[Any]
    zero_point: NDArray[Any]
    step: Numbers
    offset: Numbers


def step_of(scale: NDArray[Any], extent: NDArray[Any], rule: AffineRule) -> Numbers:
    """Return the divisors or multipliers that bring values to the scale of codes.

    scale, extent  any shape  numbers of the rule's (definite) precision or wider; only the RATIO
                              scalings look at the extent

    Exact twin: foldmark.exact.affine.step_of.
    """
    precision = definite(rule.precision, FLOAT32)
    match rule.scaling:
        case Scaling.DIVIDE:
            return rounded(scale, precision)
        case Scaling.RECIPROCAL:
            return _over(1.0, rounded(scale, precision), rule, precision)
        case Scaling.RATIO:
            return _over(float(rule.ratio), rounded(extent, precision), rule, precision)
        case Scaling.RATIO_OF_RECIPROCAL:
            reciprocal = _over(1.0, rounded(extent, precision), rule, precision)
            return multiply(reciprocal, float(rule.ratio), precision)
        case _:  # pragma: no cover
            assert_never(rule.scaling)


def offset_of(scale: NDArray[Any], zero_point: NDArray[Any], rule: AffineRule) -> Numbers:
    """Return the zero points as codes use them: real ones are moved from `middle` to code 0.

    Exact twin: foldmark.exact.affine.offset_of.
    """
    if not rule.zero_is_real or rule.middle == 0:
        return np.asarray(zero_point, np.float64)
    precision = definite(rule.precision, FLOAT32)
    return subtract(
        zero_point.astype(np.float64),
        multiply(float(rule.middle), scale.astype(np.float64), precision),
        precision,
    )


def grid_of(scale: NDArray[Any], zero_point: NDArray[Any], rule: AffineRule) -> Grid:
    """Return the grid that given scales and zero points fix, for a rule of definite precision.

    Raises InvalidScheme for the RATIO scalings, which need the extent that the scale came from,
    unless the scale is the extent (codes_per_scale = ratio).
    Exact twin: foldmark.exact.affine.grid_of.
    """
    ratio = rule.scaling in (Scaling.RATIO, Scaling.RATIO_OF_RECIPROCAL)
    if ratio and rule.codes_per_scale != rule.ratio:
        raise InvalidScheme(
            "codes of this rule follow from the data's extent, which a scale does not tell",
            got=rule.scaling.name,
            todo="quantize the whole group with quantize_group",
        )
    return Grid(scale, zero_point, step_of(scale, scale, rule), offset_of(scale, zero_point, rule))


def quantize(
    values: NDArray[Any],
    scale: ArrayLike,
    zero_point: ArrayLike,
    rule: AffineRule,
    block: Sequence[int] | None = None,
) -> Codes:
    """Return the codes of an array, given the scale and zero point of every block.

    values      any shape         float32, float16, bfloat16 or float64
    scale       the grid's shape  float
    zero_point  the grid's shape  integers, or reals where the rule says so
    block       extent of a block along every axis; None: one block, and scalar parameters
    ->          values' shape     the smallest integer dtype that holds the rule's codes

    With v = value / step or value * step: clip(round(v) + offset), in the order and with the
    roundings that the rule says. Raises NonFiniteValue naming the first index that has no code,
    DataMismatch when the parameters do not have the grid's shape.

    Exact twin: foldmark.exact.affine.quantize.
    """
    rule = rule.for_data(format_of(values.dtype))
    layout = Layout.of(values, block)
    scales = _parameter(scale, "scale", layout)
    zeros = _parameter(zero_point, "zero_point", layout)
    return codes_of(values, grid_of(scales, zeros, rule), rule, block)


def dequantize(
    codes: Codes,
    scale: ArrayLike,
    zero_point: ArrayLike,
    rule: AffineRule,
    data: FloatFormat = FLOAT32,
    block: Sequence[int] | None = None,
) -> Floats:
    """Return the numbers that codes stand for, in the dtype of `data`.

    codes       any shape         integers
    scale       the grid's shape  float
    zero_point  the grid's shape  integers, or reals where the rule says so

    fl(fl(code - z) * scale), or fl(fl((code - middle) * scale) + z) with real zero points z;
    computed in the rule's precision and then rounded to `data`.

    Exact twin: foldmark.exact.affine.dequantize.
    """
    rule = rule.for_data(data)
    layout = Layout.of(codes, block)
    scales = _parameter(scale, "scale", layout)
    zeros = _parameter(zero_point, "zero_point", layout)
    return numbers_of(codes, scales, zeros, rule, data, layout)


def fake_quantize(
    values: NDArray[Any],
    scale: ArrayLike,
    zero_point: ArrayLike,
    rule: AffineRule,
    block: Sequence[int] | None = None,
) -> Floats:
    """Return what an array becomes when it is quantized and dequantized again; same dtype.

    Exact twin: foldmark.exact.affine.fake_quantize.
    """
    codes = quantize(values, scale, zero_point, rule, block)
    return dequantize(codes, scale, zero_point, rule, format_of(values.dtype), block)


def codes_of(
    values: NDArray[Any], grid: Grid, rule: AffineRule, block: Sequence[int] | None = None
) -> Codes:
    """Return the codes of an array on a grid. Raises NonFiniteValue naming the first index.

    Exact twin: foldmark.exact.affine.codes_of.
    """
    rule = rule.for_data(format_of(values.dtype))
    layout = Layout.of(values, block)
    whole = slice(0, layout.table[0]), slice(0, layout.table[1])
    for dtype in (codes_dtype(rule.codes), np.dtype(np.int64)):
        job = CodesJob(values, rule, layout, dtype, work_dtype(rule, dtype, grid.offset))
        job.place(whole, layout.to_table(grid.step), layout.to_table(grid.offset))
        each(job.run, layout.pieces(job.piece_size))
        if not job.beyond:
            break
    return job.finish()


def _parameter(given: ArrayLike, name: str, layout: Layout) -> NDArray[Any]:
    array = np.asarray(given)
    if array.size == 1 and np.prod(layout.grid, dtype=np.int64) == 1:
        return array.reshape(layout.grid)
    if array.shape != layout.grid:
        raise DataMismatch(
            f"every block needs one {name.replace('_', ' ')}",
            where=name,
            got=f"shape {array.shape}",
            expected=f"{layout.grid} for an array of shape {layout.shape} in blocks {layout.block}",
        )
    return array


def _over(
    numerator: float, divisor: NDArray[Any], rule: AffineRule, precision: FloatFormat
) -> Numbers:
    quotient = divide(numerator, divisor, precision)
    if rule.zero_divisor == ZeroDivisor.ZERO:
        return np.where(divisor == 0, 0.0, quotient)
    return quotient
