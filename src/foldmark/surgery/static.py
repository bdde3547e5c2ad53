"""Static quantization as quantize/dequantize pairs, which ONNX Runtime fuses to integer kernels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from foldmark.calibrate.observers import Range
from foldmark.errors import DataMismatch
from foldmark.surgery.account import Account, Done
from foldmark.surgery.activations import ActivationCodes, ActivationScheme, Plan, scale_of
from foldmark.surgery.ahead import Ahead
from foldmark.surgery.choice import Selection
from foldmark.surgery.editor import Editor, Scope, array_of, attribute, node_name
from foldmark.surgery.products import PRODUCTS, ChannelFit, Product, find_product
from foldmark.surgery.tables import quantize_table, table_work
from foldmark.surgery.weights import (
    Coded,
    CodedWeights,
    Names,
    WeightSchemes,
    packed,
    product_dtype,
)

__all__ = ["StaticScheme", "begin_codes", "quantize_static"]

_LARGEST = (1 << 31) - 1  # of an int32 bias code
# A bias code this near the end of int32 leaves no room for the sum it is added to.
_BIAS_ROOM = 0.25


@dataclass
class _Work:
    editor: Editor
    account: Account
    plan: Plan
    scheme: "StaticScheme"
    activations: Mapping[str, tuple[np.float32, np.generic]]
    before: list[onnx.NodeProto] = field(default_factory=list)
    dequantized: dict[str, str] = field(default_factory=dict)

    def codes(self, tensor: str) -> ActivationCodes:
        """Return the codes of a tensor that has a pair."""
        return self.scheme.activations.of(self.plan.source(tensor).tensor)


@dataclass(frozen=True)
class StaticScheme:
    """How a static graph stores numbers: codes of activations, scheme and codes of weights."""

    activations: ActivationScheme
    schemes: WeightSchemes
    weights: CodedWeights
    ahead: Ahead[Coded]


def begin_codes(plans: Sequence[Plan], scheme: StaticScheme, selection: Selection) -> None:
    """Have all weights coded ahead.

    Tables first: they are the largest, and memory is fullest when the float model has been opened.
    """
    for plan in plans:
        for node in plan.scope.graph.node:
            chosen = node.op_type == "Gather" and not selection.reason_against(node)
            if chosen and (work := table_work(node, plan.scope)) is not None:
                scheme.ahead.begin(work)
    for plan in reversed(plans):
        for product in plan.products:
            scheme.ahead.begin(scheme.weights.work(product, scheme.schemes.of(product.name)))


def quantize_static(
    editor: Editor,
    account: Account,
    plans: Sequence[Plan],
    ranges: Mapping[str, Range],
    scheme: StaticScheme,
    *,
    selection: Selection,
) -> None:
    """Write the plans' pairs into the graphs.

    Args:
        editor: the model.
        account: the report to write into.
        plans: which tensors get pairs, for every graph.
        ranges: the range of every tensor that the plans want observed.
        scheme: how numbers are stored.
        selection: decides about tables.

    Raises DataMismatch when a range is missing.
    """
    # Inner graphs first: replacing the nodes of a graph copies those that they hold.
    for plan in reversed(plans):
        parameters = _parameters(plan, ranges, scheme.activations)
        work = _Work(editor, account, plan, scheme, parameters)
        _write(work, selection)


def _write(work: _Work, selection: Selection) -> None:
    """Write one graph's pairs."""
    plan, editor, account = work.plan, work.editor, work.account
    scope = plan.scope
    replaced = {id(p.node): _with_pairs(p, work) for p in plan.products}
    names = {p.name for p in plan.products}
    made: list[onnx.NodeProto] = []
    own = {name for node in scope.graph.node for name in node.output}
    # What comes from outside gets its pair here: a kernel is fused within one graph alone.
    for name in plan.pairs:
        if name not in own:
            made += _pair(name, work)
    for node in scope.graph.node:
        if node.op_type == "Gather" and not selection.reason_against(node):
            new = list(quantize_table(node, scope, editor, account, work.scheme.ahead.take))
        else:
            new = [replaced.get(id(node), node)]
        for each in new:
            made.append(_staying_in_float(each, _reading_pairs(each, names, work), names, work))
            for name in each.output:
                made += _pair(name, work)
    editor.replace_nodes(scope, [*work.before, *made])
    _keep_outputs(scope, work)


def _parameters(
    plan: Plan, ranges: Mapping[str, Range], scheme: ActivationScheme
) -> dict[str, tuple[np.float32, np.generic]]:
    found = {}
    for name in plan.pairs:
        source = plan.source(name)
        chosen = source.known or ranges.get(source.tensor)
        if chosen is None:
            raise DataMismatch(
                "no range for this activation",
                where=f"tensor {source.tensor!r}",
                todo="calibrate this model again",
            )
        found[name] = scale_of(chosen, scheme.of(source.tensor))
    return found


