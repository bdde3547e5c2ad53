"""What is done to a model before it is quantized: opset raised, batch norms folded, checks."""

from collections.abc import Iterator

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import version_converter

from foldmark.errors import BadInput, NotSupported
from foldmark.graphs.apart import with_weights_apart
from foldmark.surgery.account import Account
from foldmark.surgery.choice import Selection
from foldmark.surgery.constants import computed_constant
from foldmark.surgery.editor import Editor, array_of, attribute, consumers, node_name
from foldmark.surgery.tied import store_transposed

__all__ = [
    "fold_batch_norms",
    "fold_pads",
    "prepared_for_pairs",
    "raise_opset",
    "refuse_quantized",
]

_QUANTIZED = {
    *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"),
    *("ConvInteger", "QLinearConv", "QLinearMatMul", "MatMulNBits", "QGemm", "QAttention"),
    *("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "DynamicQuantizeLSTM"),
}
_CODES = {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}
_IR_FOR_OPSET = {13: 7, 17: 8, 19: 9, 21: 10}


def refuse_quantized(model: onnx.ModelProto, where: str) -> None:
    """Raise BadInput when a model already holds quantized operators."""
    found = [name for graph in _graphs(model.graph) for name in _quantized_in(graph)]
    if found:
        raise BadInput(
            "this model is already quantized",
            where=where,
            got=f"{len(found)} operators such as {found[0]}",
            expected="the float model it was made from",
        )


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all that its nodes hold."""
    yield graph
    for node in graph.node:
        for each in node.attribute:
            for inner in (*([each.g] if each.HasField("g") else []), *each.graphs):
                yield from _graphs(inner)


def _quantized_in(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the operators of a graph that work on codes; casts of stored 8-bit matrices too."""
    codes = {
        tensor.name
        for tensor in graph.initializer
        if tensor.data_type in _CODES and len(tensor.dims) > 1
    }
    for node in graph.node:
        if node.op_type in _QUANTIZED:
            yield node.op_type
        elif node.op_type == "Cast" and node.input[0] in codes:
            yield "Cast of stored 8-bit codes"


def raise_opset(model: onnx.ModelProto, least: int, account: Account, why: str) -> onnx.ModelProto:
    """Return the model at opset `least` or later; the argument itself when it is there.

    Raises NotSupported when ONNX's converter can't bring it there.
    """
    current = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    if current >= least:
        return model
    try:
        raised = with_weights_apart(
            model, lambda graph: version_converter.convert_version(graph, least)
        )
    except Exception as error:
        raise NotSupported(
            f"opset {current} can't be raised to {least}",
            got=" ".join(str(error).split())[:160],
            expected=f"opset {least}: {why}",
            todo="export the model again at a newer opset",
        ) from error
    raised.ir_version = max(raised.ir_version, _IR_FOR_OPSET.get(least, 8))
    account.note(f"opset raised from {current} to {least}: {why}")
    return raised


def prepared_for_pairs(
    model: onnx.ModelProto, selection: Selection, account: Account
) -> onnx.ModelProto:
    """Return the model as static quantization reads it: what can be folded into products is."""
    editor = Editor(model)
    store_transposed(editor, selection)
    fold_batch_norms(editor, account)
    fold_pads(editor, account)
    return editor.finish()


def fold_batch_norms(editor: Editor, account: Account) -> None:
    """Fold every batch normalization into the convolution or Gemm before it.

    gamma (W x + b - mean) / sqrt(var + eps) + beta = (W g) x + (b - mean) g + beta,
    g = gamma / sqrt(var + eps)
    """
    graph = editor.root.graph
    readers, outputs = consumers(graph), {value.name for value in graph.output}
    folded: dict[str, onnx.NodeProto] = {}
    gone: set[str] = set()
    for node in graph.node:
        result = node.output[0] if node.output else ""
        if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or result in outputs:
            continue
        if len(readers[result]) != 1 or readers[result][0].op_type != "BatchNormalization":
            continue
        norm = readers[result][0]
        merged = _merged(node, norm, editor)
        if merged is not None:
            folded[result] = merged
            gone.add(norm.output[0])
    if not folded:
        return
    kept = [
        folded.get(node.output[0], node)
        for node in graph.node
        if not (node.op_type == "BatchNormalization" and node.output[0] in gone)
    ]
    editor.replace_nodes(editor.root, kept)
    editor.reopen()
    account.note(f"{len(folded)} batch normalizations folded into the product before them")


def fold_pads(editor: Editor, account: Account) -> None:
    """Fold zero padding of the spatial axes into the convolution that alone reads it.

    Without this, codes are unfolded, padded in float and folded again: more work than the
    convolution itself.
    """
    graph = editor.root.graph
    readers, outputs = consumers(graph), {value.name for value in graph.output}
    gone: set[str] = set()
    for node in graph.node:
        if node.op_type != "Pad" or node.output[0] in outputs:
            continue
        users, pads = readers[node.output[0]], _zero_pads(node, editor)
        if pads is None or len(users) != 1 or users[0].op_type != "Conv":
            continue
        conv = users[0]
        if conv.input[0] != node.output[0] or _auto_padded(conv):
            continue
        _add_pads(conv, pads)
        conv.input[0] = node.input[0]
        gone.add(node.output[0])
    if gone:
        kept = [node for node in graph.node if node.output[0] not in gone]
        editor.replace_nodes(editor.root, kept)
        editor.reopen()
        account.note(f"{len(gone)} paddings folded into the convolution after them")


def _zero_pads(node: onnx.NodeProto, editor: Editor) -> list[int] | None:
    """Return a Pad's spatial pads (begins, then ends) when it pads with zeros there alone."""
    mode = next((a.s for a in node.attribute if a.name == "mode"), b"constant")
    found = computed_constant(node.input[1], editor.root, editor) if len(node.input) > 1 else None
    if mode != b"constant" or found is None or (len(node.input) > 3 and node.input[3]):
        return None
    if len(node.input) > 2 and node.input[2]:
        value = computed_constant(node.input[2], editor.root, editor)
        if value is None or value.any():
            return None
    pads = [int(n) for n in found.ravel()]
    axes = len(pads) // 2
    begins, ends = pads[:axes], pads[axes:]
    if axes < 3 or any(begins[:2]) or any(ends[:2]) or min(pads) < 0:
        return None
    return [*begins[2:], *ends[2:]]


def _auto_padded(conv: onnx.NodeProto) -> bool:
    return any(a.name == "auto_pad" and a.s not in (b"", b"NOTSET") for a in conv.attribute)


def _add_pads(conv: onnx.NodeProto, pads: list[int]) -> None:
    for each in conv.attribute:
        if each.name == "pads":
            summed = [a + b for a, b in zip(each.ints, pads, strict=True)]
            del each.ints[:]
            each.ints.extend(summed)
            return
    conv.attribute.append(onnx.helper.make_attribute("pads", pads))


def _merged(node: onnx.NodeProto, norm: onnx.NodeProto, editor: Editor) -> onnx.NodeProto | None:
    """Return the product that does the work of both, None where constants are missing."""
    root = editor.root
    names = [node.input[1], *node.input[2:3], *norm.input[1:5]]
    found = {name: root.find(name) for name in names if name}
    if any(each is None for each in found.values()):
        return None
    values = {name: np.asarray(array_of(each[1])) for name, each in found.items() if each}
    gamma, beta, mean, variance = (values[name].astype(np.float64) for name in norm.input[1:5])
    factor = gamma / np.sqrt(variance + attribute(norm, "epsilon", 1e-5))
    weight = values[node.input[1]]
    if node.op_type == "Gemm" and {attribute(node, name, 1.0) for name in ("alpha", "beta")} != {1}:
        return None
    bias = values[node.input[2]].astype(np.float64) if len(node.input) > 2 and node.input[2] else 0
    bias = np.ravel(bias)
    if bias.size not in (1, factor.size):
        return None
    base = node_name(node)
    merged = onnx.NodeProto()
    merged.CopyFrom(node)
    scaled = _scaled_channels(node, weight, factor)
    moved = ((bias - mean) * factor + beta).astype(weight.dtype)
    del merged.input[1:]
    merged.input.extend(
        [
            root.add(editor.fresh(f"{base}_folded_weight"), scaled),
            root.add(editor.fresh(f"{base}_folded_bias"), moved),
        ]
    )
    merged.output[0] = norm.output[0]
    return merged


def _scaled_channels(
    node: onnx.NodeProto, weight: NDArray[np.generic], factor: NDArray[np.float64]
) -> NDArray[np.generic]:
    """Return a product's weight with every output channel multiplied by its factor."""
    values = weight.astype(np.float64)
    match node.op_type:
        case "Conv":
            scaled = values * factor.reshape([-1] + [1] * (weight.ndim - 1))
        case "Gemm":
            scaled = values * (factor[:, None] if attribute(node, "transB", 0) else factor)
        case _:  # ConvTranspose: (in, out / groups, *window), inputs of a group side by side
            groups = int(attribute(node, "group", 1))
            parts = values.reshape(groups, len(weight) // groups, *weight.shape[1:])
            by_group = factor.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))
            scaled = (parts * by_group).reshape(weight.shape)
    return scaled.astype(weight.dtype)
