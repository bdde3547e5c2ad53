"""Weights on which rules part that give the same codes for almost every real one.

A block is a group of numbers with a scale of its own. Each has one of these, drawn at random:

    ties      numbers half way between two codes, their scale exact in few bits, for some divisor
    near      numbers within two places of half way, for a scale with every bit in use
    grid      a fixed-point grid, and float16's numbers: ties come by themselves
    zero      nothing but zero, and blocks so small that tools treat them apart
    one side  all positive, all negative, all alike
    ends      both ends equally far from zero
"""

from collections.abc import Callable

import numpy as np

__all__ = ["decisive_weights"]

Draw = Callable[[np.random.Generator, int], np.ndarray]
# What tools divide a block's range by.
_DIVISORS = (127, 127.5, 128, 63.5, 64, 255, 254, 7, 7.5, 8, 14, 15, 16, 31)
_TENSORS = 64


def decisive_weights(columns: int) -> dict[str, np.ndarray]:
    """Return float32 weights by name, the same every time.

    columns: a multiple of 64. Rows, groups of 64 and groups of 32 have blocks of their own in one
    weight each; for scales per tensor there are many small weights, (32, 64).
    """
    draw = np.random.default_rng(9)
    found = {}
    for size in (columns, 64, 32):
        blocks = [_block(draw, size) for _ in range(128 * columns // size)]
        found[f"blocks{size}.weight"] = np.stack(blocks).reshape(128, columns)
    for place in range(_TENSORS):
        found[f"tensor{place}.weight"] = _block(draw, 2048).reshape(32, 64)
    return found


def _block(draw: np.random.Generator, size: int) -> np.ndarray:
    kind = _COMMON[draw.integers(2)] if draw.random() < 0.6 else _RARE[draw.integers(len(_RARE))]
    return kind(draw, size).astype(np.float32)


def _halves(draw: np.random.Generator, size: int) -> tuple[np.ndarray, float]:
    """Return half-steps between -divisor and divisor, and the divisor."""
    divisor = float(draw.choice(_DIVISORS))
    return draw.integers(-int(2 * divisor), int(2 * divisor) + 1, size) / 2, divisor


def _ties(draw: np.random.Generator, size: int) -> np.ndarray:
    halves, divisor = _halves(draw, size)
    scale = int(draw.integers(1, 256)) * 2.0 ** -int(draw.integers(10, 18))
    numbers = halves * scale
    numbers[0] = divisor * scale * draw.choice((-1, 1))
    if draw.random() < 0.5:  # the other end: as far, or a step more or less
        numbers[1] = -numbers[0] * draw.choice((1, (divisor - 1) / divisor, 0.5))
    return draw.permutation(numbers)


def _near(draw: np.random.Generator, size: int) -> np.ndarray:
    halves, divisor = _halves(draw, size)
    largest = np.float32(np.exp(draw.normal(-2, 1)))
    numbers = (halves * (largest / np.float32(divisor))).astype(np.float32)
    moved = numbers.view(np.int32) + draw.integers(-2, 3, size, np.int32) * (numbers != 0)
    numbers = np.clip(moved.astype(np.int32).view(np.float32), -largest, largest)
    numbers[0] = largest * draw.choice((-1, 1))
    return draw.permutation(numbers)


def _grid(draw: np.random.Generator, size: int) -> np.ndarray:
    return draw.integers(-120, 121, size) * 2.0 ** -int(draw.integers(6, 12))


def _half_precision(draw: np.random.Generator, size: int) -> np.ndarray:
    return draw.normal(0, np.exp(draw.normal(-3, 1)), size).astype(np.float16)


def _zero(draw: np.random.Generator, size: int) -> np.ndarray:
    return draw.normal(size=size) * 0.0


def _small(draw: np.random.Generator, size: int) -> np.ndarray:
    return draw.normal(size=size) * 10.0 ** -draw.uniform(2, 8)


def _positive(draw: np.random.Generator, size: int) -> np.ndarray:
    return np.abs(draw.normal(0.2, 0.1, size))


def _negative(draw: np.random.Generator, size: int) -> np.ndarray:
    return -_positive(draw, size)


def _alike(draw: np.random.Generator, size: int) -> np.ndarray:
    return np.full(size, draw.normal())


def _even_ends(draw: np.random.Generator, size: int) -> np.ndarray:
    numbers = draw.normal(0, 0.1, size)
    first, second = draw.permutation(size)[:2]
    numbers[first] = np.abs(numbers).max() * 1.1
    numbers[second] = -numbers[first]
    return numbers


_COMMON: tuple[Draw, ...] = (_ties, _near)
_RARE: tuple[Draw, ...] = (
    _grid,
    _half_precision,
    _zero,
    _small,
    _positive,
    _negative,
    _alike,
    _even_ends,
)
