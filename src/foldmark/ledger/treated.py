"""The simulated quantized model with some sites treated otherwise."""

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from foldmark.graphs.emitter import Emitter
from foldmark.graphs.light import LightModel, lighten
from foldmark.graphs.sites import QuantizedGraph, Site
from foldmark.ledger.models import is_constant
from foldmark.ledger.recording import Recording
from foldmark.ledger.treatments import Treatment

__all__ = ["treated_model"]


def treated_model(
    graph: QuantizedGraph, treatments: Sequence[tuple[Site, Treatment]], recording: Recording
) -> LightModel:
    """Return the simulated model in which sites are represented by their treatments.

    Downstream sites see what comes out of it and quantize that: nothing is a recorded constant.
    """
    light = lighten(graph.simulated)
    model = onnx.ModelProto()
    model.CopyFrom(light.model)
    weights = dict(light.weights)
    for number, (site, treatment) in enumerate(treatments):
        if is_constant(site):
            _replace_constant(model, weights, site, treatment, recording)
        else:
            _replace_activation(model, site, treatment, recording, f"treated {number}/")
    return LightModel(model, weights)


def _replace_constant(
    model: onnx.ModelProto,
    weights: dict[str, NDArray[np.generic]],
    site: Site,
    treatment: Treatment,
    recording: Recording,
) -> None:
    array = treatment.apply(recording.before[site.name])
    if site.after in weights:
        weights[site.after] = array
        return
    for tensor in model.graph.initializer:
        if tensor.name == site.after:
            tensor.CopyFrom(numpy_helper.from_array(array, site.after))


def _replace_activation(
    model: onnx.ModelProto, site: Site, treatment: Treatment, recording: Recording, prefix: str
) -> None:
    emitter = Emitter(prefix)
    value = treatment.emit(emitter, site.before, recording.before[site.name].shape)
    result = onnx.helper.make_node("Identity", [value], [site.after], name=f"{prefix}result")
    nodes = []
    for node in model.graph.node:
        if site.after in node.output:
            node.output[:] = [
                f"{prefix}{name} as it was" if name == site.after else name for name in node.output
            ]
            nodes.extend([node, *emitter.nodes, result])
        else:
            nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    model.graph.initializer.extend(emitter.initializers())
