"""Weights that are stored once and read both ways: as rows by Gather, transposed by a product."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from foldmark.formats.onnx_tensor import element_count, tensor_array
from foldmark.surgery.choice import Selection
from foldmark.surgery.editor import Editor, array_of, consumers
from foldmark.surgery.products import PRODUCTS

__all__ = ["store_transposed", "tie_transposed"]

_CODES = {TensorProto.INT8, TensorProto.UINT8}
_SMALLEST = 1024  # elements; below that nothing is gained


def store_transposed(editor: Editor, selection: Selection) -> None:
    """Give products that read the transpose of a stored matrix that transpose as their weight.

    Output layers tied to an embedding are written so; a product must see its weight to be
    quantized. `tie_transposed` brings the two copies of the codes together again.
    """
    root = editor.root
    makers = {name: node for node in root.graph.node for name in node.output}
    made: dict[str, str] = {}
    for node in root.graph.node:
        if node.op_type not in PRODUCTS or selection.reason_against(node):
            continue
        turn = makers.get(node.input[1]) if len(node.input) > 1 else None
        matrix = root.find(turn.input[0]) if turn is not None and turn.input else None
        if turn is None or matrix is None or not _swaps(turn, matrix[1]):
            continue
        if turn.output[0] not in made:
            turned = np.ascontiguousarray(array_of(matrix[1]).T)
            made[turn.output[0]] = root.add(editor.fresh(f"{turn.input[0]}_transposed"), turned)
        node.input[1] = made[turn.output[0]]
    readers, outputs = consumers(root.graph), {value.name for value in root.graph.output}
    unread = {name for name in made if not readers[name] and name not in outputs}
    if unread:
        kept = [node for node in root.graph.node if node.output[0] not in unread]
        editor.replace_nodes(root, kept)
        editor.reopen()


def _swaps(node: onnx.NodeProto, matrix: TensorProto) -> bool:
    order = [list(each.ints) for each in node.attribute if each.name == "perm"]
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16)
    is_matrix = len(matrix.dims) == 2 and matrix.data_type in floats
    return node.op_type == "Transpose" and is_matrix and order in ([], [[1, 0]])


def tie_transposed(model: onnx.ModelProto) -> None:
    """Store codes that are the transpose of other codes once; the runtime turns them on loading."""
    graph = model.graph
    large = [
        tensor
        for tensor in graph.initializer
        if tensor.data_type in _CODES
        and len(tensor.dims) == 2
        and element_count(tensor) > _SMALLEST
    ]
    gathered = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    nodes: list[onnx.NodeProto] = []
    gone: set[str] = set()
    for rows in (tensor for tensor in large if tensor.name in gathered):
        for columns in large:
            swapped = list(columns.dims) == list(rows.dims)[::-1]
            same = columns.data_type == rows.data_type and columns.name not in gathered | gone
            if swapped and same and np.array_equal(tensor_array(columns), tensor_array(rows).T):
                nodes.append(
                    helper.make_node(
                        "Transpose", [rows.name], [columns.name], f"{columns.name}_turned",
                        perm=[1, 0],
                    )
                )  # fmt: skip
                gone.add(columns.name)
    if not nodes:
        return
    kept = onnx.GraphProto(
        node=[*nodes, *graph.node],
        initializer=[tensor for tensor in graph.initializer if tensor.name not in gone],
    )
    for field in ("node", "initializer"):
        del getattr(graph, field)[:]
        getattr(graph, field).extend(getattr(kept, field))
