"""Hadamard rotations put into the weights at the ends of every stream that allows one."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from foldmark.errors import NotSupported
from foldmark.methods.hadamard import mean_keeping_rotation, rotation
from foldmark.runtimes.onnxruntime import Session
from foldmark.surgery.account import Account
from foldmark.surgery.editor import Editor, array_of, attribute, consumers, node_name
from foldmark.surgery.half import float_values
from foldmark.surgery.streams import Norm, NormKind, Place, Stream, Touched, find_streams

__all__ = ["rotate"]

Floats = NDArray[np.floating]
Feeds = Mapping[str, NDArray[np.generic]]
_CLOSE = 1e-4  # of the output's own size: beyond it the graph does what this module overlooks


@dataclass
class _Change:
    """What happens to one constant at one reader, in order."""

    scales: list[NDArray[np.float64]] = field(default_factory=list)  # of the inner axis
    inner: int = 0
    turns: list[tuple[int, Place]] = field(default_factory=list)  # (stream, place)


def rotate(model: onnx.ModelProto, feeds: Feeds, account: Account) -> onnx.ModelProto:
    """Return the model with every stream that allows it rotated; it computes the same.

    Args:
        model: the float model.
        feeds: some samples: the graph's shapes and the proof that nothing changed come from them.
        account: told what was rotated and what was not, and why.

    Raises NotSupported when the float output moved by more than 1e-4 of its size.
    """
    editor = Editor(model)
    shapes = _shapes(model, feeds)
    streams, blocked = find_streams(editor, shapes)
    reasons = Counter(blocked.values())
    for reason, count in reasons.most_common():
        account.note(f"hadamard: {count} streams are left as they are: {reason}")
    if not streams:
        account.methods.append("hadamard: no stream allows a rotation")
        return model
    turns = [_turn(stream, seed) for seed, stream in enumerate(streams)]
    _fold_norms(editor, streams, changes := _changes(streams))
    _store(editor, changes, turns)
    made = editor.finish()
    moved = _moved(model, made, feeds)
    if not moved <= _CLOSE:
        raise NotSupported(
            "not supported: a rotation would change what this model computes",
            where="hadamard",
            got=f"{moved:.1e} of the output",
            expected=f"at most {_CLOSE:g}",
        )
    sizes = Counter(stream.size for stream in streams)
    of = ", ".join(f"{count} of {size} channels" for size, count in sorted(sizes.items()))
    norms = sum(len(stream.norms) for stream in streams)
    folded = f", {norms} normalizations folded" if norms else ""
    account.methods.append(
        f"hadamard: {len(streams)} streams rotated ({of}){folded}; "
        f"float output moved by {moved:.0e}"
    )
    return made


def _shapes(model: onnx.ModelProto, feeds: Feeds) -> dict[str, tuple[int, ...]]:
    """Return the shape of every float32 tensor in one run."""
    taps = float_values(model)
    outputs = {value.name for value in model.graph.output}
    values = Session(model, taps=[name for name in taps if name not in outputs]).run(feeds)
    return {name: tuple(values[name].shape) for name in taps}


def _turn(stream: Stream, seed: int) -> NDArray[np.float64]:
    kinds = {norm.kind for norm in stream.norms}
    make = mean_keeping_rotation if NormKind.MEAN_AND_ROOT in kinds else rotation
    return make(stream.size, seed)


Key = tuple[int, int]
Changes = dict[Key, tuple[onnx.NodeProto, int, _Change]]


def _changes(streams: list[Stream]) -> Changes:
    changes: Changes = {}
    for number, stream in enumerate(streams):
        readers = [each for norm in stream.norms for each in norm.readers]
        touched = {(id(each.node), each.index): each for each in readers} | stream.touched
        for key, each in touched.items():
            entry = changes.setdefault(key, (each.node, each.index, _Change()))
            entry[2].turns.append((number, each.place))
    return changes


def _fold_norms(editor: Editor, streams: list[Stream], changes: Changes) -> None:
    """Move every normalization's scale and shift into the weights that read its result."""
    for stream in streams:
        for norm in stream.norms:
            scale, shift = (_constant(editor, norm, index) for index in (1, 2))
            for each in norm.readers:
                _fold(editor, each, scale, shift, changes)
            node = norm.node
            node.input[1] = editor.root.add(
                editor.fresh(f"{node.input[1]}_ones"), np.ones(stream.size, _dtype(editor, node))
            )
            if len(node.input) > 2 and node.input[2]:
                del node.input[2:]


def _constant(editor: Editor, norm: Norm, index: int) -> NDArray[np.float64] | None:
    node = norm.node
    if len(node.input) <= index or not node.input[index]:
        return None
    found = editor.root.find(node.input[index])
    assert found is not None
    values = np.asarray(array_of(found[1])).astype(np.float64)
    return values if values.any() or index == 1 else None


