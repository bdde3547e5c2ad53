"""Methods that change the float model before it is quantized, without changing what it computes:
SmoothQuant and AWQ move factors between activations and weights; bias correction moves a mean."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from foldmark.kernels.fold import quantize_array
from foldmark.methods.awq import search_clip, search_scale
from foldmark.methods.bias_correction import mean_shift
from foldmark.methods.hessian import Inputs
from foldmark.methods.smoothquant import search_alpha
from foldmark.surgery.account import Account
from foldmark.surgery.choice import Selection
from foldmark.surgery.editor import Editor, array_of, attribute, consumers
from foldmark.surgery.products import ChannelFit, Product, find_product
from foldmark.surgery.weight_only import BlockScheme
from foldmark.surgery.weights import Coder, WeightScheme, WeightSchemes, coded

__all__ = [
    "chosen_products",
    "codes_of_known_range",
    "codes_of_own_range",
    "correct_biases",
    "scale_for_awq",
    "smooth",
]

Floats = NDArray[np.floating]
ActivationByCodes = Callable[[Floats, Floats], Floats]
"""An activation as its codes give it back: (rows, rows that its range is taken from) -> rows."""


def chosen_products(editor: Editor, selection: Selection) -> list[Product]:
    """Return the products of the outer graph that a recipe chooses."""
    found = [find_product(node, editor.root) for node in editor.root.graph.node]
    return [
        each
        for each in found
        if isinstance(each, Product) and not selection.reason_against(each.node)
    ]


@dataclass(frozen=True)
class _Moved:
    """A factor that an activation is divided by, with the new weights of its readers."""

    tensor: str
    factors: NDArray[np.float64]
    weights: dict[str, Floats]  # node name -> weight in the node's own layout
    products: tuple[Product, ...]


def smooth(
    model: onnx.ModelProto,
    seen: Mapping[str, Inputs],
    selection: Selection,
    account: Account,
    *,
    schemes: WeightSchemes,
    as_codes: ActivationByCodes,
) -> onnx.ModelProto:
    """Return the model with SmoothQuant's factors moved into weights, alpha searched per input.

    `as_codes` gives the activation as its codes will give it back.
    """
    editor = Editor(model)
    moved, alphas, groups = [], [], _by_input(editor, selection)
    for tensor, products in groups.items():
        inputs = seen[tensor]
        W = np.concatenate([_inner_first(p) for p in products], axis=1)
        quantized = partial(_product_of_codes, schemes.of(products[0].name), as_codes)
        found = search_alpha(inputs.rows, W.astype(np.float32), inputs.largest, quantized)
        if found is None:
            continue
        alphas.append(found.alpha)
        if found.kept:
            account.note(
                f"smoothquant: {len(found.kept)} channels of {tensor} keep factor 1: their "
                "activation or weight is zero"
            )
        weights = {p.name: _scaled(p, found.factors) for p in products}
        moved.append(_Moved(tensor, found.factors, weights, tuple(products)))
    span = f", alpha {min(alphas):g} to {max(alphas):g}" if alphas else ""
    account.methods.append(f"smoothquant: {len(moved)} of {len(groups)} inputs smoothed{span}")
    return _apply(editor, moved)


def scale_for_awq(
    model: onnx.ModelProto,
    seen: Mapping[str, Inputs],
    selection: Selection,
    scheme: BlockScheme,
    account: Account,
    *,
    clip: bool,
) -> onnx.ModelProto:
    """Return the model with AWQ's factors moved into weights, and weights clipped if asked.

    A method that makes up for rounding errors wants the weights unclipped: it would take the
    clipped ones for the truth.
    """
    editor = Editor(model)
    moved, groups, gains = [], _by_input(editor, selection), []
    fake = _fake_blocks(scheme)
    for tensor, products in groups.items():
        inputs = seen[tensor]
        X = inputs.rows
        W = np.concatenate([_inner_first(p) for p in products], axis=1).T.astype(np.float32)
        found = search_scale(X, np.ascontiguousarray(W), inputs.mean_size, fake)
        factors = found.factors.astype(np.float32)
        gains.append(1 - found.error / found.plain_error if found.plain_error else 0.0)
        weights = {}
        for product in products:
            scaled = np.ascontiguousarray(_inner_first(product).T * factors)
            cut = search_clip(X / factors, scaled, scheme.block_size, fake) if clip else scaled
            weights[product.name] = cut if product.transposed else cut.T
        moved.append(_Moved(tensor, found.factors, weights, tuple(products)))
    mean = f", {100 * float(np.mean(gains)):.0f} % less output error" if gains else ""
    clipped = ", weights clipped" if clip else ""
    account.methods.append(f"awq: {len(moved)} inputs scaled{clipped}{mean}")
    return _apply(editor, moved)


def correct_biases(
    model: onnx.ModelProto,
    seen: Mapping[str, Inputs],
    selection: Selection,
    account: Account,
    *,
    schemes: WeightSchemes,
    coder: Coder,
) -> onnx.ModelProto:
    """Return the model with each bias moved by what the weight's codes add to the mean output."""
    editor = Editor(model)
    products = chosen_products(editor, selection)
    readers = consumers(editor.root.graph)
    done, without = 0, 0
    for product in products:
        place = _bias_place(product, readers, editor)
        if place is None or product.node.op_type == "ConvTranspose":
            without += 1
            continue
        scheme = schemes.of(product.name)
        axis = product.channel_axis if scheme.per_channel else None
        axis = None if product.fit is not ChannelFit.AXIS else axis
        values = product.values()
        made = coder(product, values, scheme, axis).dequantize()
        if product.node.op_type != "Conv" and not product.transposed:
            values, made = values.T, made.T
        mean = seen[product.node.input[product.activation]].mean
        shift = mean_shift(values, made, _read_by_outputs(product, mean))
        node, index = place
        old = editor.root.find(node.input[index])
        assert old is not None
        bias = np.asarray(array_of(old[1]))
        new = (bias.astype(np.float64) - shift.reshape(bias.shape)).astype(bias.dtype)
        node.input[index] = editor.root.add(editor.fresh(f"{node.input[index]}_corrected"), new)
        done += 1
    rest = f"; {without} products have no bias to correct" if without else ""
    account.methods.append(f"bias-correction: {done} biases{rest}")
    return editor.finish()


