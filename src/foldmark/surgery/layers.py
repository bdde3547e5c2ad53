"""Operators that hold whole layers, rewritten to their integer forms with run-time ranges.

LSTM -> DynamicQuantizeLSTM, Attention -> QAttention, EmbedLayerNormalization ->
QEmbedLayerNormalization: ONNX Runtime's own, each with the weights' codes inside.
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from foldmark.exact.tools.onnxruntime import ONNXRUNTIME_WEIGHT_UINT8
from foldmark.surgery.account import Account, Done, Left
from foldmark.surgery.choice import Selection
from foldmark.surgery.constants import computed_constant, drop_unread
from foldmark.surgery.editor import Editor, Scope, array_of, attribute, node_name
from foldmark.surgery.weights import Coded, WeightScheme, WeightSchemes, coded

__all__ = ["LAYERS", "quantize_layers"]

_MICROSOFT = "com.microsoft"
Floats = NDArray[np.floating]


def quantize_layers(
    editor: Editor, account: Account, selection: Selection, schemes: WeightSchemes
) -> None:
    """Rewrite the chosen layers of every graph; the account says which, and why others stay.

    Weights of LSTM and Attention follow their scheme, whose codes must be int8 around zero; the
    tables of EmbedLayerNormalization are uint8 with one scale, as its kernel wants them.
    """
    for scope in reversed(list(editor.scopes())):
        made: list[onnx.NodeProto] = []
        for node in scope.graph.node:
            rewrite = LAYERS.get((node.domain, node.op_type))
            if rewrite is None:
                made.append(node)
                continue
            against = selection.reason_against(node)
            new = against or rewrite(node, scope, editor, schemes.of(node_name(node)))
            if isinstance(new, str):
                account.left.append(Left(node_name(node), node.op_type, new))
                made.append(node)
                continue
            editor.use_domain(_MICROSOFT, 1)
            account.done.append(Done(node_name(node), node.op_type, _HOW[node.op_type]))
            made += new
        editor.replace_nodes(scope, made)
    editor.reopen()
    if any(done.operator in _HOW for done in account.done):
        for scope in reversed(list(editor.scopes())):
            drop_unread(scope, editor)
        editor.reopen()


def _lstm(
    node: onnx.NodeProto, scope: Scope, editor: Editor, scheme: WeightScheme
) -> list[onnx.NodeProto] | str:
    """Return DynamicQuantizeLSTM; W and R are stored as (directions, in, 4 hidden)."""
    inputs = _padded(node.input, 8)
    weights = [_followed(scope, name, editor) for name in inputs[1:3]]
    if any(each is None for each in weights):
        return "its weights are computed"
    if attribute(node, "layout", 0):
        return "the integer kernel takes the time axis first"
    if any(name for name in node.input[7:8]):
        return "the integer kernel takes no peepholes"
    stored: list[str] = []
    parameters: list[str] = []
    for name, weight in zip(inputs[1:3], weights, strict=True):
        assert weight is not None
        turned = np.ascontiguousarray(weight.transpose(0, 2, 1))
        codes, scale, zero = _directions(turned, scheme)
        # Both branches of an If may compute the same weights: stored outside, they are kept once.
        home = scope if scope.find(name) is not None else editor.root
        stored.append(_kept(home, editor, f"{name}_quantized", codes))
        parameters += [
            _kept(home, editor, f"{name}_scale", scale),
            _kept(home, editor, f"{name}_zero_point", zero),
        ]
    made = helper.make_node(
        "DynamicQuantizeLSTM",
        [inputs[0], *stored, *inputs[3:8], *parameters],
        list(node.output),
        f"{node_name(node)}_quant",
        domain=_MICROSOFT,
    )
    made.attribute.extend(a for a in node.attribute if a.name != "layout")
    return [made]


def _directions(
    weight: Floats, scheme: WeightScheme
) -> tuple[NDArray[np.int8], Floats, NDArray[np.int8]]:
    """Return codes, scales and zero points of (directions, in, out), each direction by itself."""
    made = [coded(each, scheme.rule, 1 if scheme.per_channel else None) for each in weight]
    codes = np.stack([each.codes for each in made]).astype(np.int8)
    scale = np.stack([each.scale for each in made]).astype(np.float32)
    return codes, scale, np.zeros(scale.shape, np.int8)


def _gru(*_: object) -> str:
    return "not supported: ONNX Runtime has no integer kernel for GRU"


def _onnx_attention(*_: object) -> str:
    return "it holds no weights; the products that make its inputs are quantized"


def _attention(
    node: onnx.NodeProto, scope: Scope, editor: Editor, scheme: WeightScheme
) -> list[onnx.NodeProto] | str:
    """Return DynamicQuantizeLinear and QAttention."""
    inputs = _padded(node.input, 7)
    weight = _constant(scope, inputs[1])
    if weight is None:
        return "its weight is computed"
    if not inputs[2]:
        return "the integer kernel wants a bias"
    odd = [a.name for a in node.attribute if a.name not in ("num_heads", "unidirectional")]
    if odd:
        return f"the integer kernel has no {odd[0]}"
    if any(inputs[5:7]):
        return "the integer kernel adds nothing to the scores"
    base = node_name(node)
    codes, scale, zero = (
        editor.fresh(f"{inputs[0]}_{part}") for part in ("codes", "scale", "zero_point")
    )
    rounded = coded(weight, scheme.rule, 1 if scheme.per_channel else None)
    own = _stored(scope, editor, inputs[1], rounded, np.int8)
    quantize = helper.make_node(
        "DynamicQuantizeLinear", [inputs[0]], [codes, scale, zero], editor.fresh(f"{base}_quantize")
    )
    made = helper.make_node(
        "QAttention",
        [codes, own[0], inputs[2], scale, own[1], inputs[3], zero, own[2], inputs[4]],
        list(node.output),
        f"{base}_quant",
        domain=_MICROSOFT,
    )
    made.attribute.extend(node.attribute)
    return [quantize, made]


def _embedding(
    node: onnx.NodeProto, scope: Scope, editor: Editor, _scheme: WeightScheme
) -> list[onnx.NodeProto] | str:
    """Return QEmbedLayerNormalization; its kernel takes one scale per table."""
    inputs = _padded(node.input, 9)
    outputs = _padded(node.output, 3)
    if outputs[2]:
        return "the sum of its embeddings is read"
    if inputs[8]:
        return "the integer kernel takes no positions"
    if any(a.name == "mask_index_type" and a.i for a in node.attribute):
        return "the integer kernel makes one kind of mask"
    stored: list[tuple[str, str, str]] = []
    for name in inputs[2:7]:
        if not name:
            stored.append(("", "", ""))
            continue
        table = _constant(scope, name)
        if table is None:
            return f"{name} is computed"
        rounded = coded(table, ONNXRUNTIME_WEIGHT_UINT8, None)
        stored.append(_stored(scope, editor, name, rounded, np.uint8))
    made = helper.make_node(
        "QEmbedLayerNormalization",
        [
            *inputs[:2],
            *(each[0] for each in stored),
            inputs[7],
            *(each[1] for each in stored),
            *(each[2] for each in stored),
        ],
        [name for name in outputs[:2] if name],
        f"{node_name(node)}_quant",
        domain=_MICROSOFT,
    )
    made.attribute.extend(a for a in node.attribute if a.name == "epsilon")
    return [made]


def _stored(
    scope: Scope, editor: Editor, name: str, made: Coded, kind: type[np.integer]
) -> tuple[str, str, str]:
    """Store codes, scale and zero point of a weight and return their names."""
    return (
        _kept(scope, editor, f"{name}_quantized", made.codes.astype(kind)),
        _kept(scope, editor, f"{name}_scale", made.scale.astype(np.float32)),
        _kept(scope, editor, f"{name}_zero_point", made.zero_point.astype(kind)),
    )


def _kept(scope: Scope, editor: Editor, name: str, array: NDArray[np.generic]) -> str:
    """Store an array and return its name; one that lies there already is not stored again."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    changeable = {value.name for value in scope.graph.input}
    for other, tensor in scope.stored.items():
        alike = (tensor.data_type, tuple(tensor.dims)) == (kind, array.shape)
        if alike and other not in changeable and np.array_equal(array_of(tensor), array):
            return other
    return scope.add(editor.fresh(name), array)


