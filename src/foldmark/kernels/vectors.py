"""Vectors of LLVM and walks over memory, of which `lanes` makes its loops.

Everything here emits code at the place of a builder. LLVM cuts vectors of LANES numbers to the
processor's own width.

    x      LANES float32      numbers of one step
    words  LANES int32        their codes, in the low bits
    place  a pointer to bytes
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils

__all__ = [
    "AHEAD",
    "BIT",
    "LANES",
    "NUMBERS",
    "SINGLE",
    "WORD",
    "WORDS",
    "Stream",
    "ask_ahead",
    "differ",
    "each_block",
    "is_packed",
    "load",
    "of_both",
    "read",
    "reduce",
    "rounded_code",
    "splat",
    "store",
    "walk",
    "whole_bits",
    "write",
]

LANES: Final = 32
"""Numbers in one step of a loop."""

AHEAD: Final = 1 << 16
"""Bytes by which a loop asks memory ahead: what it asks for must stay in the second cache."""

_LINE: Final = 64
"""Bytes that memory is asked for at once."""

BIT: Final = ir.IntType(1)
BYTE: Final = ir.IntType(8)
PAIR: Final = ir.IntType(16)
WORD: Final = ir.IntType(32)
SINGLE: Final = ir.FloatType()
PAIRS: Final = ir.VectorType(PAIR, LANES // 2)
WORDS: Final = ir.VectorType(WORD, LANES)
NUMBERS: Final = ir.VectorType(SINGLE, LANES)


@dataclass(frozen=True, slots=True)
class Stream:
    """Where numbers of `bits` bits follow one another in memory; how many there are."""

    place: Any
    bits: int
    count: Any

    @staticmethod
    def of(context: Any, builder: Any, kind: Any, array: Any, bits: int) -> "Stream":
        """Return the numbers of an array, which must lie densely."""
        if kind.layout != "C":
            raise TypeError(f"these loops walk dense arrays only, not {kind}")
        made = context.make_array(kind)(context, builder, array)
        return Stream(builder.bitcast(made.data, BYTE.as_pointer()), bits, made.nitems)

    def size(self, builder: Any, count: Any) -> Any:
        """Return the bytes of so many numbers."""
        if self.bits < 8:
            return builder.lshr(count, count.type(8 // self.bits - 1))
        return builder.mul(count, count.type(self.bits // 8))

    def at(self, builder: Any, index: Any) -> Any:
        """Return where a number begins."""
        return builder.gep(self.place, [self.size(builder, index)])


def each_block(
    builder: Any,
    source: Stream,
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


def walk(
    builder: Any,
    begin: Any,
    count: Any,
    streams: Sequence[Stream],
    step: Callable[..., None],
    past: Any = None,
) -> None:
    """Emit `step` for LANES numbers at a time, and on a copy of the rest.

    streams  numbers to read, then where to write, if anywhere; `step` takes a place of each
    past     whether to write past the cache, where `step` asks for it; what it is told is true
             only where places are multiples of a step's size
    """
    lanes = count.type(LANES)
    steps = builder.udiv(count, lanes)
    places = [stream.at(builder, begin) for stream in streams]
    sizes = [count.type(LANES * stream.bits // 8) for stream in streams]
    told: list[Any] = []
    if past is not None:
        over = builder.and_(builder.ptrtoint(places[1], count.type), one_below(sizes[1]))
        told = [builder.and_(past, builder.icmp_signed("==", over, count.type(0)))]
    with cgutils.for_range(builder, steps) as loop:
        here = [
            builder.gep(place, [builder.mul(loop.index, size)])
            for place, size in zip(places, sizes, strict=True)
        ]
        step(*here, *told)
    rest = builder.and_(count, one_below(lanes))
    with builder.if_then(builder.icmp_signed("!=", rest, rest.type(0)), likely=False):
        lasts = [
            builder.gep(place, [builder.mul(steps, size)])
            for place, size in zip(places, sizes, strict=True)
        ]
        copies = [room_for(builder, size) for size in sizes]
        cgutils.memset(builder, copies[0], sizes[0], 0)
        cgutils.raw_memcpy(builder, copies[0], lasts[0], streams[0].size(builder, rest), 1)
        step(*copies, *(BIT(0) for _ in told))
        if len(streams) > 1:
            cgutils.raw_memcpy(builder, lasts[1], copies[1], streams[1].size(builder, rest), 1)


def one_below(constant: Any) -> Any:
    return constant.type(constant.constant - 1)


def room_for(builder: Any, size: Any) -> Any:
    """Return memory for one step."""
    room = cgutils.alloca_once(builder, ir.ArrayType(BYTE, size.constant))
    return builder.bitcast(room, BYTE.as_pointer())


def whole_bits(builder: Any, x: Any, factor: Any, whole: Any) -> Any:
    """Return the bits of x * factor + whole, rounded once or twice: see `quotients`."""
    product = builder.fmul(x, factor, flags=("contract",))
    return builder.bitcast(builder.fadd(product, whole, flags=("contract",)), WORDS)


def rounded_code(builder: Any, x: Any, zero: Any, low: Any, high: Any) -> Any:
    """Return round(x) + zero held in low..high, as words."""
    form = ir.FunctionType(NUMBERS, [NUMBERS])
    rint = cgutils.get_or_insert_function(builder.module, form, f"llvm.rint.v{LANES}f32")
    code = builder.fadd(builder.call(rint, [x]), zero)
    code = builder.select(builder.fcmp_ordered(">", code, low), code, low)
    code = builder.select(builder.fcmp_ordered("<", code, high), code, high)
    return builder.fptosi(code, WORDS)


def write(builder: Any, words: Any, order: Any, kind: Any, target: Any, past: Any) -> None:
    """Store the low bits of words as codes, past the cache where asked."""
    if not is_packed(order):
        codes = builder.trunc(words, ir.VectorType(ir.IntType(kind.bitwidth), LANES))
    else:
        up, down, first, second = nibbles(builder, order)
        pairs = builder.bitcast(builder.trunc(words, ir.VectorType(BYTE, LANES)), PAIRS)
        one = builder.and_(builder.shl(pairs, up), first)
        other = builder.and_(builder.lshr(pairs, down), second)
        codes = builder.trunc(builder.or_(one, other), ir.VectorType(BYTE, LANES // 2))
    if isinstance(past, ir.Constant):
        store(builder, codes, target)
        return
    with builder.if_else(past) as (does, does_not):
        with does:
            place = builder.bitcast(target, codes.type.as_pointer())
            size = codes.type.count * codes.type.element.width // 8
            stored = builder.store(codes, place, align=size)
            stored.set_metadata("nontemporal", builder.module.add_metadata([WORD(1)]))
        with does_not:
            store(builder, codes, target)


def read(builder: Any, source: Any, order: Any, kind: Any) -> Any:
    """Load codes as words: the inverse of `write`, with codes of 4 bits unsigned."""
    if not is_packed(order):
        codes = load(builder, source, ir.VectorType(ir.IntType(kind.bitwidth), LANES))
        return builder.sext(codes, WORDS) if kind.signed else builder.zext(codes, WORDS)
    up, down, first, second = nibbles(builder, order)
    both = builder.zext(load(builder, source, ir.VectorType(BYTE, LANES // 2)), PAIRS)
    one = builder.lshr(builder.and_(both, first), up)
    other = builder.shl(builder.and_(both, second), down)
    codes = builder.bitcast(builder.or_(one, other), ir.VectorType(BYTE, LANES))
    return builder.zext(codes, WORDS)


def is_packed(order: Any) -> bool:
    """Say whether codes of an order share bytes: see `lanes`."""
    return bool(order.type.elements if hasattr(order.type, "elements") else order.type.count)


def nibbles(builder: Any, order: Any) -> list[Any]:
    """Return for pairs of codes, the first in the low byte, the ways into one byte and the masks.

    first   ....aaaa  up by 0 or 4      second  ....bbbb........  down by 4 or 8
    """
    up = builder.trunc(builder.extract_value(order, 0), PAIR)
    first = builder.shl(PAIR(15), up)
    ways = up, builder.add(up, PAIR(4)), first, builder.xor(first, PAIR(0xFF))
    return [splat(builder, number, LANES // 2) for number in ways]


def splat(builder: Any, number: Any, lanes: int = LANES) -> Any:
    """Return a vector whose lanes are all one number."""
    nothing = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    first = builder.insert_element(nothing, number, WORD(0))
    return builder.shuffle_vector(first, nothing, ir.VectorType(WORD, lanes)([0] * lanes))


def load(builder: Any, place: Any, kind: Any) -> Any:
    """Return what stands at a place, of which no more is known than that it holds elements."""
    return builder.load(builder.bitcast(place, kind.as_pointer()), align=alignment(kind))


def store(builder: Any, found: Any, place: Any) -> None:
    """Write to a place, of which no more is known than that it holds elements."""
    target = builder.bitcast(place, found.type.as_pointer())
    builder.store(found, target, align=alignment(found.type))


def alignment(kind: Any) -> int:
    """Return the bytes of one element: no more is known of an array's place."""
    element = getattr(kind, "element", kind)
    return 4 if element == SINGLE else element.width // 8


