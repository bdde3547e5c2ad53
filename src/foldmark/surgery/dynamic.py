"""Dynamic quantization: weights stored as codes, activations quantized when they are known."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from foldmark.surgery.account import Account, Done, Left
from foldmark.surgery.choice import Selection
from foldmark.surgery.editor import Editor, Scope, attribute, node_name
from foldmark.surgery.products import Product, find_product
from foldmark.surgery.tables import quantize_table
from foldmark.surgery.weights import CodedWeights, Coder, WeightSchemes, product_dtype

__all__ = ["quantize_dynamic"]

SLOW_CONVOLUTION = (
    "integer convolution with ranges chosen at run time is slower than float on ONNX Runtime; "
    "use static quantization"
)


@dataclass
class _Work:
    editor: Editor
    account: Account
    weights: CodedWeights
    scheme: WeightSchemes
    selection: Selection
    dynamic: dict[tuple[int, str], tuple[str, str, str]]  # (scope, tensor) -> codes, scale, zero


def quantize_dynamic(
    editor: Editor, account: Account, scheme: WeightSchemes, selection: Selection, coder: Coder
) -> None:
    """Rewrite the chosen products, branches included, to integers with run-time ranges.

        y = x W   becomes   q, s, z = DynamicQuantizeLinear(x)
                            y = (MatMulInteger(q, W_codes, z) as float) * (s * W_scale)

    A tensor read by several products is quantized once. Tables read by Gather are stored as
    codes with one scale per row.
    """
    work = _Work(editor, account, CodedWeights(editor, coder), scheme, selection, {})
    for scope in reversed(list(editor.scopes())):
        nodes = [new for node in scope.graph.node for new in _rewritten(node, scope, work)]
        editor.replace_nodes(scope, nodes)


def _rewritten(node: onnx.NodeProto, scope: Scope, work: _Work) -> Iterator[onnx.NodeProto]:
    against = work.selection.reason_against(node)
    if node.op_type == "Gather":
        if not against:
            yield from quantize_table(node, scope, work.editor, work.account)
        else:
            yield node
        return
    product = find_product(node, scope)
    if isinstance(product, str):
        if node.op_type in ("MatMul", "Gemm", "Conv", "ConvTranspose"):
            work.account.left.append(Left(node_name(node), node.op_type, product))
        yield node
        return
    if node.op_type in ("Conv", "ConvTranspose"):
        against = against or SLOW_CONVOLUTION
    elif product_dtype(product) != np.float32:
        against = against or "DynamicQuantizeLinear takes float32 only"
    if against:
        work.account.left.append(Left(product.name, node.op_type, against))
        yield node
        return
    yield from _integer_product(product, work)


def _integer_product(product: Product, work: _Work) -> Iterator[onnx.NodeProto]:
    node, editor, scope = product.node, work.editor, product.scope
    names = work.weights.of(product, work.scheme.of(product))
    tensor = node.input[0]
    key = (id(scope), tensor)
    if key not in work.dynamic:
        work.dynamic[key] = (
            editor.fresh(f"{tensor}_codes"),
            editor.fresh(f"{tensor}_scale"),
            editor.fresh(f"{tensor}_zero_point"),
        )
        yield helper.make_node(
            "DynamicQuantizeLinear",
            [tensor],
            list(work.dynamic[key]),
            editor.fresh(f"{tensor}_quantize"),
        )
    codes, scale, zero = work.dynamic[key]
    base = product.name
    weight, weight_zero = names.codes, names.zero_point
    if product.transposed:
        weight = editor.fresh(f"{names.codes}_turned")
        yield helper.make_node(
            "Transpose", [names.codes], [weight], editor.fresh(f"{base}_turn"), perm=[1, 0]
        )
    alpha, bias = attribute(node, "alpha", 1.0), _bias(product, work)
    factor = names.scale
    if alpha != 1:
        factor = scope.add(
            editor.fresh(f"{base}_scale_alpha"),
            (names.coded.scale * np.float32(alpha)).astype(np.float32),
        )
    whole, real, both = (editor.fresh(f"{base}_{n}") for n in ("int32", "float", "scale"))
    result = editor.fresh(f"{base}_product") if bias else node.output[0]
    yield helper.make_node(
        "MatMulInteger", [codes, weight, zero, weight_zero], [whole], editor.fresh(f"{base}_quant")
    )
    yield helper.make_node(
        "Cast", [whole], [real], editor.fresh(f"{base}_cast"), to=TensorProto.FLOAT
    )
    yield helper.make_node("Mul", [scale, factor], [both], editor.fresh(f"{base}_scales"))
    yield helper.make_node("Mul", [real, both], [result], editor.fresh(f"{base}_unfold"))
    if bias:
        yield helper.make_node(
            "Add", [result, bias], [node.output[0]], editor.fresh(f"{base}_bias")
        )
    work.account.done.append(
        Done(
            base,
            node.op_type,
            f"{work.scheme.of(product).words}, uint8 activations at run time",
            int(np.prod(product.shape)),
        )
    )


def _bias(product: Product, work: _Work) -> str:
    """Return the name of what is added to a Gemm's product, beta applied; "" for nothing."""
    node = product.node
    if node.op_type != "Gemm" or len(node.input) < 3 or not node.input[2]:
        return ""
    beta = attribute(node, "beta", 1.0)
    if beta == 1:
        return node.input[2]
    found = product.scope.find(node.input[2])
    if found is None or beta == 0:
        return "" if beta == 0 else node.input[2]
    values = onnx.numpy_helper.to_array(found[1])
    return found[0].add(
        work.editor.fresh(f"{node.input[2]}_beta"), (values * np.float32(beta)).astype(values.dtype)
    )