def _followed(scope: Scope, name: str, editor: Editor) -> Floats | None:
    """Return a weight, one that is computed from constants included."""
    found = computed_constant(name, scope, editor) if name else None
    if found is None or found.dtype != np.float32:
        return None
    return found.astype(np.float32, copy=False)


def _constant(scope: Scope, name: str) -> Floats | None:
    found = scope.find(name) if name else None
    if found is None or found[1].data_type != onnx.TensorProto.FLOAT:
        return None
    return np.asarray(array_of(found[1])).astype(np.float32, copy=False)


def _padded(names: Sequence[str], count: int) -> list[str]:
    return [*names, *[""] * (count - len(names))]


Rewrite = Callable[[onnx.NodeProto, Scope, Editor, WeightScheme], list[onnx.NodeProto] | str]
LAYERS: dict[tuple[str, str], Rewrite] = {
    ("", "LSTM"): _lstm,
    ("", "GRU"): _gru,
    ("", "Attention"): _onnx_attention,
    (_MICROSOFT, "Attention"): _attention,
    (_MICROSOFT, "EmbedLayerNormalization"): _embedding,
}
_HOW = {
    "LSTM": "int8 weights, inputs quantized at run time",
    "Attention": "int8 weights, inputs quantized at run time",
    "EmbedLayerNormalization": "uint8 tables, one scale each",
}
