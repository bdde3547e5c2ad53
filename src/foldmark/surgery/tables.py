"""Tables that Gather reads (embeddings), stored as codes with one scale per row."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper

from foldmark.exact.tools.onnxruntime import ONNXRUNTIME_WEIGHT_INT8
from foldmark.surgery.account import Account, Done, Left
from foldmark.surgery.ahead import Source, Work
from foldmark.surgery.editor import Editor, Scope, array_of, attribute, node_name
from foldmark.surgery.weights import Coded, coded, packed, row_names

__all__ = ["quantize_table", "table_work"]

_SMALLEST = 1 << 14  # values; below this a table saves less than its extra nodes cost


def table_work(node: onnx.NodeProto, scope: Scope) -> Work[Coded] | None:
    """Return what codes the table that a Gather reads, None where `quantize_table` leaves it."""
    found = scope.find(node.input[0])
    if found is None:
        return None
    home, tensor = found
    fits = not _unfit(tensor, tuple(tensor.dims), int(attribute(node, "axis", 0)))
    return _work(tensor, home) if fits else None


def quantize_table(
    node: onnx.NodeProto, scope: Scope, editor: Editor, account: Account, codes_of: Source[Coded]
) -> Iterator[onnx.NodeProto]:
    """Yield a Gather that reads codes, with what turns them into floats again.

        rows = Gather(table, i)   becomes   Gather(codes, i) as float * Gather(scale, i)

    A table shared by several Gathers is stored once. Its codes come from `codes_of`.
    """
    found = scope.find(node.input[0])
    if found is None:
        yield node
        return
    home, tensor = found
    shape = tuple(tensor.dims)
    reason = _unfit(tensor, shape, int(attribute(node, "axis", 0)))
    if reason:
        if reason != "small":
            account.left.append(Left(node_name(node), "Gather", reason))
        yield node
        return
    codes, scale = _stored(tensor, home, editor, codes_of)
    base = node_name(node)
    names = [editor.fresh(f"{base}_{part}") for part in ("codes", "float", "scales")]
    indices = node.input[1]
    kind = tensor.data_type
    yield helper.make_node("Gather", [codes, indices], [names[0]], editor.fresh(f"{base}_quant"))
    yield helper.make_node("Cast", [names[0]], [names[1]], editor.fresh(f"{base}_cast"), to=kind)
    yield helper.make_node("Gather", [scale, indices], [names[2]], editor.fresh(f"{base}_scale"))
    yield helper.make_node(
        "Mul", [names[1], names[2]], [node.output[0]], editor.fresh(f"{base}_unfold")
    )
    account.done.append(Done(base, "Gather", "int8 table, one scale per row", int(np.prod(shape))))


def _unfit(tensor: TensorProto, shape: tuple[int, ...], axis: int) -> str:
    if tensor.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16):
        return "small"
    if int(np.prod(shape, dtype=np.int64)) < _SMALLEST:
        return "small"
    if len(shape) != 2 or axis != 0:
        return "a table of rows is needed"
    return ""


def _work(tensor: TensorProto, home: Scope) -> Work[Coded]:
    return Work(("rows", tensor.name, id(home)), partial(_code, tensor))


def _code(tensor: TensorProto) -> Coded:
    return coded(np.asarray(array_of(tensor)), ONNXRUNTIME_WEIGHT_INT8, 0)


def _stored(
    tensor: TensorProto, home: Scope, editor: Editor, codes_of: Source[Coded]
) -> tuple[str, str]:
    """Return the names of a table's codes and scales (rows, 1), stored once."""
    codes, scale = row_names(tensor.name)
    if codes not in home.stored:
        made = codes_of(_work(tensor, home))
        editor.names |= {codes, scale}
        home.add(codes, packed(codes, made.codes, 8, signed=True))
        home.add(scale, made.scale[:, None])
    return codes, scale
