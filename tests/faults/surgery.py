"""Small cuts in an ONNX graph: read and replace constants, find what reads a value."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import numpy_helper

Array = np.ndarray


def constant(model: onnx.ModelProto, name: str) -> Array:
    """Return a copy of an initializer."""
    (found,) = [tensor for tensor in model.graph.initializer if tensor.name == name]
    return numpy_helper.to_array(found).copy()


def put(model: onnx.ModelProto, name: str, array: Array) -> None:
    """Replace an initializer, or add it."""
    made = numpy_helper.from_array(np.asarray(array), name)
    for tensor in model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(made)
            return
    model.graph.initializer.append(made)


def change(model: onnx.ModelProto, name: str, how: Callable[[Array], Array]) -> None:
    """Put how(constant) in an initializer's place, in its dtype."""
    old = constant(model, name)
    put(model, name, np.asarray(how(old)).astype(old.dtype))


def node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    """Return the node of this name."""
    (found,) = [n for n in model.graph.node if n.name == name]
    return found


def put_pair_after(model: onnx.ModelProto, tensor: str, scale: Array, zero_point: Array) -> None:
    """Quantize and dequantize a tensor on its way to whatever reads it."""
    put(model, f"{tensor}_scale", scale)
    put(model, f"{tensor}_zero_point", zero_point)
    (at,) = [i for i, n in enumerate(model.graph.node) if tensor in n.output]
    for n in model.graph.node:
        for place, name in enumerate(n.input):
            if name == tensor:
                n.input[place] = f"{tensor}_unfolded"
    parameters = [f"{tensor}_scale", f"{tensor}_zero_point"]
    for operator, source, target in (
        ("DequantizeLinear", f"{tensor}_codes", f"{tensor}_unfolded"),
        ("QuantizeLinear", tensor, f"{tensor}_codes"),
    ):
        pair = onnx.helper.make_node(operator, [source, *parameters], [target], target)
        model.graph.node.insert(at + 1, pair)


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy to cut in."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def sites(model: onnx.ModelProto) -> list[str]:
    """Return the tensors that a model by ONNX Runtime's QDQ quantizer quantizes."""
    written = {n.output[0]: n.input[0] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    return [
        written.get(n.input[0], n.input[0].removesuffix("_quantized"))
        for n in model.graph.node
        if n.op_type == "DequantizeLinear"
    ]


def left_in_float(
    model: onnx.ModelProto, site: str, float_model: onnx.ModelProto
) -> onnx.ModelProto:
    """Return a copy of a QDQ model in which one tensor is not quantized."""
    copy = copied(model)
    written = {n.output[0]: n.input[0] for n in copy.graph.node if n.op_type == "QuantizeLinear"}
    for reader in [n for n in copy.graph.node if n.op_type == "DequantizeLinear"]:
        source = written.get(reader.input[0])
        if source is None and reader.input[0] == f"{site}_quantized":
            put(copy, f"{site}_in_float", constant(float_model, site))
            source = f"{site}_in_float"
        elif source != site:
            continue
        for n in copy.graph.node:
            for place, name in enumerate(n.input):
                if name == reader.output[0]:
                    n.input[place] = source
    return copy