def _with_pairs(product: Product, work: _Work) -> onnx.NodeProto:
    """Return the product reading dequantized weight and bias."""
    node = onnx.NodeProto()
    node.CopyFrom(product.node)
    activation = node.input[product.activation]
    scale, _ = work.activations[activation]
    bias = _bias_values(product)
    least = partial(_least_scale, bias, scale, product, work) if bias is not None else None
    names = work.scheme.weights.of(product, work.scheme.schemes.of(product.name), least)
    node.input[1] = _dequantized_weight(product, names, work)
    if bias is not None:
        node.input[2] = _dequantized_bias(product, names.coded, bias, scale, work)
    if product.fit is not ChannelFit.AXIS and work.scheme.schemes.of(product.name).per_channel:
        work.account.note(f"{product.name}: {product.fit.value}; its weight has one scale")
    codes = work.codes(activation)
    result = work.plan.results.get(product.name)
    if missing := _missing_kernel(product, [codes, *([work.codes(result)] if result else [])]):
        work.account.note(f"{product.name}: {missing}")
    how = f"{work.scheme.schemes.of(product.name).words}, {codes.value} activations"
    work.account.done.append(Done(product.name, node.op_type, how, int(np.prod(product.shape))))
    return node


def _missing_kernel(product: Product, around: Sequence[ActivationCodes]) -> str:
    """Return why ONNX Runtime can't multiply a product's codes as they are, "" where it can.

    Args:
        product: the product.
        around: codes of what it reads and, where its kernel makes codes, of its result.
    """
    floats = "codes become floats again before the product"
    if product.node.op_type == "ConvTranspose":
        return f"ONNX Runtime has no integer kernel for ConvTranspose; {floats}"
    for codes in around:
        if codes.bits == 16:
            return f"ONNX Runtime has no integer kernel for {codes.value} activations; {floats}"
    if product_dtype(product) != np.float32:
        return f"ONNX Runtime has no integer kernel with {product_dtype(product)} results; {floats}"
    return ""


def _dequantized_weight(product: Product, names: Names, work: _Work) -> str:
    if names.codes not in work.dequantized:
        result = work.editor.fresh(f"{product.weight}_dequantized")
        axis = names.coded.axis
        extra = {} if axis is None else {"axis": axis}
        work.before.append(
            helper.make_node(
                "DequantizeLinear",
                [names.codes, names.scale, names.zero_point],
                [result],
                work.editor.fresh(f"{product.weight}_DequantizeLinear"),
                **extra,
            )
        )
        work.dequantized[names.codes] = result
    return work.dequantized[names.codes]


def _bias_values(product: Product) -> NDArray[np.floating] | None:
    """Return the constant bias that integer kernels take as int32, one value per channel."""
    node = product.node
    if len(node.input) < 3 or not node.input[2]:
        return None
    found = product.scope.find(node.input[2])
    if found is None or attribute(node, "beta", 1.0) != 1 or attribute(node, "alpha", 1.0) != 1:
        return None  # added in float: an integer kernel would scale it with the product
    values = np.asarray(array_of(found[1])).astype(np.float32)
    channels = _channels(product)
    return values.ravel() if values.size == channels else None


def _channels(product: Product) -> int:
    if product.node.op_type == "ConvTranspose":
        return product.shape[1] * int(attribute(product.node, "group", 1))
    return product.shape[product.channel_axis]


def _least_scale(
    bias: NDArray[np.floating],
    activation: np.float32,
    product: Product,
    work: _Work,
    made: Coded,
) -> NDArray[np.floating] | None:
    """Return the weight scales that keep the bias codes inside int32; None when they are inside."""
    needed = np.abs(bias) / (float(activation) * _LARGEST * (1 - _BIAS_ROOM))
    if made.axis is None:
        needed = needed.max()
    if not (needed > made.scale).any():
        return None
    work.account.note(
        f"{product.name}: a bias would overflow int32 with the weight's own scale; "
        "that scale was enlarged"
    )
    return np.asarray(needed)


def _dequantized_bias(
    product: Product,
    made: Coded,
    bias: NDArray[np.floating],
    activation: np.float32,
    work: _Work,
) -> str:
    scale = (np.float32(activation) * made.scale.astype(np.float32)).astype(np.float32)
    scale = np.where(scale == 0, np.float32(np.finfo(np.float32).tiny), scale).astype(np.float32)
    codes = np.clip(np.rint(bias.astype(np.float64) / scale), -_LARGEST, _LARGEST)
    editor, base = work.editor, product.node.input[2]
    result = editor.fresh(f"{base}_dequantized")
    scope = work.plan.scope
    extra = {} if made.axis is None else {"axis": 0}
    zero = np.zeros(scale.shape, np.int32)
    work.before.append(
        helper.make_node(
            "DequantizeLinear",
            [
                scope.add(editor.fresh(f"{base}_quantized"), codes.astype(np.int32)),
                scope.add(editor.fresh(f"{base}_scale"), scale),
                scope.add(editor.fresh(f"{base}_zero_point"), zero),
            ],
            [result],
            editor.fresh(f"{base}_DequantizeLinear"),
            **extra,
        )
    )
    return result