def ask_ahead(builder: Any, place: Any) -> None:
    """Ask for the numbers of the step that begins AHEAD bytes after a place, if there are any.

    Asking for memory that is not there does nothing.
    """
    form = ir.FunctionType(ir.VoidType(), [place.type, WORD, WORD, WORD])
    ask = cgutils.get_or_insert_function(builder.module, form, "llvm.prefetch.p0i8")
    to_read, to_second_cache, of_data = WORD(0), WORD(2), WORD(1)
    for line in range(0, 4 * LANES, _LINE):
        there = builder.gep(place, [ir.IntType(64)(AHEAD + line)])
        builder.call(ask, [there, to_read, to_second_cache, of_data])


def differ(builder: Any, one: Any, other: Any) -> Any:
    """Say whether two vectors of words part anywhere."""
    parts = builder.xor(one, other)
    count = LANES
    while count > 8:  # down to what the narrowest wide processors compare with 0 at once
        count //= 2
        kind = ir.VectorType(WORD, count)
        low, high = (
            builder.shuffle_vector(parts, parts, kind(list(range(begin, begin + count))))
            for begin in (0, count)
        )
        parts = builder.or_(low, high)
    bits = ir.IntType(WORD.width * count)
    return builder.icmp_unsigned("!=", builder.bitcast(parts, bits), bits(0))


def of_both(builder: Any, name: str, left: Any, right: Any) -> Any:
    """Return an LLVM function of two vectors of words, like `llvm.smax`."""
    form = ir.FunctionType(WORDS, [WORDS, WORDS])
    call = cgutils.get_or_insert_function(builder.module, form, f"{name}.v{LANES}i32")
    return builder.call(call, [left, right])


def reduce(builder: Any, name: str, words: Any) -> Any:
    """Return an LLVM function of one vector of words, like `llvm.vector.reduce.smax`."""
    form = ir.FunctionType(WORD, [WORDS])
    call = cgutils.get_or_insert_function(builder.module, form, f"{name}.v{LANES}i32")
    return builder.call(call, [words])
