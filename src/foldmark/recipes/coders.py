"""Weights to codes by a method: what a recipe's `methods` put in the place of plain rounding."""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.rule import Extent, Rule
from foldmark.methods.adaround import adaround
from foldmark.methods.clipping import clipped_scales
from foldmark.methods.gptq import GptqResult, Grid, gptq
from foldmark.recipes.evidence import Evidence
from foldmark.surgery.account import Account
from foldmark.surgery.editor import attribute
from foldmark.surgery.products import Product
from foldmark.surgery.weight_only import BlockCoded, BlockCoder, BlockScheme, block_round_to_nearest
from foldmark.surgery.weights import Coded, Coder, WeightScheme, coded, round_to_nearest

__all__ = [
    "AdaRoundSolver",
    "BlockCoderBy",
    "ChosenBlockCoder",
    "ChosenCoder",
    "ClippingCoder",
    "CoderBy",
    "GptqSolver",
    "Solver",
]

Floats = NDArray[np.floating]
M = TypeVar("M")


class ClippingCoder:
    """Codes on the scale with the least squared error, per channel or tensor."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._count = 0

    def __call__(
        self, product: Product, values: Floats, scheme: WeightScheme, axis: int | None
    ) -> Coded:
        """Quantize a weight on clipped scales."""
        plain = round_to_nearest(product, values, scheme, axis)
        found = clipped(values, plain, scheme.rule)
        self._count += int((found.scale < plain.scale).any())
        self._account.say(
            "mse-clipping", f"mse-clipping: the range of {self._count} weights was reduced"
        )
        return found


def reach(rule: Rule) -> tuple[int, int]:
    """Return the lowest and the highest code that a symmetric rule means to use.

    Those of its format, or fewer where its scale divides the largest magnitude into fewer steps:
    codes of 7 bits in an int8, which no method may leave, since wider ones would saturate.
    """
    lowest, highest = rule.codes.minimum, rule.codes.maximum
    steps = int(rule.scale.denominator)
    fewer = rule.scale.extent is Extent.MAGNITUDE and steps < highest
    return (-steps, steps) if fewer else (lowest, highest)


def clipped(values: Floats, plain: Coded, rule: Rule) -> Coded:
    """Return codes on the scales with the least squared error."""
    rows = _rows(values, plain.axis)
    scale = clipped_scales(rows, np.atleast_1d(plain.scale), *reach(rule))
    return _on_scale(values, scale.reshape(plain.scale.shape), plain, rule)


def _rows(values: Floats, axis: int | None) -> Floats:
    return (
        values.reshape(1, -1)
        if axis is None
        else np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    )


def _on_scale(values: Floats, scale: Floats, plain: Coded, rule: Rule) -> Coded:
    shape = [1] * values.ndim
    if plain.axis is not None:
        shape[plain.axis] = -1
    safe = np.where(scale == 0, 1, scale).reshape(shape)
    steps = np.clip(np.rint(values / safe), *reach(rule))
    return Coded(steps.astype(plain.codes.dtype), scale, plain.zero_point, plain.axis)


@dataclass(frozen=True)
class Layer:
    """A weight as its layer multiplies it.

    Attributes:
        product: the operator.
        W: (groups, out, in)  one group but for grouped convolutions.
        H: (groups, in, in)  2 X^T X / tokens of what it reads.
    """

    product: Product
    W: Floats
    H: NDArray[np.float64]


class Solver(ABC):
    """Chooses codes with the layer's output in view, and keeps the report's line about it."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self._weights, self._others = 0, 0

    @abstractmethod
    def solve(
        self, layer: Layer, scale: Floats, zero: Floats, ends: tuple[int, int], size: int
    ) -> NDArray[np.int64]:
        """Return the codes of a layer's weight (groups, out, in), zero point added.

        Args:
            layer: the layer.
            scale: (groups, out, blocks)  of each row's blocks of columns.
            zero: (groups, out, blocks).
            ends: lowest and highest code.
            size: columns of a block.
        """

    def prepared(self, W: Floats, _H: NDArray[np.float64]) -> Floats:
        """Return a weight (out, in) as its scales are to be chosen from."""
        return W

    @abstractmethod
    def line(self) -> str:
        """Return what the report says so far."""

    def done(self) -> None:
        """Count a weight that was solved."""
        self._weights += 1
        self._write()

    def skipped(self) -> None:
        """Count a weight that is rounded to nearest."""
        self._others += 1
        self._write()

    def _write(self) -> None:
        others = f"; {self._others} other weights rounded to nearest" if self._others else ""
        line = self.line()
        self.account.say(line.split(":")[0], f"{line}{others}")


class GptqSolver(Solver):
    """GPTQ, group by group of a convolution."""

    def prepared(self, W: Floats, H: NDArray[np.float64]) -> Floats:
        """Return the weight without the columns that the data never moved."""
        dead = np.diag(H[0]) == 0
        return np.where(dead, 0, W).astype(W.dtype) if dead.any() else W

    def solve(
        self, layer: Layer, scale: Floats, zero: Floats, ends: tuple[int, int], size: int
    ) -> NDArray[np.int64]:
        """Return GPTQ's codes."""
        made = []
        for group in range(len(layer.W)):
            blocks = iter(range(scale.shape[2]))

            def make_grid(_columns: Floats) -> Grid:
                at = np.s_[group, :, (block := next(blocks)) : block + 1]  # noqa: B023
                return Grid(scale[at].astype(np.float64), zero[at].astype(np.float64), *ends)

            found = gptq(layer.W[group], layer.H[group], make_grid, group=size)
            self._remark(layer.product, found)
            made.append(found.codes)
        return np.stack(made)

    def line(self) -> str:
        """Return the report's line."""
        return f"gptq: {self._weights} weights, damping 0.01 of the mean diagonal"

    def _remark(self, product: Product, found: GptqResult) -> None:
        if found.dead:
            some = ", ".join(map(str, found.dead[:4])) + (", ..." if len(found.dead) > 4 else "")
            self.account.note(f"gptq: {product.name} has {len(found.dead)} dead inputs: {some}")
        if found.damping > 0.01:
            self.account.note(
                f"gptq: {product.name} needed damping {found.damping:g}; more samples would help"
            )


