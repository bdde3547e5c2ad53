"""Step 11: blocks of 32 at 4 bits, their bytes, and what the scales weigh."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from foldmark.exact import storage
from foldmark.exact.catalog import FLOAT64
from foldmark.exact.group import quantize_blocks as exact_blocks
from foldmark.exact.packing import LOW_NIBBLE_FIRST, pack
from foldmark.lab import rules
from foldmark.lab.draws import gaussian, lists
from foldmark.lab.exercise import (
    NIBBLE,
    REAL,
    Arguments,
    Function,
    Mistake,
    Number,
    Parameter,
    Place,
    Sentence,
    Step,
)
from foldmark.lab.steps.work import code_work, scale_work

_SIZE = Number("int", 1, 64)
_COUNT = Number("int", 1, 1 << 30)
_BITS = Number("int", 1, 64)


def quantize_blocks(values: list[float], block_size: int) -> tuple[list[int], list[float]]:
    """Return the codes -7..7 of all values, and one symmetric scale max|x| / 7 a block."""
    groups = exact_blocks(values, block_size, rules.NIBBLES, FLOAT64)
    return [code for group in groups for code in group.codes], [group.scale for group in groups]


def pack_nibbles(codes: list[int]) -> list[int]:
    """Return two codes a byte, the first in the low half; an odd one is joined by 0."""
    return list(pack(codes, LOW_NIBBLE_FIRST))


def bits_per_value(count: int, block_size: int, code_bits: int, scale_bits: int) -> float:
    """Return the bits of codes and scales together, over the count of values."""
    return float(storage.bits_per_value(count, block_size, code_bits, scale_bits))


def _blocks(random: Random) -> Iterator[Arguments]:
    yield ([], 32)
    yield ([0.0] * 5, 4)
    yield ([7.0, 0.5, 1.5, 2.5, -0.5, -7.0], 6)
    yield ([7.0, 3.5, -7.0, 0.7, 0.35, -0.25], 3)
    for _ in range(10):
        size = random.choice((1, 2, 4, 8))
        wide = gaussian(random, size, 10.0 ** random.randint(-2, 2))
        yield ([*wide, *gaussian(random, random.randint(0, 9))], size)
    yield (gaussian(random, 70), 32)
    for values in lists(random)[3:10]:
        yield (values, 2)


def _nibbles(random: Random) -> Iterator[Arguments]:
    yield ([],)
    yield ([-1],)
    yield ([7, -8],)
    yield ([1, 2, 3],)
    for _ in range(14):
        yield ([random.randint(-8, 7) for _ in range(random.randint(1, 9))],)


def _sizes(random: Random) -> Iterator[Arguments]:
    yield (32, 32, 4, 16)
    yield (33, 32, 4, 16)
    yield (1, 32, 4, 16)
    yield (64, 32, 4, 32)
    for _ in range(12):
        yield (
            random.randint(1, 5000),
            random.choice((16, 32, 64)),
            random.randint(2, 8),
            random.choice((8, 16, 32)),
        )


def _blocks_by(steps: int, low: int) -> Callable[..., Any]:
    """Return a mistaken quantize_blocks that divides by `steps` and clips at `low`."""

    def quantize(values: list[float], block_size: int) -> tuple[list[int], list[float]]:
        codes, scales = [], []
        for start in range(0, len(values), block_size):
            block = values[start : start + block_size]
            scale = max(map(abs, block)) / steps or 1.0
            scales.append(scale)
            codes += [max(low, min(7, round(x / scale))) for x in block]
        return codes, scales

    return quantize


def _one_scale(values: list[float], _: int) -> tuple[list[int], list[float]]:
    codes, scale = rules.fold(values, rules.NIBBLES)
    return codes, [scale]


def _last_dropped(values: list[float], block_size: int) -> tuple[list[int], list[float]]:
    return quantize_blocks(values[: len(values) // block_size * block_size], block_size)


def _packed(codes: list[int], high_first: bool = False, offset: int = 0) -> list[int]:
    even = [*codes, 0] if len(codes) % 2 else codes
    halves = [(code + offset) & 15 for code in even]
    pairs = zip(halves[::2], halves[1::2], strict=True)
    return [(a << 4 | b) if high_first else (b << 4 | a) for a, b in pairs]


def _halves(codes: list[int]) -> list[int]:
    half = (len(codes) + 1) // 2
    low, high = codes[:half], [*codes[half:], 0][:half]
    return [(b & 15) << 4 | a & 15 for a, b in zip(low, high, strict=True)]


def _block_work(arguments: Arguments, place: Place) -> tuple[Sentence, ...]:
    values, size = arguments
    if len(place) < 2:
        return ()
    block_index = place[1] if place[0] == 1 else place[1] // size
    block = values[block_index * size : (block_index + 1) * size]
    lines = (Sentence("block", {"index": block_index, "block": block}), *scale_work(block, 7))
    if place[0] == 1:
        return lines
    _, scale = rules.fold(block, rules.NIBBLES)
    return (*lines, *code_work(values[place[1]], scale, None, rules.NIBBLES.codes))


def _pack_work(arguments: Arguments, place: Place) -> tuple[Sentence, ...]:
    if not place:
        return ()
    codes = [*arguments[0], 0]
    low, high = codes[2 * place[0]], codes[2 * place[0] + 1]
    fields = {"low": low, "high": high, "low_half": low & 15, "high_half": high & 15}
    return (Sentence("packed", {**fields, "byte": (high & 15) * 16 + (low & 15)}),)


def _bits_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    count, size, code_bits, scale_bits = arguments
    blocks = -(-count // size)
    fields = {"blocks": blocks, "codes": count * code_bits, "scales": blocks * scale_bits}
    result = {"count": count, "result": bits_per_value(*arguments)}
    return (Sentence("bits", {**fields, **result}),)


STEP = Step(
    11,
    "blocks",
    (
        Function(
            quantize_blocks,
            (Parameter("values", REAL, ("n",)), Parameter("block_size", _SIZE)),
            "tuple[list[int], list[float]]",
            _blocks,
            mistakes=(
                Mistake("scale_8", _blocks_by(8, -8)),
                Mistake("scale_8", _blocks_by(8, -7)),
                Mistake("scale_15", _blocks_by(15, -7)),
                Mistake("one_scale_for_blocks", _one_scale),
                Mistake("last_block_dropped", _last_dropped),
            ),
            work=_block_work,
        ),
        Function(
            pack_nibbles,
            (Parameter("codes", NIBBLE, ("n",)),),
            "list[int]",
            _nibbles,
            mistakes=(
                Mistake("high_half_first", lambda codes: _packed(codes, high_first=True)),
                Mistake("offset_8", lambda codes: _packed(codes, offset=8)),
                Mistake("halves_packed", _halves),
                Mistake("last_code_dropped", lambda codes: _packed(codes[: len(codes) // 2 * 2])),
            ),
            work=_pack_work,
        ),
        Function(
            bits_per_value,
            (
                Parameter("count", _COUNT),
                Parameter("block_size", _SIZE),
                Parameter("code_bits", _BITS),
                Parameter("scale_bits", _BITS),
            ),
            "float",
            _sizes,
            tolerance=1e-12,
            mistakes=(
                Mistake("part_of_a_scale", lambda n, size, code, scale: code + scale / size),
                Mistake(
                    "last_block_scaleless",
                    lambda n, size, code, scale: (n * code + n // size * scale) / n,
                ),
                Mistake("scales_forgotten", lambda n, size, code, scale: float(code)),
                Mistake(
                    "bytes_for_bits",
                    lambda *arguments: bits_per_value(*arguments) / 8,
                ),
            ),
            work=_bits_work,
        ),
    ),
)
