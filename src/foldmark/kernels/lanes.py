"""Loops over blocks in LLVM's own vectors, for the plainest rules on float32.

A loop that the compiler vectorises begins with checks, whether arrays overlap and how many numbers
are left, and ends with what was left: on a block of 32 that is most of its time, and most of the
time to compile it too. These walk LANES numbers a step; a last, shorter step is taken on a copy of
what is left. LLVM cuts the vectors to the processor's own width.

    blocks   of an array from block `first` on, `segment` numbers each; the last one may be shorter
    codes    stand one an element, or two of 4 bits in a byte. Which of the two is part of a loop's
             type, so that each is compiled only where it is used: `order` is () for the one, (up,)
             for the other, with the bit at which the first code of a byte begins, 0 or 4. Two codes
             a byte want even segments, and a processor that stores the low byte of a word first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "ABOVE",
    "BELOW",
    "DIVIDE",
    "HOLD",
    "LANES",
    "Order",
    "ends_of_blocks",
    "fold_blocks_by_products",
    "fold_blocks_by_quotients",
    "unfold_blocks",
]

LANES: Final = 32
"""Numbers in one step of a loop."""

Order = tuple[int, ...]

_BYTE: Final = ir.IntType(8)
_PAIR: Final = ir.IntType(16)
_WORD: Final = ir.IntType(32)
_SINGLE: Final = ir.FloatType()
_PAIRS: Final = ir.VectorType(_PAIR, LANES // 2)
_WORDS: Final = ir.VectorType(_WORD, LANES)
_NUMBERS: Final = ir.VectorType(_SINGLE, LANES)


@intrinsic
def ends_of_blocks(
    _typing: Any, bits: Any, _segment: Any, _first: Any, tops: Any, bottoms: Any
) -> Any:
    """Write of every block the largest of its int32, and the largest of them as unsigned.

    The first is 0 where none is positive, the second 2^31 where none is negative.
    """

    def code(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
        array, segment, first, *ends = arguments
        source = _Stream.of(context, builder, typed.args[0], array, 32)
        targets = [
            _Stream.of(context, builder, kind, end, 32)
            for kind, end in zip(typed.args[3:], ends, strict=True)
        ]
        top = cgutils.alloca_once(builder, _WORDS)
        bottom = cgutils.alloca_once(builder, _WORDS)

        def step(place: Any) -> None:
            found = _load(builder, place, _WORDS)
            builder.store(_call(builder, "llvm.smax", builder.load(top), found), top)
            builder.store(_call(builder, "llvm.umax", builder.load(bottom), found), bottom)

        def block(index: Any, begin: Any, count: Any) -> None:
            builder.store(_splat(builder, _WORD(0)), top)
            builder.store(_splat(builder, _WORD(1 << 31)), bottom)
            _walk(builder, begin, count, [source], step)
            for cell, kind, target in ((top, "smax", targets[0]), (bottom, "umax", targets[1])):
                end = _reduce(builder, f"llvm.vector.reduce.{kind}", builder.load(cell))
                _store(builder, end, target.at(builder, index))

        _each_block(builder, source, segment, first, targets[0].count, block)
        return context.get_dummy_value()

    return types.void(bits, types.intp, types.intp, tops, bottoms), code


@intrinsic
def fold_blocks_by_quotients(
    _typing: Any,
    values: Any,
    _segment: Any,
    _first: Any,
    steps: Any,
    zeros: Any,
    factors: Any,
    asks: Any,
    _low: Any,
    _high: Any,
    order: Any,
    codes: Any,
) -> Any:
    """Write the codes round(x / step) + zero of blocks, ties to even, held in low..high.

    steps, zeros  one of each a block; zeros are whole, steps finite and not 0
    factors       1 / step
    asks          int32: 0, HOLD where codes may lie out of range, DIVIDE where factors are no use
    low, high     whole

    By two products where they decide the code, by division where not: see `quotients`.
    """

    def code(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
        low, high = (_splat(builder, arguments[i]) for i in (7, 8))
        bits, middle = _splat(builder, _WORD(_WHOLE_BITS)), _splat(builder, _SINGLE(_WHOLE))
        ends = [builder.add(bits, builder.fptosi(limit, _WORDS)) for limit in (low, high)]
        held = cgutils.alloca_once(builder, _WORDS)

        def step_of(divisor: Any, zero: Any, factor: Any, ask: Any) -> Callable[[Any, Any], None]:
            divides = builder.icmp_signed("==", ask, _WORD(DIVIDE))
            asked = builder.sext(builder.icmp_signed("!=", ask, _WORD(0)), _WORD)
            divisor, zero, factor = (_splat(builder, n) for n in (divisor, zero, factor))
            whole = builder.fadd(zero, middle)
            below, above = (
                builder.fmul(factor, _splat(builder, _SINGLE(end))) for end in (BELOW, ABOVE)
            )

            def step(source: Any, target: Any) -> None:
                x = _load(builder, source, _NUMBERS)
                found, other = (_whole_bits(builder, x, factor, whole) for factor in (below, above))
                apart = builder.bitcast(builder.icmp_signed("!=", found, other), _WORD)
                builder.store(found, held)
                more = builder.icmp_signed("!=", builder.or_(apart, asked), _WORD(0))
                with builder.if_then(more, likely=False):
                    within = _call(builder, "llvm.smax", found, ends[0])
                    builder.store(_call(builder, "llvm.smin", within, ends[1]), held)
                    parts = builder.icmp_signed("!=", apart, _WORD(0))
                    with builder.if_then(builder.or_(divides, parts), likely=False):
                        exact = _rounded(builder, builder.fdiv(x, divisor), zero, low, high)
                        builder.store(builder.add(exact, bits), held)
                _write(builder, builder.load(held), arguments[9], typed.args[-1].dtype, target)

            return step

        _each_block_of_codes(context, builder, typed, arguments, step_of)
        return context.get_dummy_value()

    return _signature_of_codes(values, steps, zeros, factors, asks, order, codes), code


@intrinsic
def fold_blocks_by_products(
    _typing: Any,
    values: Any,
    _segment: Any,
    _first: Any,
    steps: Any,
    zeros: Any,
    factors: Any,
    asks: Any,
    _low: Any,
    _high: Any,
    order: Any,
    codes: Any,
) -> Any:
    """Write the codes round(x * factor) + zero of blocks; else as `fold_blocks_by_quotients`."""

    def code(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
        low, high = (_splat(builder, arguments[i]) for i in (7, 8))

        def step_of(_divisor: Any, zero: Any, factor: Any, _ask: Any) -> Callable[[Any, Any], None]:
            zero, factor = _splat(builder, zero), _splat(builder, factor)

            def step(source: Any, target: Any) -> None:
                product = builder.fmul(_load(builder, source, _NUMBERS), factor)
                words = _rounded(builder, product, zero, low, high)
                _write(builder, words, arguments[9], typed.args[-1].dtype, target)

            return step

        _each_block_of_codes(context, builder, typed, arguments, step_of)
        return context.get_dummy_value()

    return _signature_of_codes(values, steps, zeros, factors, asks, order, codes), code


@intrinsic
def unfold_blocks(
    _typing: Any,
    codes: Any,
    _segment: Any,
    _first: Any,
    _sign: Any,
    scales: Any,
    zeros: Any,
    order: Any,
    values: Any,
) -> Any:
    """Write the numbers ((code ^ sign) - zero) * scale of blocks.

    sign           0, or 8 where codes of 4 bits are two's complement, with zeros 8 higher
    scales, zeros  one of each a block; zeros are whole
    """

    def code(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
        array, segment, first, sign, *grids, order, values = arguments
        kind = typed.args[0]
        width = 4 if _is_packed(order) else kind.dtype.bitwidth
        source = _Stream.of(context, builder, kind, array, width)
        target = _Stream.of(context, builder, typed.args[-1], values, 32)
        scales, zeros = (
            _Stream.of(context, builder, given, grid, 32)
            for given, grid in zip(typed.args[4:6], grids, strict=True)
        )
        flip = _splat(builder, sign)

        def block(index: Any, begin: Any, count: Any) -> None:
            scale, zero = (
                _splat(builder, _load(builder, grid.at(builder, index), _SINGLE))
                for grid in (scales, zeros)
            )

            def step(source: Any, target: Any) -> None:
                found = builder.xor(_read(builder, source, order, kind.dtype), flip)
                moved = builder.fsub(builder.sitofp(found, _NUMBERS), zero)
                _store(builder, builder.fmul(moved, scale), target)

            _walk(builder, begin, count, [source, target], step)

        _each_block(builder, target, segment, first, scales.count, block)
        return context.get_dummy_value()

    place = types.intp, types.intp, types.int32
    return types.void(codes, *place, scales, zeros, order, values), code


HOLD: Final = 1
DIVIDE: Final = 2
"""What a block may ask for: see `fold_blocks_by_quotients`."""

# The constants of `quotients`, whose text has the proof.
BELOW: Final = 1 - 2.0**-21
ABOVE: Final = 1 + 2.0**-21
_WHOLE: Final = 1.5 * 2.0**23
_WHOLE_BITS: Final = 0x4B400000


@dataclass(frozen=True, slots=True)
class _Stream:
    """Where numbers of `bits` bits follow one another in memory; how many there are."""

    place: Any
    bits: int
    count: Any

    @staticmethod
    def of(context: Any, builder: Any, kind: Any, array: Any, bits: int) -> "_Stream":
        """Return the numbers of an array, which must lie densely."""
        if kind.layout != "C":
            raise TypeError(f"these loops walk dense arrays only, not {kind}")
        made = context.make_array(kind)(context, builder, array)
        return _Stream(builder.bitcast(made.data, _BYTE.as_pointer()), bits, made.nitems)

    def size(self, builder: Any, count: Any) -> Any:
        """Return the bytes of so many numbers."""
        if self.bits < 8:
            return builder.lshr(count, count.type(8 // self.bits - 1))
        return builder.mul(count, count.type(self.bits // 8))

    def at(self, builder: Any, index: Any) -> Any:
        """Return where a number begins."""
        return builder.gep(self.place, [self.size(builder, index)])


def _signature_of_codes(
    values: Any, steps: Any, zeros: Any, factors: Any, asks: Any, order: Any, codes: Any
) -> Any:
    place, limits = [types.intp] * 2, [types.float32] * 2
    return types.void(values, *place, steps, zeros, factors, asks, *limits, order, codes)


def _each_block_of_codes(
    context: Any, builder: Any, typed: Any, arguments: Any, step_of: Callable[..., Any]
) -> None:
    """Emit for every block the walk from its numbers to its codes."""
    array, segment, first, *grids, _, _, order, codes = arguments
    source = _Stream.of(context, builder, typed.args[0], array, 32)
    width = 4 if _is_packed(order) else typed.args[-1].dtype.bitwidth
    target = _Stream.of(context, builder, typed.args[-1], codes, width)
    steps, zeros, factors, asks = (
        _Stream.of(context, builder, kind, grid, 32)
        for kind, grid in zip(typed.args[3:7], grids, strict=True)
    )

    def block(index: Any, begin: Any, count: Any) -> None:
        step, zero, factor = (
            _load(builder, grid.at(builder, index), _SINGLE) for grid in (steps, zeros, factors)
        )
        ask = _load(builder, asks.at(builder, index), _WORD)
        walked = step_of(step, zero, factor, ask)
        _walk(builder, begin, count, [source, target], walked)

    _each_block(builder, source, segment, first, steps.count, block)


def _each_block(
    builder: Any,
    source: _Stream,
    segment: Any,
    first: Any,
    blocks: Any,
    block: Callable[[Any, Any, Any], None],
) -> None:
    """Emit `block` for the index, from 0, the first number and the count of every block."""
    with cgutils.for_range(builder, blocks) as loop:
        begin = builder.mul(builder.add(first, loop.index), segment)
        left = builder.sub(source.count, begin)
        count = builder.select(builder.icmp_signed("<", left, segment), left, segment)
        block(loop.index, begin, count)


def _walk(
    builder: Any, begin: Any, count: Any, streams: Sequence[_Stream], step: Callable[..., None]
) -> None:
    """Emit `step` for LANES numbers at a time, and on a copy of the rest.

    streams  numbers to read, then where to write, if anywhere; `step` takes a place of each
    """
    lanes = count.type(LANES)
    steps = builder.udiv(count, lanes)
    places = [stream.at(builder, begin) for stream in streams]
    sizes = [count.type(LANES * stream.bits // 8) for stream in streams]
    with cgutils.for_range(builder, steps) as loop:
        step(
            *(
                builder.gep(place, [builder.mul(loop.index, size)])
                for place, size in zip(places, sizes, strict=True)
            )
        )
    rest = builder.and_(count, count.type(LANES - 1))
    with builder.if_then(builder.icmp_signed("!=", rest, rest.type(0)), likely=False):
        lasts = [
            builder.gep(place, [builder.mul(steps, size)])
            for place, size in zip(places, sizes, strict=True)
        ]
        copies = [_room(builder, size) for size in sizes]
        cgutils.memset(builder, copies[0], sizes[0], 0)
        cgutils.raw_memcpy(builder, copies[0], lasts[0], streams[0].size(builder, rest), 1)
        step(*copies)
        if len(streams) > 1:
            cgutils.raw_memcpy(builder, lasts[1], copies[1], streams[1].size(builder, rest), 1)


def _room(builder: Any, size: Any) -> Any:
    """Return memory for one step."""
    room = cgutils.alloca_once(builder, ir.ArrayType(_BYTE, size.constant))
    return builder.bitcast(room, _BYTE.as_pointer())


def _whole_bits(builder: Any, x: Any, factor: Any, whole: Any) -> Any:
    product = builder.fmul(x, factor, flags=("contract",))
    return builder.bitcast(builder.fadd(product, whole, flags=("contract",)), _WORDS)


def _rounded(builder: Any, x: Any, zero: Any, low: Any, high: Any) -> Any:
    """Return round(x) + zero held in low..high, as words."""
    form = ir.FunctionType(_NUMBERS, [_NUMBERS])
    rint = cgutils.get_or_insert_function(builder.module, form, f"llvm.rint.v{LANES}f32")
    code = builder.fadd(builder.call(rint, [x]), zero)
    code = builder.select(builder.fcmp_ordered(">", code, low), code, low)
    code = builder.select(builder.fcmp_ordered("<", code, high), code, high)
    return builder.fptosi(code, _WORDS)


def _write(builder: Any, words: Any, order: Any, kind: Any, target: Any) -> None:
    """Store the low bits of words as codes."""
    if not _is_packed(order):
        codes = builder.trunc(words, ir.VectorType(ir.IntType(kind.bitwidth), LANES))
        _store(builder, codes, target)
        return
    up, down, first, second = _nibbles(builder, order)
    pairs = builder.bitcast(builder.trunc(words, ir.VectorType(_BYTE, LANES)), _PAIRS)
    one = builder.and_(builder.shl(pairs, up), first)
    other = builder.and_(builder.lshr(pairs, down), second)
    both = builder.trunc(builder.or_(one, other), ir.VectorType(_BYTE, LANES // 2))
    _store(builder, both, target)


def _read(builder: Any, source: Any, order: Any, kind: Any) -> Any:
    """Load codes as words: the inverse of `_write`, with codes of 4 bits unsigned."""
    if not _is_packed(order):
        codes = _load(builder, source, ir.VectorType(ir.IntType(kind.bitwidth), LANES))
        return builder.sext(codes, _WORDS) if kind.signed else builder.zext(codes, _WORDS)
    up, down, first, second = _nibbles(builder, order)
    both = builder.zext(_load(builder, source, ir.VectorType(_BYTE, LANES // 2)), _PAIRS)
    one = builder.lshr(builder.and_(both, first), up)
    other = builder.shl(builder.and_(both, second), down)
    codes = builder.bitcast(builder.or_(one, other), ir.VectorType(_BYTE, LANES))
    return builder.zext(codes, _WORDS)


def _is_packed(order: Any) -> bool:
    return bool(order.type.elements if hasattr(order.type, "elements") else order.type.count)


def _nibbles(builder: Any, order: Any) -> list[Any]:
    """Return for pairs of codes, the first in the low byte, the ways into one byte and the masks.

    first   ....aaaa  up by 0 or 4      second  ....bbbb........  down by 4 or 8
    """
    up = builder.trunc(builder.extract_value(order, 0), _PAIR)
    first = builder.shl(_PAIR(15), up)
    ways = up, builder.add(up, _PAIR(4)), first, builder.xor(first, _PAIR(0xFF))
    return [_splat(builder, number, LANES // 2) for number in ways]


def _splat(builder: Any, number: Any, lanes: int = LANES) -> Any:
    """Return a vector whose lanes are all one number."""
    nothing = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    first = builder.insert_element(nothing, number, _WORD(0))
    return builder.shuffle_vector(first, nothing, ir.VectorType(_WORD, lanes)([0] * lanes))


def _load(builder: Any, place: Any, kind: Any) -> Any:
    return builder.load(builder.bitcast(place, kind.as_pointer()), align=_alignment(kind))


def _store(builder: Any, found: Any, place: Any) -> None:
    target = builder.bitcast(place, found.type.as_pointer())
    builder.store(found, target, align=_alignment(found.type))


def _alignment(kind: Any) -> int:
    """Return the bytes of one element: no more is known of an array's place."""
    element = getattr(kind, "element", kind)
    return 4 if element == _SINGLE else element.width // 8


def _call(builder: Any, name: str, left: Any, right: Any) -> Any:
    form = ir.FunctionType(_WORDS, [_WORDS, _WORDS])
    call = cgutils.get_or_insert_function(builder.module, form, f"{name}.v{LANES}i32")
    return builder.call(call, [left, right])


def _reduce(builder: Any, name: str, words: Any) -> Any:
    form = ir.FunctionType(_WORD, [_WORDS])
    call = cgutils.get_or_insert_function(builder.module, form, f"{name}.v{LANES}i32")
    return builder.call(call, [words])
