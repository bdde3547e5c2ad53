"""The codes of an array, piece by piece, from steps and offsets that are known."""

from math import inf
from threading import Lock
from typing import Any, Final, assert_never

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foldmark.errors import DataMismatch, InvalidScheme, NonFiniteValue
from foldmark.exact.catalog import FLOAT32, FLOAT64
from foldmark.exact.number import IntegerFormat
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import (
    AffineRule,
    Clip,
    Infinity,
    NotANumber,
    Scaling,
    ZeroDivisor,
    ZeroOrder,
    definite,
)
from foldmark.kernels import loops
from foldmark.kernels.arithmetic import fused_multiply_add
from foldmark.kernels.blocks import PIECE, RUN, Layout, Piece
from foldmark.kernels.compiled import read_only
from foldmark.kernels.floats import Floats, all_finite, reader
from foldmark.kernels.loops import Codes
from foldmark.kernels.precision import Numbers, rounded
from foldmark.kernels.quotients import codes_of_one_block
from foldmark.kernels.scratch import scratch

__all__ = [
    "CodesJob",
    "codes_dtype",
    "expanded",
    "first_place",
    "raise_non_finite",
    "work_dtype",
]


_WHOLE: Final = (1 << 53) - 1
"""The largest code that a float64 can't have been rounded to."""


def codes_dtype(codes: IntegerFormat) -> np.dtype[Any]:
    """Return the smallest integer dtype that holds the codes of a format, one code an element."""
    kind = "i" if codes.signed else "u"
    for size in (1, 2, 4, 8):
        dtype = np.dtype(f"{kind}{size}")
        if np.iinfo(dtype).min <= codes.minimum and codes.maximum <= np.iinfo(dtype).max:
            return dtype
    raise InvalidScheme("no integer dtype holds these codes", got=codes.name)