def _dtype(editor: Editor, node: onnx.NodeProto) -> np.dtype[np.generic]:
    found = editor.root.find(node.input[1])
    assert found is not None
    return np.dtype(helper.tensor_dtype_to_np_dtype(found[1].data_type))


def _fold(
    editor: Editor,
    reader: Touched,
    scale: NDArray[np.float64] | None,
    shift: NDArray[np.float64] | None,
    changes: Changes,
) -> None:
    node, place = reader.node, reader.place
    change = changes[id(node), reader.index][2]
    if scale is not None:
        change.scales.append(np.tile(scale, place.repeat))
        change.inner = place.axis
    if shift is None:
        return
    found = editor.root.find(node.input[reader.index])
    assert found is not None
    weight = np.asarray(array_of(found[1]))
    matrix = np.moveaxis(weight, place.axis, 0).astype(np.float64)
    _add_to_result(editor, node, np.tile(shift, place.repeat) @ matrix, changes)


def _add_to_result(
    editor: Editor, node: onnx.NodeProto, vector: NDArray[np.float64], changes: Changes
) -> None:
    """Add a vector to what a product gives, before any rotation of it."""
    root, dtype = editor.root, _dtype(editor, node)
    name = node.input[2] if node.op_type == "Gemm" and len(node.input) > 2 else ""
    old = root.find(name) if name else None
    if old is not None:
        factor = attribute(node, "beta", 1.0) / attribute(node, "alpha", 1.0)
        values = np.asarray(array_of(old[1])).astype(np.float64) + vector / factor
        node.input[2] = root.add(editor.fresh(f"{name}_shifted"), values.astype(dtype))
        return
    users = consumers(root.graph)[node.output[0]]
    for index, other in enumerate(users[0].input if len(users) == 1 else ()):
        bias = root.find(other)
        if users[0].op_type == "Add" and bias is not None and bias[1].dims[-1:] == [vector.size]:
            values = np.asarray(array_of(bias[1])).astype(np.float64) + vector
            users[0].input[index] = root.add(editor.fresh(f"{other}_shifted"), values.astype(dtype))
            return
    added = root.add(editor.fresh(f"{node_name(node)}_shift"), vector.astype(dtype))
    result, inner = node.output[0], editor.fresh(f"{node.output[0]}_unshifted")
    addition = helper.make_node(
        "Add", [inner, added], [result], editor.fresh(f"{node_name(node)}_shift")
    )
    node.output[0] = inner
    position = next(i for i, each in enumerate(root.graph.node) if each is node or each == node)
    root.graph.node.insert(position + 1, addition)
    # What rotates the columns of the product rotates what is added to it.
    turns = [
        (number, place)
        for other, index, change in list(changes.values())
        if other is node and index == 1
        for number, place in change.turns
        if place.axis == _outer_axis(node)
    ]
    if turns:
        kept = root.graph.node[position + 1]
        moved = [(number, Place(0, place.repeat)) for number, place in turns]
        changes[id(kept), 1] = (kept, 1, _Change(turns=moved))


def _outer_axis(node: onnx.NodeProto) -> int:
    return 0 if node.op_type == "Gemm" and attribute(node, "transB", 0) else 1


def _store(editor: Editor, changes: Changes, turns: list[NDArray[np.float64]]) -> None:
    """Write the changed constants; what is changed alike is stored once."""
    stored: dict[tuple[object, ...], str] = {}
    for node, index, change in changes.values():
        name = node.input[index]
        found = editor.root.find(name)
        assert found is not None
        key = (
            name,
            tuple(each.tobytes() for each in change.scales),
            tuple((number, place) for number, place in change.turns),
        )
        if key not in stored:
            values = np.asarray(array_of(found[1]))
            made = values.astype(np.float64)
            for scale in change.scales:
                made *= scale.reshape([-1 if i == change.inner else 1 for i in range(made.ndim)])
            for number, place in change.turns:
                made = _turned(made, place, turns[number])
            fresh = editor.fresh(f"{name}_rotated")
            stored[key] = editor.root.add(fresh, np.ascontiguousarray(made.astype(values.dtype)))
        node.input[index] = stored[key]


def _turned(
    values: NDArray[np.float64], place: Place, Q: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return sum_i values[.., i, ..] Q[i, j] on an axis that holds the channels `repeat` times."""
    last = np.moveaxis(values, place.axis, -1)
    split = last.reshape(*last.shape[:-1], place.repeat, len(Q)) @ Q
    return np.moveaxis(split.reshape(last.shape), -1, place.axis)


def _moved(model: onnx.ModelProto, made: onnx.ModelProto, feeds: Feeds) -> float:
    """Return how far the outputs moved, relative to their largest value."""
    before, after = Session(model).run(feeds), Session(made).run(feeds)
    worst = 0.0
    for name, values in before.items():
        if values.dtype.kind == "f" and values.size:
            top = float(np.abs(values).max()) or 1.0
            gap = after[name].astype(np.float64) - values.astype(np.float64)
            worst = max(worst, float(np.abs(gap).max()) / top)
    return worst
