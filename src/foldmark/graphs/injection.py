"""Errors added to a float graph at its sites, scaled by an amount that is an input.

At every place where sites lie the tensor x becomes

    x + amount * sum of the sites' errors

so one graph is the float model (amount 0), the quantized model (1) and any point of the path
between them; a site is switched off by leaving its error out of the sum. Sites between which
nothing happens to the tensor share one place, so that the graph's cost is one addition a place.
A stored tensor is an input as a whole: its errors are the same in every batch, and whoever runs
the graph adds them once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import NotSupported
from foldmark.graphs.emitter import Emitter
from foldmark.graphs.inlining import names_read, reread
from foldmark.graphs.light import LightModel, lighten, outside
from foldmark.graphs.sites import Site

__all__ = ["AMOUNT", "Injected", "MetricPiece", "Place", "append_metric", "inject"]

# The input that scales every error, a float32 scalar.
AMOUNT = "amount"

# Appends the nodes of a metric, which read the model's outputs and further inputs by name, and
# returns the name of the scalar to differentiate.
MetricPiece = Callable[[Emitter], str]

# These read a tensor's shape alone: no error reaches them.
_BLIND = frozenset({"Shape", "Size"})


@dataclass(frozen=True)
class Place:
    """Where errors are added.

    Attributes:
        sites: names of the sites.
        errors: input that takes the sum of the sites' errors, of the tensor's shape (or a scalar
            0 for none); "" at a stored tensor.
        value: the tensor with its errors, an input at a stored tensor; the gradient with respect
            to it is the gradient with respect to what each of the sites adds.
        stored: the tensor without errors, where it is stored; else None.
    """

    sites: tuple[str, ...]
    errors: str
    value: str
    stored: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Injected:
    """A float graph that takes errors.

    Attributes:
        model: inputs are those of the skeleton, AMOUNT, and each place's `errors` or, where it is
            stored, `value`.
        places: every site is in one of them.
    """

    model: LightModel
    places: tuple[Place, ...]


def inject(skeleton: onnx.ModelProto | LightModel, sites: Sequence[Site]) -> Injected:
    """Return the skeleton with errors to be added at every site's tensor.

    Consumers read the tensor with its errors; the graph's outputs keep their names.

    Raises NotSupported when a site's tensor is not in the graph.
    """
    light = lighten(skeleton)
    emitter = Emitter("injection/")
    together = _by_tensor(light.model, sites)
    plain = _plain_names(light.model, set(together))
    last: dict[str, str] = {}  # what a tensor is with its errors
    additions: dict[str, list[onnx.NodeProto]] = {}
    places = []
    for tensor, names in together.items():
        said = ", ".join(names)
        stored = _stored(light, tensor)
        if stored is not None:
            last[tensor] = f"{said} with errors"
            places.append(Place(tuple(names), "", last[tensor], stored))
            continue
        emitter.nodes = []
        errors = f"errors of {said}"
        last[tensor] = emitter.add(plain[tensor], emitter.multiply(errors, AMOUNT))
        additions[tensor] = emitter.nodes
        places.append(Place(tuple(names), errors, last[tensor]))
    injected = _rewired(light, plain, last, additions)
    graph = injected.model.graph
    graph.initializer.extend(emitter.initializers())
    float32 = onnx.TensorProto.FLOAT
    graph.input.append(onnx.helper.make_tensor_value_info(AMOUNT, float32, []))
    graph.input.extend(
        onnx.helper.make_tensor_value_info(
            place.errors or place.value,
            float32,
            None if place.stored is None else place.stored.shape,
        )
        for place in places
    )
    return Injected(injected, tuple(places))


def _stored(light: LightModel, tensor: str) -> NDArray[np.float32] | None:
    """Return the value of a stored float32 tensor, None for any other."""
    if any(value.name == tensor for value in light.model.graph.input):
        return None
    if tensor in light.weights:
        array = light.weights[tensor]
    else:
        found = [t for t in light.model.graph.initializer if t.name == tensor]
        if not found:
            return None
        array = onnx.numpy_helper.to_array(found[0])
    return array.astype(np.float32, copy=False) if array.dtype == np.float32 else None


def _by_tensor(model: onnx.ModelProto, sites: Sequence[Site]) -> dict[str, list[str]]:
    """Return the tensors at which errors are added, with the names of their sites.

    Errors at a tensor that only an Identity reads are added after it, but for stored tensors.
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in names_read(node) if node.op_type not in _BLIND else ():
            readers.setdefault(name, []).append(node)
    outputs = {value.name for value in model.graph.output}
    together: dict[str, list[str]] = {}
    for site in sites:
        tensor = site.tensor
        while tensor not in outputs | stored and _are_identity(readers.get(tensor, ())):
            tensor = readers[tensor][0].output[0]
        together.setdefault(tensor, []).append(site.name)
    return together


def _are_identity(readers: Sequence[onnx.NodeProto]) -> bool:
    """Return True when an Identity is all that reads a value."""
    return [node.op_type for node in readers] == ["Identity"]


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
        reread(copy, plain if node.op_type in _BLIND else last)
        copy.output[:] = [plain.get(name, name) for name in node.output]
        for name in node.output:
            graph.node.extend(additions.get(name, ()))
    for name in sorted(outputs & last.keys()):
        graph.node.append(
            onnx.helper.make_node("Identity", [last[name]], [name], name=f"{name} with errors")
        )
    return LightModel(model, weights)
