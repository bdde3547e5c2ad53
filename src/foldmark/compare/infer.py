"""Which rule made these codes: the catalogue first, bit for bit, then a search over the fields.

Three stages, each with its own evidence: the scales tell range, divisor and storage; the zero
points tell theirs; the codes tell order of operations and rounding. In every stage the options
that explain the most are kept, all of them: what several options explain equally well can't be
told apart on this tensor, and is said so.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from foldmark.compare.candidates import (
    affine_rules,
    scale_rules,
    tiny_treatments,
    zero_point_rules,
)
from foldmark.compare.matching import codes_on, names_that_give, screen
from foldmark.compare.observed import Observation
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.rule import (
    AffineRule,
    Infinity,
    NotANumber,
    ScaleRule,
    ScaleUse,
    Scaling,
    TinyRange,
    ZeroPointRule,
    definite,
)
from foldmark.exact.tools.tiny import extent_at_least, scale_at_least
from foldmark.formats.values import Array
from foldmark.kernels.affine import Grid, offset_of, step_of
from foldmark.kernels.precision import rounded
from foldmark.kernels.scales import choose

__all__ = ["Inference", "Stage", "infer_rule"]

T = TypeVar("T")
# A stage that explains less than this explains nothing: the rest would be luck.
_EXPLAINED = 0.95
# Where floors hold many scales, so few of the others still tell the rule.
_SOME = 0.02
# So many (scale, zero point) pairs are carried into the search over codes.
_PAIRS = 48
# So many different scales of unexplained blocks are tried as floors.
_FLOORS = 3


@dataclass(frozen=True)
class Stage(Generic[T]):
    """The options that explain the most of what a stage looks at.

    Attributes:
        options: equally good ones; empty when nothing explains enough.
        agree: how many items they explain.
        total: how many items there are.
    """

    options: tuple[T, ...]
    agree: int
    total: int

    @property
    def is_exact(self) -> bool:
        """True when every item is explained."""
        return bool(self.options) and self.agree == self.total


@dataclass(frozen=True)
class Inference:
    """What the codes, scales and zero points of a tensor are consistent with.

    Attributes:
        names: rules of the catalogue that give every code, scale and zero point.
        names_alive: rules that give all of them but in blocks whose codes are all zero; looked
            for where no rule gives all.
        dead: how many such blocks there are among those looked at.
        scale: how the scale follows from the block's ends; items are blocks.
        zero_point: how the zero point follows; items are blocks.
        affine: how codes follow from values; items are elements.
        pairs: scale and zero point rules that explain all of it together.
        whole: rules from range to code that explain the most together, in parts.
        decisive: for a field's value that was ruled out, on how many elements it fails.
        mismatch: places in the tensor, C order, that the best option does not explain.
    """

    names: tuple[str, ...]
    names_alive: tuple[str, ...]
    dead: int
    scale: Stage[ScaleRule]
    zero_point: Stage[ZeroPointRule]
    affine: Stage[AffineRule]
    pairs: tuple[tuple[ScaleRule | None, ZeroPointRule | None], ...]
    whole: tuple[tuple[ScaleRule | None, ZeroPointRule | None, AffineRule], ...]
    decisive: dict[tuple[str, object], int]
    mismatch: Array

    @property
    def is_exact(self) -> bool:
        """True when one rule explains everything that was looked at."""
        stages = (self.scale.is_exact, self.zero_point.is_exact, self.affine.is_exact)
        return bool(self.names) or all(stages)


@dataclass(frozen=True)
class _Pair:
    """A scale rule and a zero point rule that go together; None where nothing explains them."""

    scale: ScaleRule | None
    zero_point: ZeroPointRule | None


def infer_rule(seen: Observation) -> Inference:
    """Search the rule behind an observation."""
    with np.errstate(all="ignore"):
        names = names_that_give(seen)
        alive = seen.alive()
        dead = int(np.count_nonzero(~alive))
        some = () if names or not dead else names_that_give(seen.part(alive))
        scale = _search_scale(seen)
        zero_point, pairs = _search_zero_point(seen, scale)
        grids = _Grids(seen)
        affine, codes, fitting = _search_affine(seen, pairs, grids)
        whole = tuple((pair.scale, pair.zero_point, rule) for pair, rule in fitting)
        mismatch = seen.places[codes != seen.codes] if affine.options else seen.places[:0, 0]
        decisive = _decisive(seen, affine, pairs, grids)
    ruled_out = set(pairs[:_PAIRS]) - {pair for pair, _ in fitting} if fitting else set()
    left = [pair for pair in pairs if pair not in ruled_out]
    scale, zero_point = _only(scale, left, "scale"), _only(zero_point, left, "zero_point")
    together = tuple((pair.scale, pair.zero_point) for pair in left)
    stages = scale, zero_point, affine
    return Inference(names, some, dead, *stages, together, whole, decisive, np.sort(mismatch))


def _only(stage: Stage[T], pairs: list[_Pair], part: str) -> Stage[T]:
    """Keep the options of a stage that the later stages agree with."""
    kept = {getattr(pair, part) for pair in pairs}
    options = tuple(option for option in stage.options if option in kept)
    return replace(stage, options=options) if options else stage


def _best(scored: Iterable[tuple[T, int]], total: int, enough: float = _EXPLAINED) -> Stage[T]:
    """Keep the options of the highest score, if that is a large enough part of the total."""
    options: list[T] = []
    highest = 0
    for option, score in scored:
        if score > highest:
            options, highest = [], score
        if score == highest and score:
            options.append(option)
    return Stage(tuple(options) if highest >= enough * total else (), highest, total)


def _search_scale(seen: Observation) -> Stage[ScaleRule]:
    total = len(seen.scale)
    candidates = scale_rules(seen.codes_format, seen.scale_format, seen.data)
    plain = _best(((rule, _scales_agree(seen, rule)) for rule in candidates), total, _SOME)
    if not plain.options or plain.is_exact:
        return plain
    treated = (
        replace(rule, tiny=tiny)
        for rule in plain.options
        for tiny in (*tiny_treatments(), *_floors(seen, rule))
    )
    return _best(((rule, _scales_agree(seen, rule)) for rule in treated), total)


def _floors(seen: Observation, rule: ScaleRule) -> Iterator[tuple[TinyRange, ...]]:
    """Yield floors under scale and extent that the blocks without explanation suggest."""
    grid = _grid_of_blocks(seen, rule, ZeroPointRule(), _plain_affine(seen))
    left = seen.scale[rounded(grid.scale, seen.scale_format) != seen.scale]
    values, counts = np.unique(left, return_counts=True)
    for floor in values[np.argsort(-counts)][:_FLOORS]:
        if floor > 0:
            yield scale_at_least(float(floor))
            yield extent_at_least(float(floor) * float(rule.denominator))


def _scales_agree(seen: Observation, rule: ScaleRule) -> int:
    grid = _grid_of_blocks(seen, rule, ZeroPointRule(), _plain_affine(seen))
    return int(np.count_nonzero(rounded(grid.scale, seen.scale_format) == seen.scale))


def _plain_affine(seen: Observation) -> AffineRule:
    return AffineRule(codes=seen.codes_format, nan=NotANumber.LOWEST, infinity=Infinity.SATURATE)


def _grid_of_blocks(
    seen: Observation, scale: ScaleRule, zero: ZeroPointRule, affine: AffineRule
) -> Grid:
    """Choose the grid of every block; a rule of parts that are searched one by one."""
    parts: Any = _Parts(scale, zero, affine)
    return choose(seen.low, seen.high, parts, seen.first_is_low)


@dataclass(frozen=True)
class _Parts:
    """The three parts of a rule, without the checks that a finished rule must pass."""

    scale: ScaleRule
    zero_point: ZeroPointRule
    affine: AffineRule


def _search_zero_point(
    seen: Observation, scale: Stage[ScaleRule]
) -> tuple[Stage[ZeroPointRule], list[_Pair]]:
    total = len(seen.zero)
    shared = float(seen.zero[0]) if total and (seen.zero == seen.zero[0]).all() else None
    natural = (0.0, float(seen.codes_format.minimum + (1 << (seen.codes_format.bits - 1))))
    fixed = int(shared) if shared in natural and not seen.real else None
    if not seen.stored_zero and not seen.real:
        rule = ZeroPointRule(fixed=int(shared or 0))
        return Stage((rule,), total, total), [_Pair(s, rule) for s in scale.options or (None,)]
    if not scale.options:
        return Stage((), 0, total), [_Pair(None, None)]
    candidates = list(zero_point_rules(seen.codes_format, seen.real, fixed, seen.scale_format))
    scored = [
        (_Pair(s, zero), _zeros_agree(seen, s, zero))
        for s in scale.options[:_PAIRS]
        for zero in candidates
    ]
    best = _best(scored, total)
    kept = tuple(dict.fromkeys(pair.zero_point for pair in best.options if pair.zero_point))
    pairs = _in_turn(best.options) or [_Pair(s, None) for s in scale.options[:_PAIRS]]
    return Stage(kept, best.agree, total), pairs


def _in_turn(pairs: tuple[_Pair, ...]) -> list[_Pair]:
    """Order pairs so that each scale rule has its first before any has its second."""
    turns: dict[ScaleRule | None, int] = {}
    placed = []
    for pair in pairs:
        turns[pair.scale] = turns.get(pair.scale, 0) + 1
        placed.append((turns[pair.scale], pair))
    return [pair for _, pair in sorted(placed, key=lambda item: item[0])]


def _zeros_agree(seen: Observation, scale: ScaleRule, zero: ZeroPointRule) -> int:
    affine = _plain_affine(seen)
    grid = _grid_of_blocks(seen, scale, zero, affine)
    found = grid.zero_point
    if seen.real:
        found = rounded(found - zero.fixed * seen.scale, seen.scale_format)
    return int(np.count_nonzero(found == seen.zero))


class _Grids:
    """The grids of an observation's options, each computed once.

    Order, rounding and code range do not change the grid, so that many options share one.
    """

    def __init__(self, seen: Observation) -> None:
        self._seen = seen
        self._grids: dict[tuple[object, ...], tuple[Grid, tuple[bytes, bytes]] | None] = {}

    def of(self, pair: _Pair, affine: AffineRule) -> Grid | None:
        """Return the grid, None when the option can't apply."""
        found = self._found(pair, affine)
        return None if found is None else found[0]

    def key(self, pair: _Pair, affine: AffineRule) -> tuple[object, ...]:
        """Return what decides the codes: options that share it give the same ones."""
        found = self._found(pair, affine)
        multiplies = affine.scaling is not Scaling.DIVIDE
        precision = definite(affine.precision, FLOAT32)
        decided = (affine.order, affine.rounding, precision.name, affine.codes.name, multiplies)
        return (*decided, *(found[1] if found is not None else ()))

    def _found(self, pair: _Pair, affine: AffineRule) -> tuple[Grid, tuple[bytes, bytes]] | None:
        precision = definite(affine.precision, FLOAT32)
        key = (id(pair), affine.scaling, affine.scale, precision.name)
        if key not in self._grids:
            grid = _full_grid(self._seen, pair, affine)
            found = None if grid is None else (grid, (grid.step.tobytes(), grid.offset.tobytes()))
            self._grids[key] = found
        return self._grids[key]


