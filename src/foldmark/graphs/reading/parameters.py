"""What codes are read with: names of a scale and a zero point, and the axis they run along."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import InvalidScheme
from foldmark.graphs.reading.arithmetic import dequantized
from foldmark.graphs.reading.nodes import attributes
from foldmark.graphs.reading.scales import check_fits, check_scale
from foldmark.graphs.reading.workspace import Workspace
from foldmark.graphs.sites import Encoding

__all__ = ["Parameters", "encoding_of", "parameters_of", "real_value"]

# Scales with more elements are told apart by name alone.
_COMPARED = 1 << 16


@dataclass(frozen=True)
class Parameters:
    """The scale and zero point that codes are read with, as value names.

    Attributes:
        scale: name of the scale.
        zero_point: name of the zero point, "" for none.
        axis: the axis that the scale runs along, None for one scale.
        block_size: elements of the axis that share a scale, 0 for none.
        domain: operator set of the Quantize/DequantizeLinear to write.
    """

    scale: str
    zero_point: str = ""
    axis: int | None = None
    block_size: int = 0
    domain: str = ""


def parameters_of(space: Workspace, node: onnx.NodeProto) -> Parameters:
    """Return what a QuantizeLinear or DequantizeLinear node works with.

    Raises InvalidScheme for a block size below 0.
    """
    given = attributes(node)
    block_size = int(given.get("block_size", 0))
    if block_size < 0:
        raise InvalidScheme(
            "a block of less than one element",
            where=f"node {node.name or node.output[0]!r}",
            got=f"block_size {block_size}",
        )
    axis = int(given.get("axis", 1))
    per_tensor = not block_size and is_single(space, node.input[1])
    return Parameters(
        node.input[1],
        node.input[2] if len(node.input) > 2 else "",
        None if per_tensor else axis,
        block_size,
        node.domain,
    )


def is_single(space: Workspace, scale: str) -> bool:
    """True when a scale is one number: a constant of one element, or chosen at run time."""
    array = space.array(scale)
    if array is not None:
        return array.size == 1
    maker = space.producers.get(scale)
    return maker is not None and maker.op_type == "DynamicQuantizeLinear"


def identity(space: Workspace, codes: str, read: Parameters) -> tuple[object, ...]:
    """Return a key that is equal where codes are read alike, whatever the scale is called."""
    content = (_content(space, name) for name in (read.scale, read.zero_point))
    return (space.value(codes), *content, read.axis, read.block_size)


def _content(space: Workspace, name: str) -> object:
    array = space.array(name) if name else None
    if array is None or array.size > _COMPARED:
        return space.value(name)
    return (array.shape, array.dtype.name, array.tobytes())


def encoding_of(
    space: Workspace, number_format: str, read: Parameters, shape: tuple[int, ...] | None = None
) -> Encoding:
    """Return the Encoding that a site with these parameters has.

    Args:
        space: the graph being rewritten.
        number_format: name of the codes' type.
        read: what the codes are read with.
        shape: of the tensor, where it is known; a negative axis is then counted from the front.

    Raises:
        NonFiniteValue: the scale is not finite.
        InvalidScheme: scale or zero point do not fit the tensor.
    """
    axis = read.axis
    scale = space.array(read.scale)
    zero_point = space.array(read.zero_point) if scale is not None else None
    if scale is not None:
        check_scale(space, read.scale, scale, in_blocks=bool(read.block_size))
    if scale is not None and (shape is not None or axis is None):
        known = shape if shape is not None else ()
        check_fits(read.scale, scale, zero_point, known, axis=axis, block_size=read.block_size)
    if axis is not None and shape:
        axis %= len(shape)
    if scale is not None and axis is None:
        scale = scale.reshape(())
        zero_point = None if zero_point is None else zero_point.reshape(())
    return Encoding(number_format, axis, read.block_size or None, scale, zero_point)


def real_value(space: Workspace, read: Parameters, code: str = "") -> NDArray[Any] | None:
    """Return what a constant code stands for, code 0 by default; None when it is not constant."""
    scale, zero_point = space.array(read.scale), space.array(read.zero_point)
    codes = space.array(code) if code else np.zeros((), dtype=np.int32)
    if scale is None or scale.size != 1 or codes is None:
        return None
    if read.zero_point and zero_point is None:
        return None
    return dequantized(codes, scale.reshape(()), zero_point, None)