class CodesJob:
    """The codes of one array, made piece by piece by any number of threads.

    The rule must be definite: `rule.for_data(format_of(values.dtype))`. `place` tells the steps
    and offsets of some blocks, `run` computes the codes of a piece of them. After all pieces have
    run, `beyond` holds where unclipped codes were too large for the dtype.
    """

    def __init__(
        self,
        values: NDArray[Any],
        rule: AffineRule,
        layout: Layout,
        dtype: np.dtype[Any],
        work: np.dtype[Any],
    ) -> None:
        self.layout = layout
        self.rule = rule
        self.precision = definite(rule.precision, FLOAT32)
        self.values = values
        self.read = reader(values, layout)
        self.codes = layout.empty(dtype)
        self.rows = layout.dense_rows_of(self.codes)
        self.beyond: list[int] = []
        self.refused: list[int] = []
        self.lock = Lock()
        self._work = work
        self._step = np.empty(layout.table, self._work)
        self._offset = np.empty(layout.table, self._work)
        self._clean = True
        self.all_finite = False  # known beforehand

    @property
    def piece_size(self) -> int:
        """Elements to handle at once: more where no scratch buffer is needed."""
        dense = self.values.dtype == np.float32 and self.layout.rows_of(self.values) is not None
        return 4 * RUN if dense and self._has_a_loop() else PIECE

    def place(self, where: tuple[slice, slice], step: Numbers, offset: Numbers) -> None:
        """Set the steps and offsets of the blocks at a place of the walked table."""
        if self.rule.order == ZeroOrder.AFTER_ROUNDING:
            offset = np.trunc(offset)
        with np.errstate(all="ignore"):
            self._step[where] = step
            self._offset[where] = offset
        divides = self.rule.scaling == Scaling.DIVIDE
        usable = np.isfinite(step) & np.isfinite(offset) & ((step != 0) | (not divides))
        self._clean &= bool(usable.all())

    def run(self, piece: Piece) -> None:
        """Compute the codes of one piece."""
        out = self.rows[piece.first : piece.last, piece.start : piece.stop]
        parameters = self._parameters(piece)
        numbers = self.read(piece)
        source = read_only(self._in_precision(numbers))
        clean = self._clean and self._clips() and (self.all_finite or all_finite(source))
        if clean and self._has_a_loop():
            self._run_loop(source, *parameters, out)
            return
        scaled = self._before_rounding(source, *parameters)
        special = [] if clean else self._special(numbers, scaled, piece)
        beyond = self._store(scaled, *parameters, out)
        if beyond.any():
            with self.lock:
                self.beyond.append(first_place(beyond, piece, self.layout))
        for places, code in special:
            out[places] = code

    def _run_loop(
        self,
        source: Floats,
        where: NDArray[np.int64],
        step: Floats,
        offset: Floats,
        segment: int,
        out: Codes,
    ) -> None:
        """Compute the codes of finite numbers in one loop; see `_has_a_loop`."""
        low, high = self._limits()
        divides = self.rule.scaling == Scaling.DIVIDE
        if divides and step.size == 1 and source.flags.c_contiguous and out.flags.c_contiguous:
            numbers, codes = source.reshape(-1), out.reshape(-1)
            codes_of_one_block(numbers, step[0, 0], offset[0, 0], low, high, codes)
            return
        loop = loops.divide_even if divides else loops.multiply_even
        loop(source, where, step, offset, segment, low, high, out)

    def finish(self) -> Codes:
        """Return the codes once every piece has run.

        Raises NonFiniteValue naming the first index that has no code, DataMismatch naming the
        first whose unclipped code has more bits than are computed with.
        """
        if self.refused:
            raise_non_finite(self.values, min(self.refused))
        if self.beyond:
            raise_too_large(self.values, min(self.beyond))
        return self.codes

    def _parameters(self, piece: Piece) -> tuple[NDArray[np.int64], Floats, Floats, int]:
        where = self.layout.row_of[piece.first : piece.last] - piece.grid_rows.start
        place = (piece.grid_rows, piece.grid_columns)
        return where, self._step[place], self._offset[place], piece.segment

    def _has_a_loop(self) -> bool:
        rule = self.rule
        return (
            self._work == np.float32
            and rule.order == ZeroOrder.AFTER_ROUNDING
            and rule.rounding == Rounding.HALF_EVEN
            and self._clips()
            and rule.infinity != Infinity.CAST_TO_INT32
        )

    def _limits(self) -> tuple[Any, Any]:
        """Return the lowest and the highest number that is stored, in the working dtype."""
        codes, work = self.rule.codes, self._work.type
        if self._clips():
            return work(codes.minimum), work(codes.maximum)
        limits = np.iinfo(self.codes.dtype)
        return work(max(int(limits.min), -_WHOLE)), work(min(int(limits.max), _WHOLE))

    def _before_rounding(
        self, source: Floats, where: NDArray[np.int64], step: Floats, offset: Floats, segment: int
    ) -> Floats:
        """Return the real codes that are then rounded to integers, in a scratch buffer."""
        scaled = scratch("scaled", source.shape, self._work)
        scale = self._scale
        match self.rule.order:
            case ZeroOrder.AFTER_ROUNDING:
                scale(source, where, step, segment, scaled)
            case ZeroOrder.BEFORE_ROUNDING | ZeroOrder.WITH_HALF:
                half = 0.5 if self.rule.order == ZeroOrder.WITH_HALF else 0.0
                scale(source, where, step, segment, scaled)
                self._round_step(scaled)
                self._add(scaled, where, offset + self._work.type(half), segment)
            case ZeroOrder.FUSED if self._narrow():
                steps = expanded(step, where, segment, scaled.shape)
                offsets = expanded(offset, where, segment, scaled.shape)
                scaled[...] = fused_multiply_add(source, steps, offsets, self.precision)
            case ZeroOrder.FUSED:
                loops.multiply_add(source, where, step, offset, segment, scaled)
            case ZeroOrder.SUBTRACTED | ZeroOrder.SUBTRACTED_WITH_HALF:
                moved = rounded(offset, self.precision).astype(self._work)
                loops.add(source, where, -moved, segment, scaled)
                self._round_step(scaled)
                scale(scaled, where, step, segment, scaled)
                if self.rule.order == ZeroOrder.SUBTRACTED_WITH_HALF:
                    self._round_step(scaled)
                    np.add(scaled, self._work.type(0.5), out=scaled)
            case _:  # pragma: no cover
                assert_never(self.rule.order)
        self._round_step(scaled)
        return scaled

    def _scale(
        self, source: Floats, where: NDArray[np.int64], step: Floats, segment: int, out: Floats
    ) -> None:
        """Divide by the steps or multiply with them."""
        if self.rule.scaling != Scaling.DIVIDE:
            loops.multiply(source, where, step, segment, out)
            return
        loops.divide(source, where, step, segment, out)
        if self.rule.zero_divisor == ZeroDivisor.ZERO and not step.all():
            out[expanded(step, where, segment, out.shape) == 0] = 0

    def _add(self, scaled: Floats, where: NDArray[np.int64], offset: Floats, segment: int) -> None:
        """Add offsets in place.

        A sum of two numbers of the precision may be rounded twice, to float64 and then to it;
        offsets of more bits, like 257 in bfloat16, make midpoints that may not.
        """
        if self._narrow() and not np.array_equal(rounded(offset, self.precision), offset):
            addends = expanded(offset, where, segment, scaled.shape)
            scaled[...] = fused_multiply_add(scaled, 1.0, addends, self.precision)
        else:
            loops.add(scaled, where, offset, segment, scaled)

    def _clips(self) -> bool:
        """Whether codes are held in range; a cast to int32 always ends in a clip."""
        return self.rule.clip == Clip.SATURATE or self.rule.infinity == Infinity.CAST_TO_INT32

    def _narrow(self) -> bool:
        """Whether the working dtype holds more bits than the precision computed in."""
        return self._work == np.float64 and self.precision != FLOAT64

    def _in_precision(self, numbers: Floats) -> Floats:
        """Return the numbers in the working dtype, rounded to the rule's precision."""
        if numbers.dtype == self._work and not self._narrow():
            return numbers
        source = scratch("source", numbers.shape, self._work)
        with np.errstate(all="ignore"):
            np.copyto(source, numbers, casting="unsafe")
        self._round_step(source)
        return source

    def _round_step(self, numbers: Floats) -> None:
        """Round what was computed in the working dtype to the rule's precision."""
        if self._narrow():
            numbers[...] = rounded(numbers, self.precision)

    def _store(
        self,
        scaled: Floats,
        where: NDArray[np.int64],
        step: Floats,
        offset: Floats,
        segment: int,
        out: Codes,
    ) -> NDArray[np.bool_]:
        """Round real codes, add the zero point if it comes now, clip, and write them.

        Returns where a code that is not clipped was too large for the dtype.
        """
        del step
        loops.round_in_place(scaled.reshape(-1), self.rule.rounding)
        if self.rule.order != ZeroOrder.AFTER_ROUNDING:
            offset = np.zeros_like(offset)
        if self.rule.infinity == Infinity.CAST_TO_INT32:
            _wrap_int32(scaled, expanded(offset, where, segment, scaled.shape))
            offset = np.zeros_like(offset)
        low, high = self._limits()
        loops.store(scaled, where, offset, segment, low, high, out)
        if self._clips():
            return np.zeros((1, 1), bool)
        codes = scaled + expanded(offset, where, segment, scaled.shape)
        beyond = (codes < low) | (codes > high)
        # The widest dtype has to do for infinities, whose codes are the outermost.
        wide = self.codes.dtype == np.int64
        return beyond & np.isfinite(codes) if wide else beyond

    def _special(
        self, numbers: Floats, scaled: Floats, piece: Piece
    ) -> list[tuple[NDArray[np.bool_], int]]:
        """Return where the real codes are no numbers, with the codes that the rule gives them."""
        codes = self.rule.codes
        nan, refused = np.isnan(scaled), np.zeros(scaled.shape, bool)
        if self.rule.nan == NotANumber.RAISE:
            refused |= nan
        if self.rule.infinity == Infinity.RAISE:
            refused |= np.isinf(numbers)
        if refused.any():
            with self.lock:
                self.refused.append(first_place(refused, piece, self.layout))
        found = [] if self.rule.casts_nan else [(nan, _code_of_nan(self.rule))]
        if self.rule.infinity != Infinity.CAST_TO_INT32:
            found += [(scaled == inf, codes.maximum), (scaled == -inf, codes.minimum)]
        return found


