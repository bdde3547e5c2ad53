"""Bring a graph into the form that rules read: flat, recent, made of operators with rules."""

import numpy as np
import onnx
import onnx.inliner
import onnx.version_converter

from foldmark.errors import NotSupported
from foldmark.graphs.derivative.facts import element_types
from foldmark.graphs.derivative.table import FLAT, find_rule
from foldmark.graphs.emitter import Attribute, Emitter
from foldmark.graphs.inlining import replaced_nodes
from foldmark.graphs.light import LightModel, lighten

__all__ = ["prepare"]

# Gradients add with ScatterElements and ScatterND; their `reduction` came with this version.
_OLDEST_OPSET = 16
# Below this the same operator takes as an attribute what rules and metrics give as an input.
_OLDEST_READ = 13


def prepare(model: onnx.ModelProto | LightModel) -> LightModel:
    """Return an equal model with functions inlined and composite operators written out.

    Names of values that exist outside functions and composites are kept.
    """
    light = lighten(model)
    inlined = _converted(onnx.inliner.inline_local_functions(light.model))
    _raise_opset(inlined)
    _write_out_runtime_composites(inlined)
    inlined = _write_out_functions(LightModel(inlined, light.weights))
    _store_constants(inlined)
    return LightModel(inlined, light.weights)


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the default operator set."""
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def _converted(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model at a version in which axes of sums and cuts are inputs.

    Raises NotSupported when ONNX's converter can't, saying why.
    """
    version = opset_of(model)
    if version >= _OLDEST_READ:
        return model
    try:
        return onnx.version_converter.convert_version(model, _OLDEST_OPSET)
    except (RuntimeError, onnx.version_converter.ConvertError) as error:
        raise NotSupported(
            "ONNX's converter can't bring the model to a recent operator set",
            got=f"version {version}: {' '.join(str(error).split())}",
            expected=f"version {_OLDEST_READ} or later",
        ) from error


def _raise_opset(model: onnx.ModelProto) -> None:
    """Declare a version that has scatter-add.

    From 13 to 16 the default set changed no result but RoiAlign's, by a new default.
    """
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and 13 <= entry.version < _OLDEST_OPSET:
            entry.version = _OLDEST_OPSET
            for node in model.graph.node:
                if node.op_type == "RoiAlign":
                    mode = ("coordinate_transformation_mode", "output_half_pixel")
                    node.attribute.append(onnx.helper.make_attribute(*mode))
    model.ir_version = max(model.ir_version, 8)


def _store_constants(model: onnx.ModelProto) -> None:
    """Make an initializer of every Constant node, so that rules can read its value."""
    nodes = []
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name in _CONSTANTS:
            array = np.asarray(
                onnx.helper.get_attribute_value(node.attribute[0])
                if node.attribute[0].name != "value"
                else onnx.numpy_helper.to_array(node.attribute[0].t),
                dtype=_CONSTANTS[node.attribute[0].name],
            )
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, node.output[0]))
        else:
            nodes.append(node)
    if len(nodes) < len(model.graph.node):
        replaced_nodes(model.graph, nodes)


# The attributes that hold a Constant's value; None where the tensor says its own type.
_CONSTANTS = {
    "value": None,
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def _write_out_functions(light: LightModel) -> onnx.ModelProto:
    """Write operators that have no rule but a body in the specification as that body.

    Those whose derivative is zero need none: written out, Range would be a loop.
    """
    model = light.model
    version = opset_of(model)
    composites = set()
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type in FLAT:
            continue
        if find_rule("", node.op_type):
            continue
        try:
            schema = onnx.defs.get_schema(node.op_type, version)
        except onnx.defs.SchemaError:
            continue
        if schema.has_function or schema.has_context_dependent_function:
            composites.add(("", node.op_type))
    if not composites:
        return model
    _declare_types(light)
    return onnx.inliner.inline_selected_functions(
        model, sorted(composites), inline_schema_functions=True
    )


def _declare_types(light: LightModel) -> None:
    """State the type of every value: of some bodies the inliner asks for those of the inputs.

    It does not look at initializers, nor behind operators that ONNX does not have.
    """
    graph = light.model.graph
    stated = {value.name for value in (*graph.value_info, *graph.input, *graph.output)}
    graph.value_info.extend(
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(dtype), None)
        for name, dtype in element_types(light).items()
        if name not in stated
    )


def _write_out_runtime_composites(model: onnx.ModelProto) -> None:
    """Write ONNX Runtime's fused operators as the operators that they were fused from."""
    if not any((n.domain, n.op_type) in _COMPOSITES for n in model.graph.node):
        return
    emitter = Emitter("composite/")
    nodes = []
    for node in model.graph.node:
        written = _COMPOSITES.get((node.domain, node.op_type))
        if written is None:
            nodes.append(node)
            continue
        emitter.nodes = []
        written(emitter, node)
        nodes.extend(emitter.nodes)
    replaced_nodes(model.graph, nodes)
    model.graph.initializer.extend(emitter.initializers())


def _skip_layer_norm(emitter: Emitter, node: onnx.NodeProto) -> None:
    """Y = LayerNormalization(x + skip (+ bias)); the sum is a fourth output."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    simplified = node.op_type.startswith("SkipSimplified")
    inputs = [*node.input, "", "", "", ""]
    gamma, beta, bias = (
        (inputs[2], "", inputs[3]) if simplified else (inputs[2], inputs[3], inputs[4])
    )
    total = emitter.add(inputs[0], inputs[1])
    if bias:
        total = emitter.add(total, bias)
    if len(node.output) > 3 and node.output[3]:
        total = emitter.emit("Identity", total, name=node.output[3])
    emitter.emit(
        "SimplifiedLayerNormalization" if simplified else "LayerNormalization",
        *[name for name in (total, gamma, beta) if name],
        name=node.output[0],
        axis=-1,
        epsilon=float(attributes.get("epsilon", 1e-12)),
    )


def _fused_activation(emitter: Emitter, node: onnx.NodeProto) -> None:
    """Y = activation(Conv(...)) or activation(Gemm(...))."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    activation = attributes.pop("activation", b"").decode()
    parameters = list(attributes.pop("activation_params", []))
    for name in ("activation_alpha", "activation_beta"):
        if name in attributes:
            parameters.append(attributes.pop(name))
    inputs = [*node.input]
    addend = inputs.pop(3) if node.op_type == "FusedConv" and len(inputs) > 3 else ""
    inner = emitter.emit(node.op_type.removeprefix("Fused"), *inputs, **attributes)
    if addend:
        inner = emitter.add(inner, addend)
    if activation == "Clip":
        bounds = [emitter.constant(value, "float32") for value in parameters]
        emitter.emit("Clip", inner, *bounds, name=node.output[0])
        return
    named: dict[str, Attribute] = dict(zip(("alpha", "beta"), parameters, strict=False))
    attached = onnx.helper.make_node(activation or "Identity", [inner], [node.output[0]], **named)
    emitter.nodes.append(attached)


_COMPOSITES = {
    ("com.microsoft", "SkipLayerNormalization"): _skip_layer_norm,
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): _skip_layer_norm,
    ("com.microsoft", "FusedConv"): _fused_activation,
    ("com.microsoft", "FusedGemm"): _fused_activation,
}