def _pair(name: str, work: _Work) -> list[onnx.NodeProto]:
    """Return the quantize/dequantize pair of a tensor, [] when the plan gives it none."""
    if name not in work.plan.pairs:
        return []
    scale, zero = work.activations[name]
    fresh, scope = work.editor.fresh, work.plan.scope
    codes, back = fresh(f"{name}_QuantizeLinear_Output"), fresh(f"{name}_DequantizeLinear_Output")
    kind = work.codes(name)
    zero_name = fresh(f"{name}_zero_point")
    parameters = [
        scope.add(fresh(f"{name}_scale"), np.asarray(scale)),
        scope.add(zero_name, packed(zero_name, np.asarray(zero), kind.bits, kind.signed)),
    ]
    work.dequantized[name] = back
    return [
        helper.make_node(
            "QuantizeLinear", [name, *parameters], [codes], fresh(f"{name}_QuantizeLinear")
        ),
        helper.make_node(
            "DequantizeLinear", [codes, *parameters], [back], fresh(f"{name}_DequantizeLinear")
        ),
    ]


def _reading_pairs(node: onnx.NodeProto, names: set[str], work: _Work) -> onnx.NodeProto:
    """Return the node reading what the pairs give.

    What an integer kernel makes is read from its codes by everyone. Other tensors are read from
    codes by the products alone: a residual that stays in float loses nothing.
    """
    is_product = node.op_type in PRODUCTS and node_name(node) in names
    chained = work.plan.chained
    reads = [
        name in work.dequantized and name in work.plan.pairs and (is_product or name in chained)
        for name in node.input
    ]
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    _capture_pairs(
        copy, {name: work.dequantized[name] for name in chained & work.dequantized.keys()}
    )
    for index, read in enumerate(reads):
        if read:
            copy.input[index] = work.dequantized[copy.input[index]]
    return copy


def _staying_in_float(
    node: onnx.NodeProto, reading: onnx.NodeProto, names: set[str], work: _Work
) -> onnx.NodeProto:
    """Return a product that was left so that it really runs in float between pairs.

    ONNX Runtime gives such a product 8-bit weights of its own, with one scale, unless its bias is
    computed. So the bias comes from 32-bit codes, finer than float32; zeros where there was none.

    Args:
        node: as it was.
        reading: the same, reading what the pairs give.
        names: products that are quantized.
        work: the graph.
    """
    product = find_product(node, work.plan.scope)
    if isinstance(product, str) or product.name in names or node.op_type == "MatMul":
        return reading
    if node.input[0] == reading.input[0] or product_dtype(product) != np.float32:
        return reading
    bias = np.zeros(_channels(product), np.float32)
    base = f"{product.name}_bias"
    if len(node.input) > 2 and node.input[2]:
        base, found = node.input[2], product.scope.find(node.input[2])
        if found is None or len(found[1].dims) != 1:
            return reading
        bias = np.asarray(array_of(found[1])).astype(np.float32)
    scale = np.float32(np.abs(bias).max(initial=0) / (1 << 30)) or np.float32(1)
    fresh, scope = work.editor.fresh, work.plan.scope
    codes = np.rint(bias.astype(np.float64) / scale).astype(np.int32)
    stored = [scope.add(fresh(f"{base}_codes"), codes), scope.add(fresh(f"{base}_step"), scale)]
    result = fresh(f"{base}_dequantized")
    work.before.append(
        helper.make_node("DequantizeLinear", stored, [result], fresh(f"{base}_DequantizeLinear"))
    )
    kept = onnx.NodeProto()
    kept.CopyFrom(reading)
    del kept.input[2:]
    kept.input.append(result)
    return kept


def _capture_pairs(node: onnx.NodeProto, renamed: Mapping[str, str]) -> None:
    """Let what a node's own graphs read from outside be what the pairs give."""
    for each in node.attribute:
        for graph in (*([each.g] if each.HasField("g") else []), *each.graphs):
            for inner in graph.node:
                for index, name in enumerate(inner.input):
                    inner.input[index] = renamed.get(name, name)
                _capture_pairs(inner, renamed)
            for value in graph.output:
                value.name = renamed.get(value.name, value.name)


def _keep_outputs(scope: Scope, work: _Work) -> None:
    """Let a model output that has a pair be what the pair gives, under its own name."""
    swap = {}
    for value in scope.graph.output:
        if value.name in work.plan.pairs:
            swap[value.name] = work.editor.fresh(f"{value.name}_float")
            swap[work.dequantized[value.name]] = value.name
    if not swap:
        return
    for node in scope.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name in swap:
                    names[index] = swap[name]
