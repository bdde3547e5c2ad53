"""From codes to the real values they stand for, wherever in the graph the codes come from."""

from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper

from foldmark.graphs.reading.absorbed import restored, title
from foldmark.graphs.reading.arithmetic import dequantized, format_name, quantized
from foldmark.graphs.reading.movement import axis_before, data_inputs, is_movement
from foldmark.graphs.reading.nodes import attributes
from foldmark.graphs.reading.parameters import (
    Parameters,
    encoding_of,
    identity,
    parameters_of,
    real_value,
)
from foldmark.graphs.reading.workspace import Draft, Workspace
from foldmark.graphs.sites import Encoding

__all__ = ["add_weight", "decode", "encode"]


def decode(space: Workspace, codes: str, read: Parameters, wanted: str = "") -> str:
    """Return the float value that codes stand for, writing what it takes to have it.

    Codes of a constant become a constant and a weight site, those of a QuantizeLinear an
    activation site; an operator that only moves codes is written again on the float side.

    Args:
        space: the graph being rewritten.
        codes: name of the codes in the original graph.
        read: what they are read with.
        wanted: the name that the float value should have.
    """
    key = identity(space, codes, read)
    known = space.decoded.get(key)
    if known is None:
        known = _write(space, codes, read, wanted)
        space.decoded[key] = known
    if wanted:
        space.equate(wanted, known)
    return known


def _write(space: Workspace, codes: str, read: Parameters, wanted: str) -> str:
    array = space.array(codes)
    if array is not None:
        return _stored(space, codes, array, read, wanted)
    node = space.producers.get(codes)
    if node is not None and node.output[0] == codes and node.op_type in _QUANTIZERS:
        return _from_quantizer(space, node, read, wanted)
    moved = None
    if node is not None and node.op_type == "Resize" and not is_movement(node):
        moved = _interpolated(space, node, read, wanted)
    elif node is not None:
        moved = _moved(space, node, codes, read, wanted)
    return moved or _plain(space, codes, read, wanted or space.fresh(f"{codes}_dequantized"))


_QUANTIZERS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})


def _stored(space: Workspace, name: str, codes: NDArray[Any], read: Parameters, wanted: str) -> str:
    encoding = encoding_of(space, format_name(codes.dtype), read, codes.shape)
    if encoding.scale is None or (read.zero_point and encoding.zero_point is None):
        return _plain(space, name, read, wanted or space.fresh(f"{name}_dequantized"))
    return add_weight(space, codes, encoding, names=(name, read.scale, wanted), wanted=wanted)


def add_weight(
    space: Workspace,
    codes: NDArray[Any],
    encoding: Encoding,
    *,
    names: tuple[str, ...],
    wanted: str = "",
    own: NDArray[Any] | None = None,
) -> str:
    """Add a constant that holds dequantized codes, and its site; return the constant's name.

    Args:
        space: the graph being rewritten.
        codes: in the layout that the float operator takes.
        encoding: scale and zero point are laid out like the codes.
        names: names that lead to the float original, the likeliest first.
        wanted: the name of the constant, unless the graph must keep that for an output.
        own: the float original where the quantized model stores it itself.
    """
    assert encoding.scale is not None
    values = dequantized(
        codes, encoding.scale, encoding.zero_point, encoding.axis, encoding.block_size or 0
    )
    after = wanted if wanted and wanted not in space.kept else ""
    after = after or space.fresh(f"{names[0]}_dequantized")
    space.constants[after] = space.files.tensor(values, after)
    space.drafts.append(Draft(names[0], "", after, encoding, codes, names, own))
    return after


def _from_quantizer(space: Workspace, node: onnx.NodeProto, read: Parameters, wanted: str) -> str:
    before = space.value(node.input[0])
    kind = _code_type(space, node)
    own = space.array(before)
    if own is not None and node.op_type == "QuantizeLinear":
        encoding = encoding_of(space, _lower(kind), read, own.shape)
        made_with = encoding_of(space, _lower(kind), parameters_of(space, node), own.shape)
        if encoding.scale is not None and made_with.scale is not None:
            codes = quantized(own, made_with, helper.tensor_dtype_to_np_dtype(kind))
            names = (before, node.output[0])
            return add_weight(space, codes, encoding, names=names, wanted=wanted, own=own)
    after = wanted or space.fresh(f"{before}_dequantized")
    encoding = encoding_of(space, _lower(kind), read)
    clipped = restored(space, before, encoding)
    space.drafts.append(Draft(title(space, clipped), clipped, after, encoding))
    return _plain(space, node.output[0], read, after)


def _lower(kind: int) -> str:
    return format_name(helper.tensor_dtype_to_np_dtype(kind))


