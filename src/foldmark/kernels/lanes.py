"""Loops over blocks too short for the compiler's own vector loops, written in LLVM's vectors.

A loop that the compiler vectorises begins with checks, whether arrays overlap and how many numbers
are left, and ends with what was left: on 32 numbers that is most of the time. These walk whole
groups of LANES numbers and nothing else; LLVM cuts the vectors to the processor's own width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["LANES", "ends_of_lanes", "round_lanes"]

LANES: Final = 32
"""Numbers in one step of a loop: counts must be multiples of it."""

_WORD: Final = ir.IntType(32)
_WORDS: Final = ir.VectorType(_WORD, LANES)
_NUMBERS: Final = ir.VectorType(ir.FloatType(), LANES)


@intrinsic
def ends_of_lanes(_typing: Any, bits: Any, _begin: Any, _count: Any) -> Any:
    """Return the largest of so many int32 from a place on, and the largest of them as unsigned.

    The first is 0 where none is positive, the second 2^31 where none is negative.
    """

    def code(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
        top = _cell(builder, _splat(builder, ir.Constant(_WORD, 0)))
        bottom = _cell(builder, _splat(builder, ir.Constant(_WORD, 1 << 31)))
        with _steps(builder, arguments[2]) as step:
            place = builder.add(arguments[1], step)
            found = _load(context, builder, typed.args[0], arguments[0], place, _WORDS)
            builder.store(_call(builder, "llvm.smax", builder.load(top), found), top)
            builder.store(_call(builder, "llvm.umax", builder.load(bottom), found), bottom)
        ends = [
            _reduce(builder, "llvm.vector.reduce.smax", builder.load(top)),
            _reduce(builder, "llvm.vector.reduce.umax", builder.load(bottom)),
        ]
        return context.make_tuple(builder, typed.return_type, ends)

    return types.Tuple((types.int32, types.uint32))(bits, types.intp, types.intp), code


@intrinsic
def round_lanes(
    _typing: Any,
    values: Any,
    _begin: Any,
    _count: Any,
    _below: Any,
    _above: Any,
    _whole: Any,
    _lowest: Any,
    _highest: Any,
    codes: Any,
) -> Any:
    """Write the codes of so many numbers from a place on by the lower factor; see `quotients`.

    Returns 0 if the upper factor gives the same bits everywhere.
    """

    def code(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
        values, begin, count, *numbers, codes = arguments
        below, above, whole, lowest, highest = (_splat(builder, number) for number in numbers)
        kind = context.get_data_type(typed.args[8].dtype)
        apart = _cell(builder, _splat(builder, ir.Constant(_WORD, 0)))
        with _steps(builder, count) as step:
            place = builder.add(begin, step)
            x = _load(context, builder, typed.args[0], values, place, _NUMBERS)
            found, other = (_whole_bits(builder, x, factor, whole) for factor in (below, above))
            parts = builder.or_(builder.load(apart), builder.xor(found, other))
            builder.store(parts, apart)
            held = _call(builder, "llvm.smax", found, lowest)
            held = _call(builder, "llvm.smin", held, highest)
            narrow = builder.trunc(held, ir.VectorType(kind, LANES))
            target = _pointer(context, builder, typed.args[8], codes, place, narrow.type)
            builder.store(narrow, target, align=kind.width // 8)
        return _reduce(builder, "llvm.vector.reduce.or", builder.load(apart))

    single, word = types.float32, types.int32
    given = (values, types.intp, types.intp, single, single, single, word, word, codes)
    return word(*given), code


def _whole_bits(builder: Any, x: Any, factor: Any, whole: Any) -> Any:
    product = builder.fmul(x, factor, flags=("contract",))
    return builder.bitcast(builder.fadd(product, whole, flags=("contract",)), _WORDS)


@contextmanager
def _steps(builder: Any, count: Any) -> Iterator[Any]:
    """Emit a loop whose index walks 0, LANES, 2 LANES ... below a count."""
    steps = builder.udiv(count, ir.Constant(count.type, LANES))
    with cgutils.for_range(builder, steps) as loop:
        yield builder.mul(loop.index, ir.Constant(count.type, LANES))


def _cell(builder: Any, start: Any) -> Any:
    """Return a variable, which LLVM keeps in a register."""
    cell = cgutils.alloca_once(builder, start.type)
    builder.store(start, cell)
    return cell


def _splat(builder: Any, number: Any) -> Any:
    """Return a vector whose lanes are all one number."""
    nothing = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(_WORDS, [0] * LANES))


def _pointer(context: Any, builder: Any, kind: Any, array: Any, place: Any, vector: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [place]), vector.as_pointer())


def _load(context: Any, builder: Any, kind: Any, array: Any, place: Any, vector: Any) -> Any:
    return builder.load(_pointer(context, builder, kind, array, place, vector), align=4)


def _call(builder: Any, name: str, left: Any, right: Any) -> Any:
    form = ir.FunctionType(_WORDS, [_WORDS, _WORDS])
    call = cgutils.get_or_insert_function(builder.module, form, f"{name}.v{LANES}i32")
    return builder.call(call, [left, right])


def _reduce(builder: Any, name: str, words: Any) -> Any:
    form = ir.FunctionType(_WORD, [_WORDS])
    call = cgutils.get_or_insert_function(builder.module, form, f"{name}.v{LANES}i32")
    return builder.call(call, [words])
