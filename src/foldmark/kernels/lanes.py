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

from collections.abc import Callable
from typing import Any, Final

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from foldmark.kernels.vectors import (
    LANES,
    NUMBERS,
    SINGLE,
    WORD,
    WORDS,
    Stream,
    ask_ahead,
    differ,
    each_block,
    is_packed,
    load,
    of_both,
    read,
    reduce,
    rounded_code,
    splat,
    store,
    walk,
    whole_bits,
    write,
)

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

Order = tuple[int, ...]


@intrinsic
def ends_of_blocks(
    _typing: Any, bits: Any, _segment: Any, _first: Any, tops: Any, bottoms: Any
) -> Any:
    """Write of every block the largest of its int32, and the largest of them as unsigned.

    The first is 0 where none is positive, the second 2^31 where none is negative.
    """

    def code(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
        array, segment, first, *ends = arguments
        source = Stream.of(context, builder, typed.args[0], array, 32)
        targets = [
            Stream.of(context, builder, kind, end, 32)
            for kind, end in zip(typed.args[3:], ends, strict=True)
        ]
        top = cgutils.alloca_once(builder, WORDS)
        bottom = cgutils.alloca_once(builder, WORDS)

        def step(place: Any) -> None:
            found = load(builder, place, WORDS)
            builder.store(of_both(builder, "llvm.smax", builder.load(top), found), top)
            builder.store(of_both(builder, "llvm.umax", builder.load(bottom), found), bottom)

        def block(index: Any, begin: Any, count: Any) -> None:
            builder.store(splat(builder, WORD(0)), top)
            builder.store(splat(builder, WORD(1 << 31)), bottom)
            walk(builder, begin, count, [source], step)
            for cell, kind, target in ((top, "smax", targets[0]), (bottom, "umax", targets[1])):
                end = reduce(builder, f"llvm.vector.reduce.{kind}", builder.load(cell))
                store(builder, end, target.at(builder, index))

        each_block(builder, source, segment, first, targets[0].count, block)
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
    _past: Any,
    order: Any,
    codes: Any,
) -> Any:
    """Write the codes round(x / step) + zero of blocks, ties to even, held in low..high.

    steps, zeros  one of each a block; zeros are whole, steps finite and not 0
    factors       1 / step
    asks          int32: 0, HOLD where codes may lie out of range, DIVIDE where factors are no use
    low, high     whole
    past          whether codes go past the cache, to memory that nobody reads soon

    By two products where they decide the code, by division where not: see `quotients`.
    """

    def code(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
        order, kind = arguments[10], typed.args[-1].dtype
        low, high = (splat(builder, arguments[i]) for i in (7, 8))
        bits, middle = splat(builder, WORD(_WHOLE_BITS)), splat(builder, SINGLE(_WHOLE))
        ends = [builder.add(bits, builder.fptosi(limit, WORDS)) for limit in (low, high)]
        held = cgutils.alloca_once(builder, WORDS)

        def step_of(divisor: Any, zero: Any, factor: Any, ask: Any) -> Callable[..., None]:
            divides = builder.icmp_signed("==", ask, WORD(DIVIDE))
            asked = builder.icmp_signed("!=", ask, WORD(0))
            divisor, zero, factor = (splat(builder, n) for n in (divisor, zero, factor))
            whole = builder.fadd(zero, middle)
            below, above = (
                builder.fmul(factor, splat(builder, SINGLE(end))) for end in (BELOW, ABOVE)
            )

            def step(source: Any, target: Any, past: Any) -> None:
                ask_ahead(builder, source)
                x = load(builder, source, NUMBERS)
                found, other = (whole_bits(builder, x, factor, whole) for factor in (below, above))
                apart = differ(builder, found, other)
                builder.store(found, held)
                with builder.if_then(builder.or_(apart, asked), likely=False):
                    within = of_both(builder, "llvm.smax", found, ends[0])
                    builder.store(of_both(builder, "llvm.smin", within, ends[1]), held)
                    with builder.if_then(builder.or_(divides, apart), likely=False):
                        exact = rounded_code(builder, builder.fdiv(x, divisor), zero, low, high)
                        builder.store(builder.add(exact, bits), held)
                write(builder, builder.load(held), order, kind, target, past)

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
    _past: Any,
    order: Any,
    codes: Any,
) -> Any:
    """Write the codes round(x * factor) + zero of blocks; else as `fold_blocks_by_quotients`."""

    def code(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
        order, kind = arguments[10], typed.args[-1].dtype
        low, high = (splat(builder, arguments[i]) for i in (7, 8))

        def step_of(_divisor: Any, zero: Any, factor: Any, _ask: Any) -> Callable[..., None]:
            zero, factor = splat(builder, zero), splat(builder, factor)

            def step(source: Any, target: Any, past: Any) -> None:
                ask_ahead(builder, source)
                product = builder.fmul(load(builder, source, NUMBERS), factor)
                words = rounded_code(builder, product, zero, low, high)
                write(builder, words, order, kind, target, past)

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
        width = 4 if is_packed(order) else kind.dtype.bitwidth
        source = Stream.of(context, builder, kind, array, width)
        target = Stream.of(context, builder, typed.args[-1], values, 32)
        scales, zeros = (
            Stream.of(context, builder, given, grid, 32)
            for given, grid in zip(typed.args[4:6], grids, strict=True)
        )
        flip = splat(builder, sign)

        def block(index: Any, begin: Any, count: Any) -> None:
            scale, zero = (
                splat(builder, load(builder, grid.at(builder, index), SINGLE))
                for grid in (scales, zeros)
            )

            def step(source: Any, target: Any) -> None:
                found = builder.xor(read(builder, source, order, kind.dtype), flip)
                moved = builder.fsub(builder.sitofp(found, NUMBERS), zero)
                store(builder, builder.fmul(moved, scale), target)

            walk(builder, begin, count, [source, target], step)

        each_block(builder, target, segment, first, scales.count, block)
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


def _signature_of_codes(
    values: Any, steps: Any, zeros: Any, factors: Any, asks: Any, order: Any, codes: Any
) -> Any:
    place, limits = [types.intp] * 2, [types.float32] * 2
    grids = steps, zeros, factors, asks
    return types.void(values, *place, *grids, *limits, types.boolean, order, codes)


def _each_block_of_codes(
    context: Any, builder: Any, typed: Any, arguments: Any, step_of: Callable[..., Any]
) -> None:
    """Emit for every block the walk from its numbers to its codes."""
    array, segment, first, *grids, _, _, past, order, codes = arguments
    source = Stream.of(context, builder, typed.args[0], array, 32)
    width = 4 if is_packed(order) else typed.args[-1].dtype.bitwidth
    target = Stream.of(context, builder, typed.args[-1], codes, width)
    steps, zeros, factors, asks = (
        Stream.of(context, builder, kind, grid, 32)
        for kind, grid in zip(typed.args[3:7], grids, strict=True)
    )

    def block(index: Any, begin: Any, count: Any) -> None:
        step, zero, factor = (
            load(builder, grid.at(builder, index), SINGLE) for grid in (steps, zeros, factors)
        )
        ask = load(builder, asks.at(builder, index), WORD)
        walked = step_of(step, zero, factor, ask)
        walk(builder, begin, count, [source, target], walked, past)

    each_block(builder, source, segment, first, steps.count, block)
    builder.fence("seq_cst")  # what went past the cache is there for all from here on