def raise_non_finite(values: NDArray[Any], place: int) -> None:
    """Raise NonFiniteValue for the number at a place counted in C order."""
    index = tuple(int(i) for i in np.unravel_index(place, values.shape))
    value = float(values[index])
    what = "infinity" if abs(value) == inf else "not a number"
    raise NonFiniteValue(
        f"{what} has no code under this rule",
        where=f"index {place if values.ndim == 1 else list(index)}",
        got=str(value),
    )


def raise_too_large(values: NDArray[Any], place: int) -> None:
    """Raise DataMismatch for the number at a place in C order whose code is too large."""
    index = tuple(int(i) for i in np.unravel_index(place, values.shape))
    raise DataMismatch(
        "the code of this number needs more than 53 bits, and the rule does not clip",
        where=f"index {place if values.ndim == 1 else list(index)}",
        got=str(float(values[index])),
        todo="choose a rule that clips, or foldmark.exact, which computes it",
    )


def first_place(chosen: NDArray[np.bool_], piece: Piece, layout: Layout) -> int:
    """Return the place in C order of the first chosen element of a piece."""
    rows, columns = np.nonzero(chosen)
    walked = (rows + piece.first) * layout.length + columns + piece.start
    index = np.unravel_index(walked, [layout.shape[axis] for axis in layout.order])
    back = tuple(index[axis] for axis in np.argsort(layout.order))
    return int(np.ravel_multi_index(back, layout.shape).min())


