"""Weights to codes by a method: what a recipe's `methods` put in the place of plain rounding."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from foldmark.exact.rule import Rule
from foldmark.kernels.fold import quantize_array
from foldmark.methods.clipping import clipped_scales
from foldmark.methods.gptq import GptqResult, Grid, gptq
from foldmark.methods.hessian import Inputs
from foldmark.surgery.account import Account
from foldmark.surgery.products import Product
from foldmark.surgery.weight_only import BlockCoded, BlockScheme, block_round_to_nearest
from foldmark.surgery.weights import Coded, WeightScheme, coded, round_to_nearest

__all__ = ["BlockGptqCoder", "ClippingCoder", "GptqCoder"]

Floats = NDArray[np.floating]


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
        self._account.methods[:] = [
            m for m in self._account.methods if not m.startswith("mse-clipping")
        ] + [f"mse-clipping: the range of {self._count} weights was reduced"]
        return found


def clipped(values: Floats, plain: Coded, rule: Rule) -> Coded:
    """Return codes on the scales with the least squared error."""
    rows = _rows(values, plain.axis)
    codes = rule.codes
    scale = clipped_scales(rows, np.atleast_1d(plain.scale), codes.minimum, codes.maximum)
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
    steps = np.clip(np.rint(values / safe), rule.codes.minimum, rule.codes.maximum)
    return Coded(steps.astype(plain.codes.dtype), scale, plain.zero_point, plain.axis)


class GptqCoder:
    """Codes by GPTQ for matrix products; other weights are rounded to nearest."""

    def __init__(self, seen: Mapping[str, Inputs], account: Account, clip: bool) -> None:
        self._seen = seen
        self._report = _Report(account)
        self._clip = clip
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
        inputs = self._seen.get(product.node.input[product.activation])
        if product.node.op_type not in ("MatMul", "Gemm") or inputs is None:
            self._report.skipped(product)
            return plain
        W = values if product.transposed else values.T  # (out, in)
        scale = np.broadcast_to(plain.scale.reshape(-1, 1), (len(W), 1)).astype(np.float64)
        zero = np.zeros_like(scale)
        codes = scheme.rule.codes

        def make_grid(_group: Floats) -> Grid:
            return Grid(scale, zero, codes.minimum, codes.maximum)

        found = gptq(W, inputs.H, make_grid)
        self._report.done(product, found)
        made = found.codes if product.transposed else found.codes.T
        return Coded(made.astype(plain.codes.dtype), plain.scale, plain.zero_point, plain.axis)


class BlockGptqCoder:
    """Blocks of codes by GPTQ."""

    def __init__(self, seen: Mapping[str, Inputs], account: Account) -> None:
        self._seen = seen
        self._report = _Report(account)

    def __call__(self, product: Product, turned: Floats, scheme: BlockScheme) -> BlockCoded:
        """Quantize W^T (out, in) in blocks, its inputs' second moment known."""
        inputs = self._seen.get(product.node.input[product.activation])
        if inputs is None:
            self._report.skipped(product)
            return block_round_to_nearest(product, turned, scheme)
        highest = (1 << scheme.bits) - 1

        def make_grid(group: Floats) -> Grid:
            block = (1, group.shape[1])
            made = quantize_array(np.ascontiguousarray(group, np.float32), block, scheme.rule)
            scale = made.scale.astype(turned.dtype).astype(np.float64)
            return Grid(scale, made.zero_point.astype(np.float64), 0, highest)

        found = gptq(turned, inputs.H, make_grid, group=scheme.block_size)
        self._report.done(product, found)
        return BlockCoded(
            found.codes.astype(np.uint8),
            np.concatenate([grid.scale for grid in found.grids], axis=1).astype(turned.dtype),
            np.concatenate([grid.zero_point for grid in found.grids], axis=1).astype(np.uint8),
        )


class _Report:
    """One line about GPTQ, kept up to date in the account."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._weights, self._others = 0, 0

    def done(self, product: Product, found: GptqResult) -> None:
        self._weights += 1
        if found.dead:
            some = ", ".join(map(str, found.dead[:4])) + (", ..." if len(found.dead) > 4 else "")
            self._account.note(f"gptq: {product.name} has {len(found.dead)} dead inputs: {some}")
        if found.damping > 0.01:
            self._account.note(
                f"gptq: {product.name} needed damping {found.damping:g}; more samples would help"
            )
        self._write()

    def skipped(self, _product: Product) -> None:
        self._others += 1
        self._write()

    def _write(self) -> None:
        others = f"; {self._others} other weights rounded to nearest" if self._others else ""
        kept = [line for line in self._account.methods if not line.startswith("gptq")]
        self._account.methods[:] = [
            *kept, f"gptq: {self._weights} weights, damping 0.01 of the mean diagonal{others}"
        ]  # fmt: skip
