"""Weights kept as integers that Cast, Sub and Mul turn into real values in the graph."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.graphs.reading.arithmetic import format_name, is_integer
from foldmark.graphs.reading.codes import add_weight
from foldmark.graphs.reading.nodes import attributes
from foldmark.graphs.reading.scales import check_scale
from foldmark.graphs.reading.workspace import StoredWeight, Workspace
from foldmark.graphs.sites import Encoding

__all__ = ["cast_stored", "move_stored", "scale_stored", "shift_stored"]

Array = NDArray[Any]

_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})


def cast_stored(space: Workspace, node: onnx.NodeProto) -> bool:
    """Begin with a Cast of constant codes to float; False when the Cast is of something else."""
    target = attributes(node)["to"]
    if target not in _FLOATS:
        return False
    gather = space.producers.get(node.input[0])
    is_gather = gather is not None and gather.op_type == "Gather"
    name = gather.input[0] if gather is not None and is_gather else node.input[0]
    codes = space.array(name)
    if codes is None or codes.ndim == 0 or not is_integer(codes.dtype) or codes.itemsize > 2:
        return False
    dtype = onnx.helper.tensor_dtype_to_np_dtype(target)
    scale = np.ones([1] * codes.ndim, dtype)
    stored = StoredWeight(name, codes, scale, None, gather if is_gather else None)
    _carry(space, node, stored)
    return True


def scale_stored(space: Workspace, node: onnx.NodeProto) -> bool:
    """Multiply or divide a stored weight by a constant; False when there is none."""
    for name, other in (tuple(node.input), tuple(reversed(node.input))):
        stored = space.stored.get(name)
        factor = None if stored is None else _factor(space, stored, other)
        if stored is not None and factor is not None:
            given = space.array(other)
            check_scale(space, other, factor if given is None else given)
            product = np.multiply if node.op_type == "Mul" else np.divide
            _carry(space, node, replace(stored, scale=product(stored.scale, factor)))
            return True
        if node.op_type == "Div":
            break
    return False


def shift_stored(space: Workspace, node: onnx.NodeProto) -> bool:
    """Subtract a constant zero point from a stored weight that has no scale yet."""
    stored = space.stored.get(node.input[0])
    if stored is None or stored.zero_point is not None or np.any(stored.scale != 1):
        return False
    zero = _factor(space, stored, node.input[1])
    if zero is None or np.any(zero != np.rint(zero)):
        return False
    _carry(space, node, replace(stored, zero_point=zero.astype(np.int32)))
    return True


def move_stored(space: Workspace, node: onnx.NodeProto) -> bool:
    """Transpose, reshape or pass on a stored weight; False when there is none."""
    stored = space.stored.get(node.input[0])
    if stored is None or stored.gather is not None:
        return False
    if node.op_type == "Transpose":
        order = attributes(node).get("perm")
        parts = [None if p is None else np.transpose(p, order) for p in _parts(stored)]
    elif node.op_type == "Reshape" and (shape := space.array(node.input[1])) is not None:
        parts = _reshaped(stored, shape)
    elif node.op_type == "Identity":
        parts = list(_parts(stored))
    else:
        return False
    codes, scale, zero_point = parts
    assert codes is not None
    assert scale is not None
    _carry(space, node, replace(stored, codes=codes, scale=scale, zero_point=zero_point))
    return True


def _parts(stored: StoredWeight) -> tuple[Array, Array, Array | None]:
    return stored.codes, stored.scale, stored.zero_point


def _reshaped(stored: StoredWeight, shape: Array) -> list[Array | None]:
    before = stored.codes.shape
    target = [before[i] if size == 0 else int(size) for i, size in enumerate(shape)]
    codes = stored.codes.reshape(target)
    rest = [
        None if part is None else np.broadcast_to(part, before).reshape(codes.shape)
        for part in (stored.scale, stored.zero_point)
    ]
    return [codes, *rest]


def _factor(space: Workspace, stored: StoredWeight, name: str) -> Array | None:
    """Return a constant operand in the rank of the codes, gathered alike if they were."""
    maker = space.producers.get(name)
    if space.array(name) is None and maker is not None and maker.op_type == "Cast":
        return _factor(space, stored, maker.input[0])
    gather = stored.gather
    if gather is not None and maker is not None and maker.op_type == "Gather":
        same = list(maker.input[1:]) == list(gather.input[1:])
        name = maker.input[0] if same and attributes(maker) == attributes(gather) else ""
    array = space.array(name) if name else None
    if array is None or array.ndim > stored.codes.ndim:
        return None
    if gather is not None and maker is None and array.size > 1:
        return None
    full = array.reshape([1] * (stored.codes.ndim - array.ndim) + list(array.shape))
    fits = all(
        size in (1, whole) for size, whole in zip(full.shape, stored.codes.shape, strict=True)
    )
    return full.astype(stored.scale.dtype) if fits else None


def _carry(space: Workspace, node: onnx.NodeProto, stored: StoredWeight) -> None:
    output = node.output[0]
    space.stored[output] = stored
    space.pending[output] = lambda: _write(space, stored, output)


def _write(space: Workspace, stored: StoredWeight, wanted: str) -> None:
    """Make the weight a constant, and a site; write the Gather behind it if there was one."""
    encoding = _encoding(stored)
    names = (stored.name, wanted)
    if stored.gather is None:
        space.equate(wanted, add_weight(space, stored.codes, encoding, names=names, wanted=wanted))
        return
    table = add_weight(space, stored.codes, encoding, names=names[:1])
    gather = stored.gather
    space.emit(
        "Gather",
        [table, space.value(gather.input[1])],
        wanted,
        name=gather.name,
        attributes=attributes(gather),
    )


def _encoding(stored: StoredWeight) -> Encoding:
    shape = stored.codes.shape
    scale = np.broadcast_to(stored.scale, shape)
    zero = None if stored.zero_point is None else np.broadcast_to(stored.zero_point, shape)
    axis, block_size = granularity([part for part in (scale, zero) if part is not None])
    picked = [None if p is None else thinned(p, axis, block_size) for p in (scale, zero)]
    return Encoding(format_name(stored.codes.dtype), axis, block_size, *picked)


def granularity(arrays: list[Array]) -> tuple[int | None, int | None]:
    """Return the axis and block size that full-size scales or zero points have.

    (None, None) for one value, (axis, None) for one an index of an axis, (axis, size) for
    runs of one value along an axis.
    """
    rank = arrays[0].ndim
    varies = [i for i in range(rank) if any(_varies(array, i) for array in arrays)]
    if not varies:
        return None, None
    if len(varies) == 1:
        return varies[0], None
    runs = [min(_run(array, axis) for array in arrays) for axis in range(rank)]
    axis = int(np.argmax(runs))
    return axis, runs[axis]


def _varies(array: Array, axis: int) -> bool:
    return bool(np.any(array != array.take([0], axis=axis)))


def _run(array: Array, axis: int) -> int:
    """Return the length of the equal runs that an axis is made of."""
    length = array.shape[axis]
    moved = np.moveaxis(array, axis, -1).reshape(-1, length)
    changes = np.flatnonzero((moved[:, 1:] != moved[:, :-1]).any(0)) + 1
    return int(np.gcd.reduce([length, *changes]))


def thinned(array: Array, axis: int | None, block_size: int | None) -> Array:
    """Return one value a tensor, an index or a block, as an Encoding stores them."""
    if axis is None:
        return array.reshape(-1)[0]
    if block_size is None:
        index = [slice(None) if i == axis else 0 for i in range(array.ndim)]
        return array[tuple(index)]
    return array.take(np.arange(0, array.shape[axis], block_size), axis=axis)