def work_dtype(rule: AffineRule, dtype: np.dtype[Any], offset: ArrayLike) -> np.dtype[Any]:
    """Return the dtype of scratch buffers: float32 only where every sum in it is what it should be.

    Whole numbers and halves are exact in float32 up to 2^22, and so are their sums.
    """
    given = np.asarray(offset, np.float64)
    with np.errstate(all="ignore"):
        exact = (np.abs(given) <= 1 << 22) & (given.astype(np.float32) == given)
    narrow = rule.precision == FLOAT32 and dtype.itemsize <= 2 and bool(exact.all())
    return np.dtype(np.float32 if narrow else np.float64)


def expanded(
    table: NDArray[Any], where: NDArray[np.int64], segment: int, shape: tuple[int, ...]
) -> NDArray[Any]:
    """Return the parameter of every element of a piece."""
    return np.repeat(table[where], segment, axis=1)[:, : shape[1]]


def _code_of_nan(rule: AffineRule) -> int:
    match rule.nan:
        case NotANumber.HIGHEST:
            return rule.codes.maximum
        case NotANumber.ZERO:
            return rule.codes.clip(0)
        case NotANumber.LOWEST | NotANumber.RAISE:
            return rule.codes.minimum
        case _:  # pragma: no cover
            assert_never(rule.nan)


def _wrap_int32(whole: Floats, offset: Floats) -> None:
    """Cast to int32 as x86 does, -2^31 for all that does not fit, and add with wrap-around."""
    fits = (whole >= -(2.0**31)) & (whole <= 2.0**31 - 1)
    cast = np.where(fits, whole, -(2.0**31)).astype(np.int64)
    whole[...] = (cast + offset.astype(np.int64)).astype(np.int32)
