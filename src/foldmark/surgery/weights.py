"""Weights to stored codes: each weight once, however many operators share it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from ml_dtypes import int4, uint4
from numpy.typing import NDArray
from onnx import TensorProto, helper

from foldmark.errors import NonFiniteValue
from foldmark.exact.rule import Rule
from foldmark.exact.tools.onnxruntime import ONNXRUNTIME_WEIGHT_INT8
from foldmark.kernels.fold import quantize_array
from foldmark.surgery.ahead import Source, Work
from foldmark.surgery.editor import Editor, array_of
from foldmark.surgery.products import ChannelFit, Product

__all__ = [
    "Coded",
    "CodedWeights",
    "Coder",
    "Names",
    "WeightScheme",
    "WeightSchemes",
    "coded",
    "round_to_nearest",
    "row_names",
]

Floats = NDArray[np.floating]
ROW_RULE = ONNXRUNTIME_WEIGHT_INT8
"""The rule of tables that Gather reads."""


@dataclass(frozen=True)
class WeightScheme:
    """How weights become codes.

    Attributes:
        rule: from a group of values to scale, zero point and codes.
        per_channel: one scale per output channel instead of one per tensor.
    """

    rule: Rule
    per_channel: bool = True

    @property
    def words(self) -> str:
        """The scheme in words."""
        return f"{self.rule.codes.name} {'per channel' if self.per_channel else 'per tensor'}"


@dataclass(frozen=True)
class WeightSchemes:
    """Which operator's weight gets which scheme.

    Attributes:
        default: for all that no pattern names.
        named: pairs of a pattern of node names and the scheme; the first match counts.
    """

    default: WeightScheme
    named: tuple[tuple[str, WeightScheme], ...] = ()

    def of(self, name: str) -> WeightScheme:
        """Return the scheme of an operator, a product or a layer, by its node's name."""
        for pattern, scheme in self.named:
            if re.search(pattern, name):
                return scheme
        return self.default


@dataclass(frozen=True)
class Coded:
    """Codes of a weight in its own layout, with scale and zero point per channel or tensor.

    Attributes:
        codes: integers, the weight's shape.
        scale: (channels,) or ().
        zero_point: (channels,) or (), integers.
        axis: the channels' axis, None for one scale.
    """

    codes: NDArray[np.integer]
    scale: Floats
    zero_point: NDArray[np.integer]
    axis: int | None

    def dequantize(self) -> Floats:
        """Return the values that the codes stand for."""
        shape = [1] * self.codes.ndim
        if self.axis is not None:
            shape[self.axis] = -1
        scale, zero = self.scale.reshape(shape), self.zero_point.reshape(shape)
        return (self.codes.astype(np.int32) - zero.astype(np.int32)).astype(scale.dtype) * scale


Coder = Callable[[Product, Floats, WeightScheme, int | None], Coded]
"""Makes the codes of a product's weight: (product, values, scheme, channel axis) -> codes."""


def round_to_nearest(
    _product: Product, values: Floats, scheme: WeightScheme, axis: int | None
) -> Coded:
    """Quantize a weight by the rule alone."""
    return coded(values, scheme.rule, axis)


def coded(values: Floats, rule: Rule, axis: int | None) -> Coded:
    """Quantize an array with one scale, or one per index of `axis`."""
    block = [1 if i == axis else max(n, 1) for i, n in enumerate(values.shape)]
    group = quantize_array(np.ascontiguousarray(values), block, rule)
    shape = () if axis is None else (-1,)
    return Coded(group.codes, group.scale.reshape(shape), group.zero_point.reshape(shape), axis)


def packed(name: str, codes: NDArray[np.integer], bits: int, signed: bool) -> TensorProto:
    """Return codes as an ONNX tensor: 4-bit ones two a byte."""
    if bits == 4:
        kind = TensorProto.INT4 if signed else TensorProto.UINT4
        flat = codes.astype(int4 if signed else uint4)
        return helper.make_tensor(name, kind, codes.shape, flat)
    kept: dict[tuple[int, bool], type[np.integer]] = {
        (8, True): np.int8, (8, False): np.uint8, (16, True): np.int16, (16, False): np.uint16,
    }  # fmt: skip
    array = codes.astype(kept[bits, signed], order="C")
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return TensorProto(name=name, data_type=kind, dims=array.shape, raw_data=array.tobytes())


def row_names(weight: str) -> tuple[str, str]:
    """Return where a table's codes and its scales (rows, 1) are stored."""
    return f"{weight}_rows_quantized", f"{weight}_rows_scale"


@dataclass(frozen=True)
class Names:
    """Where a coded weight is stored."""

    codes: str
    scale: str
    zero_point: str
    coded: Coded


class _Key(NamedTuple):
    """What makes the codes of two products the same."""

    weight: str
    home: int
    rule: str
    axis: int | None


def _key(product: Product, scheme: WeightScheme) -> _Key:
    fits = scheme.per_channel and product.fit is ChannelFit.AXIS
    axis = product.channel_axis if fits else None
    return _Key(product.weight, id(product.home), scheme.rule.name, axis)


