"""Which rules of the catalogue give what was seen, bit for bit."""

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from foldmark.compare.candidates import catalogue_rules
from foldmark.compare.observed import Observation
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.rule import AffineRule, Infinity, NotANumber, Rule, definite
from foldmark.formats.values import Array
from foldmark.kernels.affine import Grid, codes_of
from foldmark.kernels.precision import rounded
from foldmark.kernels.scales import choose

__all__ = ["codes_on", "matching_rules", "names_that_give", "screen", "tolerant"]

# The first look at a rule sees so many elements; those that fail it are dropped.
_SCREEN = 1 << 13


def names_that_give(seen: Observation, among: Collection[str] | None = None) -> tuple[str, ...]:
    """Return the names of the rules that give exactly what was seen; none where nothing was.

    A rule that stores its scales as the file does goes before one that stores more of them.

    Args:
        seen: blocks beside their weights.
        among: names of the rules that are asked; None for all of the catalogue.
    """
    if not len(seen.scale):
        return ()
    with np.errstate(all="ignore"):
        rules = tuple(matching_rules(seen, among))
    stored_so = tuple(rule for rule in rules if _stores_so(rule, seen))
    return tuple(rule.name for rule in stored_so or rules)


def matching_rules(seen: Observation, among: Collection[str] | None = None) -> Iterator[Rule]:
    """Yield the catalogue's rules that give exactly what was seen, of those in `among`."""
    for rule in catalogue_rules(seen.codes_format):
        asked = among is None or rule.name in among
        if asked and any(_gives(seen, rule.for_data(data)) for data in seen.data):
            yield rule


def codes_on(values: Array, grid: Grid, affine: AffineRule) -> Array:
    """Return the codes of (blocks, k) values, int64, on a grid with one item a block."""
    block = (1, max(1, values.shape[1]))
    column = Grid(grid.scale, grid.zero_point, grid.step[:, None], grid.offset[:, None])
    return codes_of(values, column, affine, block).astype(np.int64)


def screen(seen: Observation) -> tuple[slice, slice]:
    """Return a part of the observation: some blocks, and their most decisive elements."""
    blocks, elements = seen.values.shape
    columns = min(elements, max(8, _SCREEN // blocks))
    rows = max(1, blocks * columns // _SCREEN)
    return slice(None, None, rows), slice(0, columns)


def _stores_so(rule: Rule, seen: Observation) -> bool:
    """Say whether a rule rounds its scales to what the file holds them in, or to less."""
    stored = [rule.for_data(data).scale.stored for data in seen.data]
    narrow = seen.scale_format.mantissa_bits
    return any(definite(dtype, FLOAT32).mantissa_bits <= narrow for dtype in stored)


def _gives(seen: Observation, rule: Rule) -> bool:
    shift = seen.codes_format.minimum - (-(1 << (rule.codes.bits - 1)) if rule.codes.signed else 0)
    grid = choose(seen.low, seen.high, tolerant(rule), seen.first_is_low)
    scale = rounded(grid.scale / float(rule.affine.codes_per_scale), seen.scale_format)
    if not np.array_equal(scale, seen.scale) or rule.affine.zero_is_real != seen.real:
        return False
    zero = _seen_zero(seen, rule, grid) if seen.real else grid.zero_point + shift
    if not np.array_equal(zero, seen.zero):
        return False
    for rows, columns in (screen(seen), (slice(None), slice(None))):
        part = Grid(grid.scale, grid.zero_point, grid.step[rows], grid.offset[rows])
        if not np.array_equal(
            codes_on(seen.values[rows, columns], part, tolerant(rule).affine) + shift,
            seen.codes[rows, columns],
        ):
            return False
    return True


def _seen_zero(seen: Observation, rule: Rule, grid: Grid) -> Array:
    """Return what code 0 stands for, as the file keeps it."""
    middle = rule.affine.middle * seen.scale
    return rounded(rounded(grid.zero_point - middle, FLOAT32), seen.scale_format)


def tolerant(rule: Rule) -> Rule:
    """Return the rule with what it refuses let through: codes are compared, not judged."""
    affine = rule.affine
    if affine.nan is NotANumber.RAISE:
        affine = replace(affine, nan=NotANumber.LOWEST)
    if affine.infinity is Infinity.RAISE:
        affine = replace(affine, infinity=Infinity.SATURATE)
    return replace(rule, affine=affine)
