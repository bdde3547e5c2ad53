"""A quantizer as an object, and the course's functions as thin doors to it."""

from dataclasses import dataclass
from typing import NamedTuple


class Range(NamedTuple):
    low: int
    high: int

    def clip(self, code):
        return self.low if code < self.low else self.high if code > self.high else code


@dataclass(frozen=True)
class Grid:
    scale: float
    zero_point: int = 0
    codes: Range = Range(-127, 127)

    @classmethod
    def symmetric(cls, values, steps=127):
        scale = max(map(abs, values), default=0.0) / steps
        return cls(scale or 1.0, 0, Range(-steps, steps))

    @classmethod
    def affine(cls, values):
        low, high = min(0.0, *values, 0.0), max(0.0, *values, 0.0)
        scale, codes = (high - low) / 255, Range(0, 255)
        if scale == 0.0:
            return cls(1.0, 0, codes)
        return cls(scale, codes.clip(round(-low / scale)), codes)

    def fold(self, values):
        return [self.codes.clip(round(x / self.scale) + self.zero_point) for x in values]

    def unfold(self, codes):
        return [(code - self.zero_point) * self.scale for code in codes]


def symmetric_scale(values):
    return Grid.symmetric(values).scale


def quantize_symmetric(values, scale):
    return Grid(scale).fold(values)


def dequantize_symmetric(codes, scale):
    return Grid(scale).unfold(codes)


def affine_parameters(values):
    grid = Grid.affine(values)
    return [grid.scale, grid.zero_point]


def quantize_affine(values, scale, zero_point):
    return Grid(scale, zero_point, Range(0, 255)).fold(values)


def dequantize_affine(codes, scale, zero_point):
    return Grid(scale, zero_point).unfold(codes)


def quantize_per_tensor(matrix):
    grid = Grid.symmetric([x for row in matrix for x in row])
    return [grid.fold(row) for row in matrix], grid.scale


def quantize_per_row(matrix):
    grids = [Grid.symmetric(row) for row in matrix]
    return [[grid.fold(row) for grid, row in zip(grids, matrix)], [grid.scale for grid in grids]]


def quantize_blocks(values, block_size):
    blocks = [values[i : i + block_size] for i in range(0, len(values), block_size)]
    grids = [Grid.symmetric(block, 7) for block in blocks]
    codes = [code for grid, block in zip(grids, blocks) for code in grid.fold(block)]
    return codes, [grid.scale for grid in grids]


def fake_quantize(x, scale):
    grid = Grid(scale)
    return grid.unfold(grid.fold([x]))[0]
