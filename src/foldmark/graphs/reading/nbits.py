"""com.microsoft's packed weights: MatMulNBits and GatherBlockQuantized.

Codes of fewer than eight bits lie little end first in each byte. Four bits:

    byte        7 6 5 4 3 2 1 0
    element     1 1 1 1 0 0 0 0
"""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import OperatorNotSupported
from foldmark.graphs.reading.arithmetic import format_name, is_integer
from foldmark.graphs.reading.codes import add_weight
from foldmark.graphs.reading.nodes import attributes
from foldmark.graphs.reading.scales import check_scale
from foldmark.graphs.reading.workspace import Workspace
from foldmark.graphs.sites import Encoding

__all__ = ["gather_block_quantized", "matmul_nbits"]

Array = NDArray[Any]

_UNSIGNED = {2: ml_dtypes.uint2, 4: ml_dtypes.uint4, 8: np.uint8}


def unpacked(packed: Array, bits: int, count: int) -> Array:
    """Return the codes of the last axis of packed bytes.

    packed      (..., ceil(count * bits / 8))  uint8
    ->          (..., count)                   unsigned, `bits` wide
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    spread = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return spread.reshape(*packed.shape[:-1], -1)[..., :count].astype(_UNSIGNED[bits])


def _refuse(node: onnx.NodeProto, what: str) -> OperatorNotSupported:
    return OperatorNotSupported(
        f"{node.op_type} {what}", where=f"node {node.name or node.output[0]!r}"
    )


def matmul_nbits(space: Workspace, node: onnx.NodeProto) -> None:
    """Read MatMulNBits: y = a W + bias, W (K, N) in blocks along K.

    B           (N, blocks, block_size * bits / 8)  uint8
    scales      (N, blocks)
    zero_points (N, ceil(blocks * bits / 8)) uint8, or (N, blocks) in the type of scales;
                2^(bits - 1) when absent
    """
    given = attributes(node)
    bits, block_size = int(given.get("bits", 4)), int(given["block_size"])
    rows, columns = int(given["K"]), int(given["N"])
    if bits not in _UNSIGNED:
        raise _refuse(node, f"of {bits} bits")
    if given.get("weight_prepacked", 0):
        raise _refuse(node, "packed for one device")
    a, b, _, zero_points, group_index, bias = [*node.input, "", "", ""][:6]
    if group_index:
        raise _refuse(node, "with g_idx")
    blocks = -(-rows // block_size)
    packed = space.need(node, 1).reshape(columns, -1)
    codes = unpacked(packed, bits, blocks * block_size)[:, :rows].T
    stored = space.need(node, 2)
    check_scale(space, node.input[2], stored, in_blocks=True)
    scale = stored.reshape(columns, blocks).T
    encoding = Encoding(
        format_name(codes.dtype),
        0,
        block_size,
        scale,
        _zero_points(space, node, zero_points, bits, scale),
    )
    w = add_weight(space, codes, encoding, names=(b, node.input[2]))
    product = space.fresh(f"{node.output[0]}_product") if bias else node.output[0]
    space.emit("MatMul", [space.value(a), w], product, name=node.name)
    if bias:
        space.emit("Add", [product, space.value(bias)], node.output[0])


def _zero_points(
    space: Workspace, node: onnx.NodeProto, name: str, bits: int, scale: Array
) -> Array:
    """Return zero points in the layout of the scale, (blocks, N)."""
    blocks, columns = scale.shape
    if not name:
        return np.full(scale.shape, 1 << (bits - 1), _UNSIGNED[bits])
    stored = space.need(node, 3)
    if not is_integer(stored.dtype):
        return stored.reshape(columns, blocks).T
    return unpacked(stored.reshape(columns, -1), bits, blocks).T


def gather_block_quantized(space: Workspace, node: onnx.NodeProto) -> None:
    """Read GatherBlockQuantized: rows of a table that is quantized in blocks along an axis.

    Codes in uint8 are packed along the last axis when they have fewer bits, and their zero
    point is 2^(bits - 1) when absent; that of int4 and uint4 is 0.
    """
    given = attributes(node)
    data, scale = space.need(node, 0), space.need(node, 2)
    check_scale(space, node.input[2], scale, in_blocks=True)
    zero = space.array(node.input[3]) if len(node.input) > 3 and node.input[3] else None
    axis = int(given.get("quantize_axis", 1)) % data.ndim
    block_size = int(given.get("block_size", 128))
    codes = data
    if data.dtype == np.uint8:
        bits = int(given.get("bits", 4))
        codes = unpacked(data, bits, data.shape[-1] * 8 // bits)
        if zero is None:
            zero = np.full(scale.shape, 1 << (bits - 1), _UNSIGNED[bits])
        else:
            zero = unpacked(zero, bits, scale.shape[-1])
    if not is_integer(codes.dtype):
        raise _refuse(node, f"of {codes.dtype.name}")
    encoding = Encoding(format_name(codes.dtype), axis, block_size, scale, zero)
    table = add_weight(space, codes, encoding, names=(node.input[0], node.input[2]))
    space.emit(
        "Gather",
        [table, space.value(node.input[1])],
        node.output[0],
        name=node.name,
        attributes={"axis": int(given.get("gather_axis", 0))},
    )