class AdaRoundSolver(Solver):
    """AdaRound over a whole layer at once."""

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._error, self._nearest = 0.0, 0.0
        self._moved, self._values = 0, 0
        self._gains: list[float] = []

    def solve(
        self, layer: Layer, scale: Floats, zero: Floats, ends: tuple[int, int], size: int
    ) -> NDArray[np.int64]:
        """Return AdaRound's codes."""
        columns = layer.W.shape[2]
        wide, middle = (
            np.repeat(each, size, axis=2)[..., :columns].astype(np.float64)
            for each in (scale, zero)
        )
        found = adaround(layer.W, layer.H, wide, (ends[0] - middle, ends[1] - middle))
        self._moved += found.moved
        self._values += layer.W.size
        self._gains.append(1 - found.error / found.nearest_error if found.nearest_error else 0.0)
        return found.codes + middle.astype(np.int64)

    def line(self) -> str:
        """Return the report's line."""
        if not self._gains:
            return "adaround: no weight"
        return (
            f"adaround: {self._weights} weights, {100 * self._moved / self._values:.0f} % of "
            f"their codes moved, {100 * float(np.mean(self._gains)):.0f} % less output error"
        )


class CoderBy:
    """Codes per channel or tensor by a solver; weights it can't judge are rounded to nearest."""

    def __init__(self, evidence: Evidence, solver: Solver, clip: bool) -> None:
        self._evidence, self._solver, self._clip = evidence, solver, clip
        self._made: dict[tuple[str, str, int | None], Coded] = {}

    def __call__(
        self, product: Product, values: Floats, scheme: WeightScheme, axis: int | None
    ) -> Coded:
        """Quantize a weight, its inputs' second moment known."""
        key = (product.name, scheme.rule.name, axis)
        if key not in self._made:
            self._made[key] = self._code(product, values, scheme, axis)
        return self._made[key]

    def _code(
        self, product: Product, values: Floats, scheme: WeightScheme, axis: int | None
    ) -> Coded:
        plain = coded(values, scheme.rule, axis)
        if self._clip:
            plain = clipped(values, plain, scheme.rule)
        H = self._evidence.moment(product)
        if H is None:
            self._solver.skipped()
            return plain
        W = _outer_first(product, values)
        groups, outer, inner = W.shape
        scale = np.broadcast_to(plain.scale.reshape(-1, 1), (groups * outer, 1))
        scale = scale.reshape(groups, outer, 1)
        made = self._solver.solve(
            Layer(product, W, H), scale, np.zeros_like(scale), reach(scheme.rule), inner
        )
        self._solver.done()
        own = made[0].T if _inner_is_first(product) else made.reshape(values.shape)
        return Coded(own.astype(plain.codes.dtype), plain.scale, plain.zero_point, plain.axis)


class BlockCoderBy:
    """Blocks of codes by a solver."""

    def __init__(self, evidence: Evidence, solver: Solver) -> None:
        self._evidence, self._solver = evidence, solver

    def __call__(self, product: Product, turned: Floats, scheme: BlockScheme) -> BlockCoded:
        """Quantize W^T (out, in) in blocks, its inputs' second moment known."""
        H = self._evidence.moment(product)
        if H is None:
            self._solver.skipped()
            return block_round_to_nearest(product, turned, scheme)
        plain = block_round_to_nearest(product, self._solver.prepared(turned, H), scheme)
        stored = plain.scale.astype(turned.dtype)
        layer = Layer(product, np.ascontiguousarray(turned)[None], H)
        ends = (0, (1 << scheme.bits) - 1)
        zero = plain.zero_point.astype(np.float32)[None]
        made = self._solver.solve(layer, stored[None], zero, ends, scheme.block_size)
        self._solver.done()
        return BlockCoded(made[0].astype(np.uint8), stored, plain.zero_point)


@dataclass(frozen=True)
class ChosenCoder:
    """Codes by the first coder whose pattern the operator's name holds, else by the default."""

    named: tuple[tuple[str, Coder], ...]
    default: Coder

    def __call__(
        self, product: Product, values: Floats, scheme: WeightScheme, axis: int | None
    ) -> Coded:
        """Quantize a weight."""
        return _first(self.named, product, self.default)(product, values, scheme, axis)


@dataclass(frozen=True)
class ChosenBlockCoder:
    """Blocks by the first coder whose pattern the operator's name holds, else by the default."""

    named: tuple[tuple[str, BlockCoder], ...]
    default: BlockCoder

    def __call__(self, product: Product, turned: Floats, scheme: BlockScheme) -> BlockCoded:
        """Quantize W^T (out, in) in blocks."""
        return _first(self.named, product, self.default)(product, turned, scheme)


def _first(named: tuple[tuple[str, M], ...], product: Product, default: M) -> M:
    return next((coder for match, coder in named if re.search(match, product.name)), default)


def _inner_is_first(product: Product) -> bool:
    return product.node.op_type in ("MatMul", "Gemm") and not product.transposed


def _outer_first(product: Product, values: Floats) -> Floats:
    """Return a weight as (groups, out, in)."""
    if product.node.op_type == "Conv":
        groups = int(attribute(product.node, "group", 1))
        return values.reshape(groups, len(values) // groups, -1)
    return np.ascontiguousarray(values if product.transposed else values.T)[None]