def _search_affine(
    seen: Observation, pairs: list[_Pair], grids: _Grids
) -> tuple[Stage[AffineRule], Array, list[tuple[_Pair, AffineRule]]]:
    """Return the best options, the codes that the first of them gives, and all with their pair."""
    rows, columns = screen(seen)
    answers: dict[tuple[object, ...], int] = {}
    scored: list[tuple[tuple[AffineRule, _Pair], int]] = []
    for affine, pair in _options(seen, pairs):
        grid = grids.of(pair, affine)
        if grid is None:
            continue
        key = grids.key(pair, affine)
        if key not in answers:
            part = Grid(grid.scale, grid.zero_point, grid.step[rows], grid.offset[rows])
            found = codes_on(seen.values[rows, columns], part, affine)
            answers[key] = int(np.count_nonzero(found == seen.codes[rows, columns]))
        scored.append(((affine, pair), answers[key]))
    if not scored:
        return Stage((), 0, seen.codes.size), seen.codes, []
    ahead = max(score for _, score in scored)
    slack = max(2, ahead // 2000)
    kept = [option for option, score in scored if score >= ahead - slack]
    return _final(seen, kept, grids)


def _final(
    seen: Observation, options: list[tuple[AffineRule, _Pair]], grids: _Grids
) -> tuple[Stage[AffineRule], Array, list[tuple[_Pair, AffineRule]]]:
    found: dict[tuple[object, ...], Array] = {}
    scored = []
    for affine, pair in options:
        grid = grids.of(pair, affine)
        assert grid is not None
        key = grids.key(pair, affine)
        if key not in found:
            found[key] = codes_on(seen.values, grid, affine)
        score = int(np.count_nonzero(found[key] == seen.codes))
        scored.append(((affine, key, pair), score))
    best = _best(scored, seen.codes.size)
    kept = tuple(dict.fromkeys(affine for affine, _, _ in best.options))
    codes = found[best.options[0][1]] if best.options else seen.codes
    fitting = [(pair, affine) for affine, _, pair in best.options]
    return Stage(kept, best.agree, best.total), codes, fitting


def _options(seen: Observation, pairs: list[_Pair]) -> Iterator[tuple[AffineRule, _Pair]]:
    for pair in pairs[:_PAIRS]:
        ratio = pair.scale.denominator if pair.scale is not None else _plain_ratio(seen)
        for affine in affine_rules(seen.codes_format, seen.real, ratio, seen.data):
            yield affine, pair


def _plain_ratio(seen: Observation) -> Any:
    return _plain_affine(seen).ratio


def _full_grid(seen: Observation, pair: _Pair, affine: AffineRule) -> Grid | None:
    """Return the grid that codes are computed on, None when an option can't apply.

    Scales and integer zero points are the stored ones, so that a stage that was not explained
    doesn't spoil the next; unrounded ones follow from the pair.
    """
    if pair.scale is not None and (not seen.real or pair.zero_point is not None):
        grid = _grid_of_blocks(seen, pair.scale, pair.zero_point or ZeroPointRule(), affine)
        if not seen.real:
            return Grid(grid.scale, seen.zero, _step(seen, affine, grid), seen.zero)
        if affine.scale is ScaleUse.UNROUNDED:
            return grid
    if affine.scale is ScaleUse.UNROUNDED or affine.scaling not in (
        Scaling.DIVIDE,
        Scaling.RECIPROCAL,
    ):
        return None
    zero = offset_of(seen.scale, seen.zero, affine)
    return Grid(seen.scale, seen.zero, step_of(seen.scale, seen.scale, affine), zero)


def _step(seen: Observation, affine: AffineRule, grid: Grid) -> Array:
    """Return the step from the stored scale where the option says so, else as chosen."""
    from_scale = affine.scaling in (Scaling.DIVIDE, Scaling.RECIPROCAL)
    if affine.scale is ScaleUse.STORED and from_scale:
        return step_of(seen.scale, seen.scale, affine)
    return grid.step


_FIELDS = ("rounding", "order", "scaling", "scale", "precision", "codes")


def _decisive(
    seen: Observation, affine: Stage[AffineRule], pairs: list[_Pair], grids: _Grids
) -> dict[tuple[str, object], int]:
    """Count, for each neighbour of the best option, the elements that rule it out."""
    if not affine.options:
        return {}
    chosen = affine.options[0]
    found: dict[tuple[str, object], int] = {}
    for other, pair in _options(seen, pairs[:1]):
        changed = [name for name in _FIELDS if getattr(other, name) != getattr(chosen, name)]
        if len(changed) != 1 or other in affine.options:
            continue
        grid = grids.of(pair, other)
        if grid is None:
            continue
        fails = int(np.count_nonzero(codes_on(seen.values, grid, other) != seen.codes))
        found[changed[0], getattr(other, changed[0])] = fails
    return found
