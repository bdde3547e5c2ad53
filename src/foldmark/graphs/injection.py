"""Errors added to a float graph at its sites, each by an amount that is an input.

At every site the tensor x becomes

    x + amount_s * delta_s

so one graph is the float model (all amounts 0), the quantized model (all 1), any point of the
path between them, and the model with any choice of sites switched off.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import NotSupported
from foldmark.graphs.emitter import Emitter
from foldmark.graphs.inlining import reread
from foldmark.graphs.light import LightModel, lighten, outside
from foldmark.graphs.sites import Site

__all__ = ["AMOUNTS", "Injected", "MetricPiece", "append_metric", "delta_name", "inject"]

# The input that holds one amount a site, float32 (sites,), in the order of the sites.
AMOUNTS = "amounts"

# Appends the nodes of a metric, which read the model's outputs and further inputs by name, and
# returns the name of the scalar to differentiate.
MetricPiece = Callable[[Emitter], str]


@dataclass(frozen=True)
class Injected:
    """A float graph that takes an error at every site.

    Attributes:
        model: inputs are those of the skeleton, AMOUNTS, and `delta_name(site)` for each site.
        sites: in the order of the amounts.
        values: site name -> value to which its error was added; the gradient with respect to
            it is the gradient with respect to what is injected.
    """

    model: LightModel
    sites: tuple[Site, ...]
    values: Mapping[str, str]


def delta_name(site: Site) -> str:
    """Return the name of the input that takes the site's error (of its tensor's shape)."""
    return f"delta of {site.name}"


def inject(skeleton: onnx.ModelProto | LightModel, sites: Sequence[Site]) -> Injected:
    """Return the skeleton with an error to be added at every site's tensor.

    Consumers read the tensor with its errors; the graph's outputs keep their names.

    Raises NotSupported when a site's tensor is not in the graph.
    """
    light = lighten(skeleton)
    emitter = Emitter("injection/")
    plain = _plain_names(light.model, {site.tensor for site in sites})
    values: dict[str, str] = {}
    last: dict[str, str] = {}  # what a tensor is after the errors added so far
    additions: dict[str, list[onnx.NodeProto]] = {}
    for index, site in enumerate(sites):
        tensor = site.tensor
        emitter.nodes = []
        source = last.get(tensor, plain[tensor])
        amount = emitter.emit("Gather", AMOUNTS, emitter.constant(index, np.int64))
        scaled = emitter.multiply(delta_name(site), amount)
        last[tensor] = emitter.add(source, scaled)
        additions.setdefault(tensor, []).extend(emitter.nodes)
        values[site.name] = last[tensor]
    injected = _rewired(light, plain, last, additions)
    graph = injected.model.graph
    graph.initializer.extend(emitter.initializers())
    float32 = onnx.TensorProto.FLOAT
    graph.input.append(onnx.helper.make_tensor_value_info(AMOUNTS, float32, [len(sites)]))
    graph.input.extend(
        onnx.helper.make_tensor_value_info(delta_name(site), float32, None) for site in sites
    )
    return Injected(injected, tuple(sites), values)


def append_metric(
    model: LightModel, metric: MetricPiece, inputs: Mapping[str, NDArray[np.generic]]
) -> tuple[LightModel, str]:
    """Return the model with a metric's nodes after its own, and the name of the scalar.

    Args:
        model: any graph.
        metric: appends the nodes.
        inputs: what the metric reads beside the model's values: reference outputs, labels.
            Their types become those of the graph's inputs.
    """
    emitter = Emitter("metric/")
    scalar = metric(emitter)
    measured = onnx.ModelProto()
    measured.CopyFrom(model.model)
    measured.graph.node.extend(emitter.nodes)
    measured.graph.initializer.extend(emitter.initializers())
    measured.graph.input.extend(
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in inputs.items()
    )
    measured.graph.output.append(onnx.ValueInfoProto(name=scalar))
    return LightModel(measured, model.weights), scalar


def _plain_names(model: onnx.ModelProto, tensors: set[str]) -> dict[str, str]:
    """Return the name that each tensor's value goes by before errors are added.

    An input keeps its name, since callers feed it; anything else gives its name away, for an
    output of the graph must be the value with errors.
    """
    inputs = {value.name for value in model.graph.input}
    produced = {name for node in model.graph.node for name in node.output}
    stored = {tensor.name for tensor in model.graph.initializer}
    plain = {}
    for tensor in tensors:
        if tensor in inputs and tensor not in stored:
            plain[tensor] = tensor
        elif tensor in produced or tensor in stored:
            plain[tensor] = f"{tensor} before errors"
        else:
            raise NotSupported("a site's tensor is not in the float graph", where=repr(tensor))
    return plain


def _rewired(
    light: LightModel,
    plain: Mapping[str, str],
    last: Mapping[str, str],
    additions: Mapping[str, Sequence[onnx.NodeProto]],
) -> LightModel:
    """Return the graph with the additions in place and consumers reading their results."""
    source = light.model.graph
    model = onnx.ModelProto()
    model.CopyFrom(light.model)
    graph = model.graph
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    weights = dict(light.weights)
    for tensor in source.initializer:
        if tensor.name not in plain:
            graph.initializer.append(tensor)
            continue
        name = plain[tensor.name]
        if tensor.name in weights:
            weights[name] = weights.pop(tensor.name)
            graph.initializer.append(outside(name, weights[name]))
        else:
            graph.initializer.append(tensor)
            graph.initializer[-1].name = name
    made = {name for node in source.node for name in node.output}
    for tensor_name, nodes in additions.items():
        if tensor_name not in made:
            graph.node.extend(nodes)
    outputs = {value.name for value in source.output}
    for node in source.node:
        copy = graph.node.add()
        copy.CopyFrom(node)
        reread(copy, last)
        copy.output[:] = [plain.get(name, name) for name in node.output]
        for name in node.output:
            graph.node.extend(additions.get(name, ()))
    for name in sorted(outputs & last.keys()):
        graph.node.append(onnx.helper.make_node("Identity", [last[name]], [name], name=name))
    return LightModel(model, weights)
