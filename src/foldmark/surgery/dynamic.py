"""Dynamic quantization: weights stored as codes, activations quantized when they are known."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from foldmark.surgery.account import Account, Done, Left
from foldmark.surgery.ahead import at_once
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


Columns = Mapping[str, NDArray[np.int64]]
"""By tensor, the columns that stay in float."""


@dataclass(frozen=True)
class _Coded:
    """Where an activation's codes, scale and zero point are; and its columns kept in float."""

    codes: str
    scale: str
    zero: str
    kept: str = ""


@dataclass
class _Work:
    editor: Editor
    account: Account
    weights: CodedWeights
    scheme: WeightSchemes
    selection: Selection
    columns: Columns | None
    coded: dict[tuple[int, str], _Coded] = field(default_factory=dict)  # by scope and tensor


def quantize_dynamic(
    editor: Editor,
    account: Account,
    scheme: WeightSchemes,
    selection: Selection,
    coder: Coder,
    *,
    columns: Columns | None = None,
) -> None:
    """Rewrite the chosen products, branches included, to integers with run-time ranges.

        y = x W   becomes   q, s, z = DynamicQuantizeLinear(x)
                            y = (MatMulInteger(q, W_codes, z) as float) * (s * W_scale)

    With `columns` (LLM.int8()), activations get one scale per row, and the columns named of a
    tensor are left out of its codes and multiplied in float:

        s = max_j |x_j| / 127 over the other columns;  q = round(x 127 / max_j |x_j|)
        y = (MatMulInteger(q, W_codes) as float) * s * W_scale + x_kept W_kept

    A tensor read by several products is quantized once. Tables read by Gather are stored as
    codes with one scale per row.
    """
    weights = CodedWeights(editor, coder, at_once)
    work = _Work(editor, account, weights, scheme, selection, columns)
    for scope in reversed(list(editor.scopes())):
        nodes = [new for node in scope.graph.node for new in _rewritten(node, scope, work)]
        editor.replace_nodes(scope, nodes)


def _rewritten(node: onnx.NodeProto, scope: Scope, work: _Work) -> Iterator[onnx.NodeProto]:
    against = work.selection.reason_against(node)
    if node.op_type == "Gather":
        if not against:
            yield from quantize_table(node, scope, work.editor, work.account, at_once)
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
    names = work.weights.of(product, work.scheme.of(product.name))
    tensor = node.input[0]
    key = (id(scope), tensor)
    if key not in work.coded:
        code = _per_tensor if work.columns is None else _per_row
        work.coded[key], nodes = code(tensor, product, work)
        yield from nodes
    made = work.coded[key]
    codes, scale, zero = made.codes, made.scale, made.zero
    base = product.name
    weight, weight_zero = names.codes, names.zero_point
    if product.transposed:
        weight = editor.fresh(f"{names.codes}_turned")
        yield helper.make_node(
            "Transpose", [names.codes], [weight], editor.fresh(f"{base}_turn"), perm=[1, 0]
        )
    alpha, addends = attribute(node, "alpha", 1.0), []
    if made.kept:
        addends.append(editor.fresh(f"{base}_kept"))
        yield _kept_product(product, made, addends[0], work)
    if bias := _bias(product, work):
        addends.append(bias)
    factor = names.scale
    if alpha != 1:
        factor = scope.add(
            editor.fresh(f"{base}_scale_alpha"),
            (names.coded.scale * np.float32(alpha)).astype(np.float32),
        )
    whole, real, both = (editor.fresh(f"{base}_{n}") for n in ("int32", "float", "scale"))
    sums = [editor.fresh(f"{base}_product") for _ in addends]
    result, *rest = [*sums, node.output[0]]
    yield helper.make_node(
        "MatMulInteger", [codes, weight, zero, weight_zero], [whole], editor.fresh(f"{base}_quant")
    )
    yield helper.make_node(
        "Cast", [whole], [real], editor.fresh(f"{base}_cast"), to=TensorProto.FLOAT
    )
    # One after the other where a scale counts rows: ONNX Runtime's fusion of the product of two
    # scales takes the first row's for all.
    first = [scale, factor] if work.columns is None else [real, factor]
    last = real if work.columns is None else scale
    yield helper.make_node("Mul", first, [both], editor.fresh(f"{base}_scales"))
    yield helper.make_node("Mul", [last, both], [result], editor.fresh(f"{base}_unfold"))
    for addend, after in zip(addends, rest, strict=True):
        part = "kept_sum" if made.kept and addend == addends[0] else "bias"
        yield helper.make_node("Add", [result, addend], [after], editor.fresh(f"{base}_{part}"))
        result = after
    work.account.done.append(
        Done(
            base,
            node.op_type,
            f"{work.scheme.of(product.name).words}, {_words(work, made)}",
            int(np.prod(product.shape)),
        )
    )


