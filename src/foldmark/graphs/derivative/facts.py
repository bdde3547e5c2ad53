"""What is known of a graph's values: type, shape and, where a rule needs it, the value itself."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import NotSupported
from foldmark.graphs.light import LightModel, lighten

__all__ = ["Fact", "Facts", "Probe", "element_types", "probe", "shapes_follow_data"]

Array = NDArray[np.generic]

# Operators whose integer inputs steer their derivative: slot -> must be known as a value.
_PARAMETERS: dict[str, tuple[int, ...]] = {
    "CumSum": (1,),
    "Pad": (1, 3),
    "ReduceL1": (1,),
    "ReduceL2": (1,),
    "ReduceLogSum": (1,),
    "ReduceLogSumExp": (1,),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceProd": (1,),
    "ReduceSum": (1,),
    "ReduceSumSquare": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Trilu": (1,),
}


# Operators whose output's shape is decided by an input's values: slot -> decides.
_SHAPING: dict[str, tuple[int, ...]] = {
    **_PARAMETERS,
    "Compress": (0, 1),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "NonMaxSuppression": (0, 1, 2, 3, 4),
    "NonZero": (0,),
    "OneHot": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unique": (0,),
    "Unsqueeze": (1,),
}


@dataclass(frozen=True)
class Fact:
    """What is known of one value.

    Attributes:
        dtype: its element type.
        shape: its shape on the data at hand.
        value: the value, for constants and for integers that steer an operator.
    """

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    value: Array | None = None

    @property
    def is_float(self) -> bool:
        """True when the value can carry a derivative."""
        return np.issubdtype(self.dtype, np.floating)

    @property
    def key(self) -> tuple[object, ...]:
        """What two facts must share for one derivative to fit both."""
        steers = self.value is not None and not self.is_float
        return (self.shape, self.dtype.str, self.value.tobytes() if steers else b"")  # type: ignore[union-attr]


Facts = Mapping[str, Fact]


@dataclass(frozen=True)
class Probe:
    """A model that returns, beside its outputs, the shape of every value in it.

    Attributes:
        model: run it on the data (with any optimization), asking for `outputs`.
        outputs: names to ask for.
    """

    model: LightModel
    outputs: tuple[str, ...]
    _shapes: Mapping[str, str]
    _dtypes: Mapping[str, np.dtype[np.generic]]
    _constants: Mapping[str, Array]
    _parameters: tuple[str, ...]

    def facts(self, feeds: Mapping[str, Array], results: Mapping[str, Array]) -> dict[str, Fact]:
        """Return the facts that a run showed; `results` holds at least `outputs`."""
        facts = {
            name: Fact(array.dtype, array.shape, array) for name, array in self._constants.items()
        }
        facts |= {name: Fact(array.dtype, array.shape) for name, array in feeds.items()}
        for name, output in self._shapes.items():
            shape = tuple(int(n) for n in results[output])
            facts[name] = Fact(self._dtypes[name], shape)
        for name in self._parameters:
            value = results[name]
            facts[name] = Fact(value.dtype, value.shape, value)
        return facts


def probe(model: onnx.ModelProto | LightModel) -> Probe:
    """Return the model with the shape of every value as an output, named "shape of NAME"."""
    light = lighten(model)
    constants = _constants(light)
    probing = onnx.ModelProto()
    probing.CopyFrom(light.model)
    dtypes = element_types(light)
    shapes: dict[str, str] = {}
    parameters: list[str] = []
    del probing.graph.node[:]
    for node in light.model.graph.node:
        probing.graph.node.append(node)
        # Each shape is asked for at once: at the end, every value would have to live until then.
        for name in node.output:
            if name and name in dtypes:
                shapes[name] = f"shape of {name}"
                asked = onnx.helper.make_node("Shape", [name], [shapes[name]], name=shapes[name])
                probing.graph.node.append(asked)
        for slot in _PARAMETERS.get(node.op_type, ()):
            name = node.input[slot] if slot < len(node.input) else ""
            if name and name not in constants:
                parameters.append(name)
    parameters = list(dict.fromkeys(parameters))
    have = {output.name for output in probing.graph.output}
    for name in (*shapes.values(), *parameters):
        if name not in have:
            probing.graph.output.append(onnx.ValueInfoProto(name=name))
    outputs = (*shapes.values(), *parameters)
    return Probe(
        LightModel(probing, light.weights), outputs, shapes, dtypes, constants, tuple(parameters)
    )


def shapes_follow_data(model: onnx.ModelProto | LightModel) -> bool:
    """Return True when batches of equal shapes may meet inner values of different shapes.

    It is so when what an input holds, and not its shape alone, reaches a place that decides a
    shape or a cut; a graph inside a node is taken to do so.
    """
    graph = lighten(model).model.graph
    stored = {tensor.name for tensor in graph.initializer}
    of_data = {value.name for value in graph.input} - stored
    for node in graph.node:
        if any(attribute.HasField("g") for attribute in node.attribute):
            return True
        slots = _SHAPING.get(node.op_type, ())
        if any(slot < len(node.input) and node.input[slot] in of_data for slot in slots):
            return True
        if node.op_type not in ("Shape", "Size") and of_data.intersection(node.input):
            of_data.update(node.output)
    return False


def element_types(model: onnx.ModelProto | LightModel) -> dict[str, np.dtype[np.generic]]:
    """Return the element type of every tensor of a graph, by ONNX's inference.

    Operators outside the ONNX domains have no inference; their outputs are taken to have the
    float type that the model computes in.
    """
    light = lighten(model)
    constants = _constants(light)
    inferring = onnx.ModelProto()
    inferring.CopyFrom(light.model)
    floats = [a.dtype for a in constants.values() if np.issubdtype(a.dtype, np.floating)]
    usual = max(set(floats), key=floats.count) if floats else np.dtype(np.float32)
    element = onnx.helper.np_dtype_to_tensor_dtype(usual)
    for node in inferring.graph.node:
        if not _is_standard(node):
            inferring.graph.value_info.extend(
                onnx.helper.make_tensor_value_info(name, element, None)
                for name in node.output
                if name
            )
    graph = _inferred(inferring).graph
    dtypes = {name: array.dtype for name, array in constants.items()}
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            element = value.type.tensor_type.elem_type
            if element != onnx.TensorProto.STRING:
                dtypes[value.name] = onnx.helper.tensor_dtype_to_np_dtype(element)
    return dtypes


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with what ONNX infers of its values; raises NotSupported where it fails."""
    try:
        return onnx.shape_inference.infer_shapes(model)
    except onnx.shape_inference.InferenceError as error:
        raise NotSupported(
            "ONNX can't infer the types of its values",
            where="the model",
            got=" ".join(str(error).split()),
        ) from error


def _constants(light: LightModel) -> dict[str, Array]:
    """Return the value of every initializer."""
    constants: dict[str, Array] = dict(light.weights)
    for tensor in light.model.graph.initializer:
        if tensor.name not in constants:
            constants[tensor.name] = onnx.numpy_helper.to_array(tensor)
    return constants


def _is_standard(node: onnx.NodeProto) -> bool:
    """Return True when the ONNX package can infer the node's types."""
    return onnx.defs.has(node.op_type, node.domain)