def _code_type(space: Workspace, node: onnx.NodeProto) -> int:
    """Return the element type that a QuantizeLinear or DynamicQuantizeLinear gives."""
    if node.op_type == "DynamicQuantizeLinear":
        return int(onnx.TensorProto.UINT8)
    chosen = attributes(node).get("output_dtype", 0)
    if chosen:
        return int(chosen)
    zero_point = space.constants.get(space.value(node.input[2])) if len(node.input) > 2 else None
    return int(onnx.TensorProto.UINT8 if zero_point is None else zero_point.data_type)


def _plain(space: Workspace, codes: str, read: Parameters, output: str) -> str:
    """Write a DequantizeLinear."""
    inputs = [space.value(name) for name in (codes, read.scale, read.zero_point) if name]
    return space.emit(
        "DequantizeLinear", inputs, output, domain=read.domain, attributes=_axes(read)
    )


def _axes(read: Parameters) -> dict[str, object]:
    given: dict[str, object] = {}
    if read.axis is not None:
        given["axis"] = read.axis
    if read.block_size:
        given["block_size"] = read.block_size
    return given


def encode(space: Workspace, x: str, read: Parameters, codes: str) -> None:
    """Write a QuantizeLinear that gives `codes`, and let it stand for what made them before."""
    inputs = [x, *(space.value(name) for name in (read.scale, read.zero_point) if name)]
    space.emit("QuantizeLinear", inputs, codes, domain=read.domain, attributes=_axes(read))
    space.producers[codes] = space.nodes[-1]


def _interpolated(space: Workspace, node: onnx.NodeProto, read: Parameters, wanted: str) -> str:
    """Write an interpolation of codes in float, rounded to codes again: a site of its own."""
    inputs = [space.value(name) for name in node.input]
    inputs[0] = decode(space, node.input[0], read)
    value = space.fresh(f"{node.output[0]}_float")
    _write_moved(space, node, inputs, [value])
    rounded = space.fresh(f"{node.output[0]}_rounded")
    encode(space, value, read, rounded)
    return _from_quantizer(space, space.producers[rounded], read, wanted)


def _moved(
    space: Workspace, node: onnx.NodeProto, codes: str, read: Parameters, wanted: str
) -> str | None:
    """Write a moving operator again, on the float values of its inputs; None if it is none."""
    if not is_movement(node):
        return None
    try:
        axis = axis_before(node, read.axis)
    except LookupError:
        return None
    inner = Parameters(read.scale, read.zero_point, axis, read.block_size, read.domain)
    constants = _code_constants(space, node, read)
    if constants is None:
        return None
    inputs = [space.value(name) for name in node.input]
    for place in data_inputs(node):
        inputs[place] = decode(space, node.input[place], inner)
    for place, value in constants.items():
        inputs += [""] * (place + 1 - len(inputs))
        inputs[place] = space.constant(value, f"{codes}_constant")
    names = _moved_outputs(space, node, codes, read, wanted)
    _write_moved(space, node, inputs, list(names.values()))
    return names[codes]


def _code_constants(
    space: Workspace, node: onnx.NodeProto, read: Parameters
) -> dict[int, NDArray[Any]] | None:
    """Return the real values of the codes that an operator is given as constants, by place.

    Pad fills with code 0 unless told otherwise, Relu compares with code 0, Clip with two
    codes: on real values each is what that code stands for. None when it is not constant.
    """
    given: dict[int, str] = {place: name for place, name in enumerate(node.input) if name}
    places: dict[str, list[int]] = {
        "Pad": [2],
        "Relu": [1],
        "Clip": [place for place in (1, 2) if place in given],
    }
    values = {
        place: real_value(space, read, given.get(place, ""))
        for place in places.get(node.op_type, [])
    }
    known = {place: value for place, value in values.items() if value is not None}
    return known if len(known) == len(values) else None


def _moved_outputs(
    space: Workspace, node: onnx.NodeProto, codes: str, read: Parameters, wanted: str
) -> dict[str, str]:
    """Name the float twin of each of an operator's outputs and remember it."""
    names = {name: space.fresh(f"{name}_dequantized") for name in node.output if name}
    if wanted:
        names[codes] = wanted
    for name, twin in names.items():
        space.decoded[identity(space, name, read)] = twin
    return names


def _write_moved(
    space: Workspace, node: onnx.NodeProto, inputs: list[str], outputs: list[str]
) -> None:
    written = onnx.NodeProto()
    written.CopyFrom(node)
    written.name = f"{node.name or outputs[0]}_float"
    written.op_type = "Max" if node.op_type == "Relu" else node.op_type
    del written.input[:], written.output[:]
    written.input.extend(inputs)
    written.output.extend(outputs)
    space.write(written)
