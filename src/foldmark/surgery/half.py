"""float16, with what float16 can't hold found first and kept in float32."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.calibrate.statistics import Statistics
from foldmark.graphs.apart import with_weights_apart
from foldmark.graphs.inlining import names_read
from foldmark.surgery.account import Account, Done
from foldmark.surgery.editor import Editor, array_of, node_name

__all__ = ["Hazard", "find_hazards", "float_values", "to_half"]

LARGEST = 65504.0  # the largest finite float16
SMALLEST = 2.0**-24  # the smallest positive float16
SMALLEST_NORMAL = 6.104e-05  # 2**-14; below it precision is lost, below 2**-25 the value too


@dataclass(frozen=True)
class Hazard:
    """A node that float16 would break, and why."""

    node: str
    operator: str
    reason: str


def float_values(model: onnx.ModelProto) -> list[str]:
    """Return the names of the float32 values that the outer graph's nodes make."""
    try:
        inferred = with_weights_apart(model, onnx.shape_inference.infer_shapes)
    except Exception:
        inferred = model
    kinds = {
        value.name: value.type.tensor_type.elem_type
        for value in (*inferred.graph.value_info, *inferred.graph.output)
    }
    return [
        name
        for node in model.graph.node
        for name in node.output
        if kinds.get(name) == onnx.TensorProto.FLOAT
    ]


def find_hazards(model: onnx.ModelProto, seen: Mapping[str, Statistics]) -> list[Hazard]:
    """Return the nodes that must stay in float32.

    Judged from the float32 run, since ONNX Runtime's CPU computes much of a float16 model in
    float32 and hides the overflow: values above 65504, constants and epsilons that float16
    rounds to infinity, to zero, or to a few bits.
    """
    editor = Editor(model)
    found: dict[str, Hazard] = {}
    for scope in editor.scopes():
        for node in scope.graph.node:
            reason = _epsilon(node) or _constant(node, scope.find) or _value(node, seen)
            if reason:
                name = node_name(node)
                found[name] = Hazard(name, node.op_type, reason)
    return list(found.values())


def to_half(model: onnx.ModelProto, hazards: list[Hazard], account: Account) -> onnx.ModelProto:
    """Return the model in float16 with float32 inputs and outputs, hazards kept in float32."""
    from onnxruntime.transformers.float16 import (  # noqa: PLC0415  (only this mode needs it)
        DEFAULT_OP_BLOCK_LIST,
        convert_float_to_float16,
    )

    ends = [value.name for value in (*model.graph.input, *model.graph.output)]
    halved: set[str] = set()

    def convert(graph: onnx.ModelProto) -> onnx.ModelProto:
        _name_all(graph)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it clips is named in the account
            found: onnx.ModelProto = convert_float_to_float16(
                graph,
                keep_io_types=ends,
                node_block_list=[hazard.node for hazard in hazards],
                op_block_list=list(DEFAULT_OP_BLOCK_LIST),
                min_positive_val=SMALLEST,
            )
        half = onnx.TensorProto.FLOAT16
        halved.update(v.name for v in found.graph.input if v.type.tensor_type.elem_type == half)
        return found

    made = with_weights_apart(model, convert)
    _halve_weights(made, halved)
    _join_islands(made)
    for hazard in hazards:
        account.note(f"{hazard.node} ({hazard.operator}) stays in float32: {hazard.reason}")
    kept = {hazard.node for hazard in hazards}
    for node in model.graph.node:
        if node_name(node) not in kept and node.op_type not in DEFAULT_OP_BLOCK_LIST:
            account.done.append(Done(node_name(node), node.op_type, "float16"))
    return made


def _halve_weights(model: onnx.ModelProto, names: set[str]) -> None:
    """Convert the stored weights of these names; nodes that stay in float32 keep their own."""
    graph = model.graph
    full = onnx.TensorProto.FLOAT
    whole = {}
    for node in list(graph.node):
        is_back = node.op_type == "Cast" and node.attribute[0].i == full
        if is_back and node.input[0] in names:
            whole[node.output[0]] = node.input[0]
            graph.node.remove(node)
    read = {name for node in graph.node for name in names_read(node)}
    kept = []
    for tensor in graph.initializer:
        wide = [result for result, name in whole.items() if name == tensor.name]
        for result in wide:
            same = onnx.TensorProto()
            same.CopyFrom(tensor)
            same.name = result
            kept.append(same)
        if tensor.name not in names or tensor.data_type != full:
            kept.append(tensor)
        elif tensor.name in read:
            kept.append(onnx.numpy_helper.from_array(_half(array_of(tensor)), tensor.name))
    stored = onnx.GraphProto(initializer=kept)
    del graph.initializer[:]
    graph.initializer.extend(stored.initializer)


def _half(values: NDArray[np.generic]) -> NDArray[np.float16]:
    """Return float32 values as float16, clipped to what it can hold, not rounded to zero."""
    bounded = np.clip(values.astype(np.float32), -LARGEST, LARGEST)
    tiny = (np.abs(bounded) < SMALLEST) & (bounded != 0)
    return np.where(tiny, np.copysign(np.float32(SMALLEST), bounded), bounded).astype(np.float16)


def _join_islands(model: onnx.ModelProto) -> None:
    """Remove casts to float16 and back between two nodes that both stay in float32."""
    graph = model.graph
    half, full = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    casts = {n.output[0]: n for n in graph.node if n.op_type == "Cast"}
    through = {}
    for name, cast in casts.items():
        before = casts.get(cast.input[0])
        if before is not None and cast.attribute[0].i == full and before.attribute[0].i == half:
            through[name] = before.input[0]
    outputs = {value.name for value in graph.output}
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = through.get(name, name)
    used = {name for node in graph.node for name in node.input} | outputs
    for cast in casts.values():
        if cast.output[0] not in used:
            graph.node.remove(cast)
            used = {name for node in graph.node for name in node.input} | outputs


def _name_all(model: onnx.ModelProto) -> None:
    """Name unnamed nodes as reports do, so that hazards can be told to the converter."""
    for node in model.graph.node:
        node.name = node_name(node)


def _epsilon(node: onnx.NodeProto) -> str:
    for each in node.attribute:
        if each.name == "epsilon" and 0 < each.f < SMALLEST_NORMAL:
            return f"its epsilon {each.f:g} is under float16's smallest normal {SMALLEST_NORMAL:g}"
    return ""


def _constant(node: onnx.NodeProto, find: object) -> str:
    assert callable(find)
    for name in node.input:
        found = find(name) if name else None
        if found is None or found[1].data_type != onnx.TensorProto.FLOAT:
            continue
        values = np.abs(np.asarray(array_of(found[1])))
        if not values.size:
            continue
        largest = float(values.max())
        if largest > LARGEST:
            return f"its constant {name} reaches {largest:.3g}, float16 ends at 65504"
        if values.size == 1 and 0 < largest < SMALLEST_NORMAL:
            return f"its constant {name} is {largest:g}, under float16's smallest normal"
    return ""


def _value(node: onnx.NodeProto, seen: Mapping[str, Statistics]) -> str:
    for name in (*node.output, *node.input):
        each = seen.get(name)
        if each is None or not each.batches:
            continue
        largest = max(abs(each.minimum), abs(each.maximum))
        if largest > LARGEST:
            what = "result" if name in node.output else "input"
            return f"its {what} reaches {largest:.4g} on this data, float16 ends at 65504"
    return ""
