"""Inputs that a rule and its neighbours are tried on: made for the rule, from its own grid."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from foldmark.errors import FoldmarkError
from foldmark.exact.catalog import BFLOAT16, FLOAT16, FLOAT32
from foldmark.exact.grid import choose_grid
from foldmark.exact.number import FloatFormat
from foldmark.exact.rule import Rule, constant_of
from foldmark.exact.tools.entry import Operator
from foldmark.kernels.affine import dequantize, quantize
from foldmark.kernels.floats import dtype_of
from foldmark.kernels.group import dequantize_group, quantize_group

Outcome = tuple[object, ...]

PLAIN = (
    (1.0,),
    (-1.0,),
    (0.0, 0.0),
    (3.0, 3.0),
    (-3.0, -3.0),
    (1.0, 2.0, 3.0, 4.0),
    (-1.0, -2.0, -3.0, -4.0),
    (-0.7, 0.3, 1.1, -1.9, 0.05, 0.0),
    (0.01, -0.02, 0.03, 100.0),
    (4.0, -4.0, 1.0, -1.0, 2.0),
    (-4.0, 4.0, 1.0, -1.0, 2.0),
    (1e-39, -1e-39, 0.0),
    (1e-35, -3e-36, 0.0),
    (1e-6, -1e-6, 3e-7),
    (1e-6, 5e-7, 0.0),
    (-1e-6, -5e-7, 0.0),
    (2e-4, -1e-4),
    (1e-8, -3e-9),
    (1e-5, -3e-6),
    (3e-5, -2e-5),
    (1e-3, -3e-4),
    (2e-3, -1e-3),
    (3e4, -2e4, 1.0),
    (3e38, -3e38, 1.0),
    (math.nan, 1.0, -1.0),
    (math.inf, 1.0, -1.0),
    (-math.inf, 1.0, -1.0),
    (1.0, 1e30, -1e30),
    # 19 * fl(127 / 38) is the tie 63.5, 19 * fl(fl(1 / 38) * 127) is not.
    (38.0, 19.0),
    (94.0, 47.0),
)


# Twice the real codes of ties: near zero, and where sums with a zero point lose bits.
_HALVES = (*range(-41, 42, 2), *(sign * half for half in (127, 129, 201, 253) for sign in (-1, 1)))


@dataclass(frozen=True)
class Probe:
    """One input: a group, with the scale and zero point given to operators."""

    values: tuple[float, ...]
    data: FloatFormat
    scale: float = 1.0
    zero_point: int = 0


def probes_of(entry: Rule | Operator) -> Iterator[Probe]:
    """Return the inputs for one entry: plain ones, exact half-steps, the numbers beside them."""
    for data in (FLOAT32, FLOAT16, BFLOAT16):
        if isinstance(entry, Rule):
            yield from _of_rule(entry, data)
        else:
            yield from _of_operator(entry, data)


def outcome(entry: Rule | Operator, probe: Probe) -> Outcome:
    """Return codes, scale, zero point and restored numbers to the bit; or the kind of error.

    By the fast twin, which gives the oracle's answers: there are thousands of neighbours.
    """
    try:
        with np.errstate(all="ignore"):
            values = np.array(probe.values).astype(dtype_of(probe.data))
            if isinstance(entry, Rule):
                group = quantize_group(values, entry)
                restored = dequantize_group(group, entry, probe.data)
                zero_is_real = group.zero_point.dtype.kind not in "iu"
                whole = (group.codes,) if zero_is_real else (group.codes, group.zero_point)
                real = (group.scale, group.zero_point, restored)[:: 1 if zero_is_real else 2]
            else:
                scale = np.array(probe.scale, dtype=dtype_of(probe.data))
                zero = np.array(probe.zero_point)
                codes = quantize(values, scale, zero, entry.affine)
                whole = (codes,)
                real = (dequantize(codes, scale, zero, entry.affine, probe.data),)
    except FoldmarkError as error:
        return (type(error).__name__,)
    # Codes are numbers: how wide an array holds them is no part of a rule. Scales have a dtype.
    return (
        *(array.astype(np.float64).tobytes() for array in whole),
        *((str(array.dtype), array.astype(np.float64).tobytes()) for array in real),
    )


def _of_rule(rule: Rule, data: FloatFormat) -> Iterator[Probe]:
    for values in PLAIN:
        yield Probe(tuple(data.round(v) for v in values), data)
    yield from _at_the_ends(rule, data)
    steps = float(rule.scale.denominator * rule.affine.codes_per_scale)
    low = float(int(steps) // 2)
    halves = tuple(n / 2 for n in range(-33, 34))
    for ends in ((steps,), (-steps,), (-low, steps - low), (-low - 1, steps - low - 1)):
        inside = (h for h in halves if min(*ends, 0.0) <= h <= max(*ends, 0.0))
        yield Probe(tuple(data.round(v) for v in (*ends, *inside)), data)
    source = random.Random(rule.name)
    drawn = [(source.uniform(0.1, 9.0), -source.uniform(0.0, 9.0)) for _ in range(8)]
    for ends in ((0.7,), (-1.1,), (-0.7, 1.0), (-1.0, 0.3), (0.3, 2.0), (100.0, -37.0), *drawn):
        yield Probe(tuple(_near_ties(tuple(map(data.round, ends)), rule, data)), data)
    yield from _sharp(rule, data)
    for _ in range(6):
        yield Probe(tuple(data.round(source.gauss(0.1, 1.0)) for _ in range(32)), data)


def _at_the_ends(rule: Rule, data: FloatFormat) -> Iterator[Probe]:
    """Return groups whose scale is nothing or a few of the least steps, and the largest ones."""
    steps = float(rule.scale.denominator * rule.affine.codes_per_scale)
    for size in (1, 2, 3, *(int((k + part) * steps) + 1 for k in (0, 1, 4) for part in (0.4, 0.5))):
        least, far = data.round(size * data.decode(1)), data.round(float(data.maximum) / size)
        for values in ((least,), (-least,), (least, 0.0), (least, -data.decode(1))):
            yield Probe(values, data)
        yield from (Probe((far,), data), Probe((-far, -far), data))


def _sharp(rule: Rule, data: FloatFormat) -> Iterator[Probe]:
    """Return ends that put a tie in the zero point, and ranges just above a tiny one."""
    steps = float(rule.scale.denominator * rule.affine.codes_per_scale)
    for below in (0.5, 1.5, 2.5, int(steps) // 2 + 0.5, int(steps) * 3 // 4 + 0.5):
        yield Probe((-below, steps - below, 1.0, -0.5), data)
    # Zero points that end in a half, or next to one, with scales that have no end in binary.
    for below in (11.0, 13.0, 23.0, 169.0):
        for odd in (5, 7, 15, 221):
            high = data.round(2.0 * steps * below / odd - below)
            if 0.0 < high < float(data.maximum):
                yield Probe((-below, high), data)
    for tiny in rule.for_data(data).scale.tiny:
        threshold = constant_of(tiny.below, data)
        for extent in (2.0 * threshold, 2.0 * threshold * steps):
            if float(data.smallest_normal) < extent < float(data.maximum) / 4:
                yield Probe((data.round(extent),), data)
                yield Probe((data.round(-extent / 3), data.round(extent * 2 / 3)), data)


def _near_ties(ends: tuple[float, ...], rule: Rule, data: FloatFormat) -> Iterator[float]:
    yield from ends
    grid = choose_grid(ends, rule, data)
    step = abs(grid.scale) / float(rule.affine.codes_per_scale)
    for half in _HALVES:
        tie = half / 2 * step
        if tie and min(*ends, 0.0) < tie < max(*ends, 0.0):
            yield from _beside(data.round(tie), data)


def _beside(value: float, data: FloatFormat) -> Iterator[float]:
    code = data.encode(value)
    yield from (data.decode(max(code + distance, 0)) for distance in (-1, 0, 1))


def _of_operator(operator: Operator, data: FloatFormat) -> Iterator[Probe]:
    specials = [math.nan, math.inf, -math.inf, 2.0**31, -(2.0**31), 1e30, -1e30]
    halves = tuple(n / 2 for n in range(-33, 34))
    middle = (operator.codes.minimum + operator.codes.maximum) // 2
    for zero_point in (0, 1, middle, middle + 1):
        yield Probe(halves, data, 1.0, zero_point)
        for special in specials:
            yield Probe((data.round(special),), data, 1.0, zero_point)
    for scale in (0.75, 3.0, 7.0, 49.0):
        yield Probe(tuple(n / 2 * scale for n in range(-41, 42, 2)), data, scale, 0)
    for scale in (41.0, 61.0):  # whole numbers of steps that no reciprocal gives back
        yield Probe(tuple(n * scale for n in range(-8, 9)), data, scale, 0)
    for scale in (0.1, 0.3, 0.7, 0.00214854861, 0.0, 1e-40):
        rounded = data.round(scale)
        # Ties, and whole steps; what lies below minus zero would be NaN.
        borders = [data.round(n / 2 * rounded) or 0.0 for n in range(-41, 42)]
        near = [number for border in borders for number in _beside(border, data)]
        for zero_point in (0, 1, 3, -5):
            yield Probe((0.0, *near), data, rounded, zero_point)