class CodedWeights:
    """Codes already made, by weight and scheme.

    Args:
        editor: the model.
        coder: makes codes.
        source: where they come from: made when asked for, or begun before.
    """

    def __init__(self, editor: Editor, coder: Coder, source: Source[Coded]) -> None:
        self._editor = editor
        self._coder = coder
        self._source = source
        self._made: dict[_Key, Names] = {}

    def work(self, product: Product, scheme: WeightScheme) -> Work[Coded]:
        """Return what codes a product's weight."""
        key = _key(product, scheme)
        return Work(key, partial(self._code, product, scheme, key.axis))

    def _code(self, product: Product, scheme: WeightScheme, axis: int | None) -> Coded:
        return self._coder(product, finite(product), scheme, axis)

    def of(
        self,
        product: Product,
        scheme: WeightScheme,
        minimum_scale: Callable[[Coded], Floats | None] | None = None,
    ) -> Names:
        """Return where the codes of a product's weight are stored, making them when needed.

        Args:
            product: the operator.
            scheme: how.
            minimum_scale: given codes, the least scale that is needed (a bias may demand one);
                None when the scale is large enough.
        """
        key = _key(product, scheme)
        if key not in self._made:
            found = self._tied(product, scheme, key.axis) or self._source(
                self.work(product, scheme)
            )
            self._made[key] = self._store(product, found, scheme)
        names = self._made[key]
        least = minimum_scale(names.coded) if minimum_scale is not None else None
        if least is None:
            return names
        # A bias needs a coarser scale: this operator gets codes of its own.
        found = rescaled(finite(product), names.coded, least, scheme.rule)
        return self._store(product, found, scheme)

    def _tied(self, product: Product, scheme: WeightScheme, axis: int | None) -> Coded | None:
        """Return the codes that a Gather of the same weight has already, None without any."""
        codes, scale = (product.home.stored.get(name) for name in row_names(product.weight))
        if axis != 0 or codes is None or scale is None or scheme.rule is not ROW_RULE:
            return None
        scales = np.asarray(array_of(scale)).astype(np.float32)[:, 0]
        own = np.asarray(array_of(codes)).astype(np.int8, copy=False)
        return Coded(own, scales, np.zeros(len(scales), np.int8), 0)

    def _is_table(self, product: Product, scheme: WeightScheme, axis: int | None) -> bool:
        return (
            axis == 0
            and scheme.rule is ROW_RULE
            and any(
                node.op_type == "Gather" and node.input[0] == product.weight
                for scope in self._editor.scopes()
                for node in scope.graph.node
            )
        )

    def _store(self, product: Product, found: Coded, scheme: WeightScheme) -> Names:
        fresh, codes = self._editor.fresh, scheme.rule.codes
        base = product.weight
        names = Names(
            fresh(f"{base}_quantized"), fresh(f"{base}_scale"), fresh(f"{base}_zero_point"), found
        )
        write = partial(packed, bits=codes.bits, signed=codes.minimum < 0)
        rows = row_names(base)
        if self._is_table(product, scheme, found.axis):
            # Tied embeddings: the Gather of the same weight takes its rows from these codes.
            names = replace(names, codes=rows[0])
            self._editor.names |= set(rows)
            if rows[1] not in product.home.stored:
                product.home.add(rows[1], found.scale.astype(product_dtype(product))[:, None])
        if names.codes not in product.home.stored:
            product.home.add(names.codes, write(names.codes, found.codes))
        product.home.add(names.scale, found.scale.astype(product_dtype(product)))
        product.home.add(names.zero_point, write(names.zero_point, found.zero_point))
        return names


def product_dtype(product: Product) -> np.dtype[np.generic]:
    """Return the dtype of a product's weight."""
    kind = product.home.stored[product.weight].data_type
    return np.dtype(helper.tensor_dtype_to_np_dtype(kind))


def finite(product: Product) -> Floats:
    """Return a product's weight, checked.

    Raises NonFiniteValue naming the weight and the first index.
    """
    values: Floats = product.values()
    if not np.isfinite(values).all():
        index = np.argwhere(~np.isfinite(values))[0]
        raise NonFiniteValue(
            "a weight is not finite",
            where=f"weight {product.weight!r} of {product.name}",
            got=f"{values[tuple(index)]} at {index.tolist()}",
        )
    return values


def rescaled(values: Floats, old: Coded, least: Floats, rule: Rule) -> Coded:
    """Return codes with every scale at least `least`: coarser where a bias demands it."""
    scale = np.maximum(old.scale, least).astype(old.scale.dtype)
    shape = [1] * values.ndim
    if old.axis is not None:
        shape[old.axis] = -1
    steps = np.rint(values / scale.reshape(shape)) + old.zero_point.reshape(shape)
    codes = np.clip(steps, rule.codes.minimum, rule.codes.maximum).astype(old.codes.dtype)
    return Coded(codes, scale, old.zero_point, old.axis)
