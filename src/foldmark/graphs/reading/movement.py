"""Operators that move or compare elements: on codes and on real values they do the same."""

from collections.abc import Callable

import onnx

from foldmark.graphs.reading.nodes import attributes

__all__ = ["DATA_INPUTS", "axis_before", "data_inputs", "is_movement", "only_moves"]

# Which inputs of a moving operator carry the elements; the others are shapes and indices.
DATA_INPUTS: dict[str, Callable[[int], range]] = {
    **dict.fromkeys(
        (
            "Identity",
            "Reshape",
            "Transpose",
            "Squeeze",
            "Unsqueeze",
            "Flatten",
            "Slice",
            "Split",
            "Gather",
            "GatherElements",
            "GatherND",
            "Expand",
            "Tile",
            "DepthToSpace",
            "SpaceToDepth",
            "Pad",
            "MaxPool",
            "GlobalMaxPool",
            "ReduceMax",
            "ReduceMin",
            "Resize",
            "Relu",
            "Clip",
            "Dropout",
            "ReverseSequence",
            "Compress",
            "Trilu",
        ),
        lambda count: range(min(count, 1)),
    ),
    "Concat": range,
    "Max": range,
    "Min": range,
    "Where": lambda count: range(1, count),
    "ScatterElements": lambda count: range(0, count, 2),
    "ScatterND": lambda count: range(0, count, 2),
}


def is_movement(node: onnx.NodeProto) -> bool:
    """True when the node gives the same answer on codes as on the values they stand for.

    Max, Min, Relu and Clip count too, since a positive scale keeps the order. Interpolation
    does not: on codes it rounds.
    """
    if node.domain not in ("", "ai.onnx") or node.op_type not in DATA_INPUTS:
        return False
    if node.op_type == "Resize":
        return attributes(node).get("mode", b"nearest") == b"nearest"
    return True


def only_moves(node: onnx.NodeProto) -> bool:
    """True when every element of the output is one of the input, wherever it lies."""
    return is_movement(node) and node.op_type not in _COMPARE


def data_inputs(node: onnx.NodeProto) -> list[int]:
    """Return the places of the inputs that carry elements."""
    return [i for i in DATA_INPUTS[node.op_type](len(node.input)) if node.input[i]]


def axis_before(node: onnx.NodeProto, axis: int | None) -> int | None:
    """Return which axis of the input an axis of the output was, for a node that knows.

    Raises:
        LookupError: the node mixes axes, or which one it was can't be told from the node.
    """
    if axis is None or node.op_type in _SAME_AXES:
        return axis
    if node.op_type == "Transpose":
        order = attributes(node).get("perm")
        if isinstance(order, list):
            return int(order[axis])
    raise LookupError(node.op_type)


_COMPARE = frozenset(
    {"Relu", "Clip", "Max", "Min", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin"}
)
_SAME_AXES = frozenset({"Identity", "Relu", "Dropout", "MaxPool", "GlobalMaxPool"})