def _read_by_outputs(product: Product, mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the channels that each output reads: a share of them when grouped."""
    groups = int(attribute(product.node, "group", 1))
    if product.node.op_type != "Conv" or groups == 1:
        return mean
    return np.repeat(mean.reshape(groups, -1), product.shape[0] // groups, axis=0)


def _bias_place(
    product: Product, readers: Mapping[str, list[onnx.NodeProto]], editor: Editor
) -> tuple[onnx.NodeProto, int] | None:
    """Return the node and input that hold a product's constant bias, None without one."""
    node, outer = product.node, product.shape[product.channel_axis]
    if node.op_type != "MatMul":
        if len(node.input) > 2 and node.input[2]:
            found = editor.root.find(node.input[2])
            return (node, 2) if found is not None and np.prod(found[1].dims) == outer else None
        return None
    users = readers[node.output[0]]
    if len(users) != 1 or users[0].op_type != "Add":
        return None
    for index, name in enumerate(users[0].input):
        found = editor.root.find(name)
        if found is not None and np.prod(found[1].dims) == outer:
            return users[0], index
    return None


def _by_input(editor: Editor, selection: Selection) -> dict[str, list[Product]]:
    """Return the matrix products by the tensor that they read."""
    groups: dict[str, list[Product]] = {}
    for product in chosen_products(editor, selection):
        if product.node.op_type in ("MatMul", "Gemm"):
            groups.setdefault(product.node.input[0], []).append(product)
    return groups


def _inner_first(product: Product) -> Floats:
    values: Floats = product.values()
    return values.T if product.transposed else values


def _scaled(product: Product, factors: NDArray[np.float64]) -> Floats:
    values: Floats = product.values()
    shape = (1, -1) if product.transposed else (-1, 1)
    return (values * factors.reshape(shape)).astype(values.dtype)


def _product_of_codes(
    scheme: WeightScheme, as_codes: ActivationByCodes, X: Floats, W: Floats, seen: Floats
) -> Floats:
    """Return X W as their codes give it, when the range of X is taken from the rows seen."""
    made: Floats = as_codes(X, seen) @ (
        coded(W, scheme.rule, 1 if scheme.per_channel else None).dequantize()
    )
    return made


def codes_of_known_range(X: Floats, seen: Floats) -> Floats:
    """Return X as uint8 codes with one scale give it back, what exceeds the rows seen clipped."""
    low, high = min(float(seen.min()), 0.0), max(float(seen.max()), 0.0)
    scale = (high - low) / 255 or 1.0
    zero = np.rint(-low / scale)
    return ((np.clip(np.rint(X / scale) + zero, 0, 255) - zero) * scale).astype(np.float32)


def codes_of_own_range(X: Floats, _seen: Floats) -> Floats:
    """Return X as uint8 codes give it back whose scale is chosen at run time."""
    return codes_of_known_range(X, X)


def _fake_blocks(scheme: BlockScheme) -> Callable[[Floats], Floats]:
    def fake(W: Floats) -> Floats:
        values = np.ascontiguousarray(W, np.float32)
        made = quantize_array(values, (1, scheme.block_size), scheme.rule)
        columns = W.shape[1]
        scale, zero = (
            np.repeat(each.astype(np.float32), scheme.block_size, axis=1)[:, :columns]
            for each in (made.scale, made.zero_point)
        )
        return (made.codes.astype(np.float32) - zero) * scale

    return fake


def _apply(editor: Editor, moved: list[_Moved]) -> onnx.ModelProto:
    """Divide the activations and swap the weights."""
    by_tensor = {each.tensor: each for each in moved}
    nodes: list[onnx.NodeProto] = []
    pending: dict[str, tuple[onnx.NodeProto, str]] = {}
    for each in moved:
        inverse = (1 / each.factors).astype(np.float32)
        divided = editor.fresh(f"{each.tensor}_smoothed")
        factor = editor.root.add(editor.fresh(f"{each.tensor}_smoothing"), inverse)
        pending[each.tensor] = (
            helper.make_node(
                "Mul", [each.tensor, factor], [divided], editor.fresh(f"{each.tensor}_smooth")
            ),
            divided,
        )
        for product in each.products:
            new = editor.fresh(f"{product.weight}_smoothed")
            editor.root.add(new, np.ascontiguousarray(each.weights[product.name]))
            product.node.input[1] = new
            product.node.input[0] = divided
    made = {value.name for value in editor.root.graph.input}
    for name in made & by_tensor.keys():
        nodes.append(pending.pop(name)[0])
    for node in editor.root.graph.node:
        nodes.append(node)
        for name in node.output:
            if name in pending:
                nodes.append(pending.pop(name)[0])
    editor.replace_nodes(editor.root, nodes)
    return editor.finish()