def _words(work: _Work, made: _Coded) -> str:
    if work.columns is None:
        return "uint8 activations at run time"
    return f"int8 rows at run time{', some columns in float' if made.kept else ''}"


def _per_tensor(tensor: str, _product: Product, work: _Work) -> tuple[_Coded, list[onnx.NodeProto]]:
    fresh = work.editor.fresh
    parts = ("codes", "scale", "zero_point")
    made = _Coded(*(fresh(f"{tensor}_{part}") for part in parts))
    outputs = [made.codes, made.scale, made.zero]
    name = fresh(f"{tensor}_quantize")
    return made, [helper.make_node("DynamicQuantizeLinear", [tensor], outputs, name)]


def _per_row(tensor: str, product: Product, work: _Work) -> tuple[_Coded, list[onnx.NodeProto]]:
    """Codes with one scale per row, the kept columns taken out.

    The codes are stored as uint8 around 128: the same numbers, in the order that the faster
    kernel takes them.
    """
    fresh, scope = work.editor.fresh, product.scope
    columns = (work.columns or {}).get(tensor, np.zeros(0, np.int64))
    nodes: list[onnx.NodeProto] = []

    def step(operator: str, inputs: list[str], part: str, **attributes: object) -> str:
        made = fresh(f"{tensor}_{part}")
        nodes.append(helper.make_node(operator, inputs, [made], fresh(made), **attributes))
        return made

    def constant(part: str, value: NDArray[np.generic] | np.generic) -> str:
        return scope.add(fresh(f"{tensor}_{part}"), np.asarray(value))

    kept, rest = "", tensor
    if len(columns):
        inner = product.shape[1] if product.transposed else product.shape[0]
        mask = np.ones(inner, np.float32)
        mask[columns] = 0
        kept = step("Gather", [tensor, constant("kept_columns", columns)], "kept", axis=-1)
        rest = step("Mul", [tensor, constant("mask", mask)], "rest")
    sizes = step("Abs", [rest], "sizes")
    if work.editor.opset < 18:
        top = step("ReduceMax", [sizes], "row_top", axes=[-1], keepdims=1)
    else:
        axes = constant("row_axes", np.array([-1]))
        top = step("ReduceMax", [sizes, axes], "row_top", keepdims=1)
    safe = step("Max", [top, constant("tiny", np.finfo(np.float32).tiny)], "row_range")
    factor = step("Div", [constant("steps", np.float32(127)), safe], "row_factor")
    spread = step("Mul", [rest, factor], "spread")
    one, middle = constant("one", np.float32(1)), constant("middle", np.uint8(128))
    codes = step("QuantizeLinear", [spread, one, middle], "codes")
    scale = step("Mul", [top, constant("step", np.float32(1) / np.float32(127))], "row_scale")
    return _Coded(codes, scale, middle, kept), nodes


def _kept_product(product: Product, made: _Coded, result: str, work: _Work) -> onnx.NodeProto:
    """Return the float product of the columns that are kept."""
    assert work.columns is not None
    columns = work.columns[product.node.input[0]]
    values = product.values()
    rows = values[:, columns].T if product.transposed else values[columns]
    rows = rows * np.float32(attribute(product.node, "alpha", 1.0))
    name = work.editor.fresh(f"{product.weight}_kept")
    weight = product.scope.add(name, np.ascontiguousarray(rows, np.float32))
    return helper.make_node(
        "MatMul", [made.kept, weight], [result], work.editor.fresh(f"{product.name}_kept_product")
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
