"""What one batch of the quantized run shows: every site's tensor and the error it adds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import DataMismatch, NonFiniteValue
from foldmark.formats.onnx_external import IN_MEMORY
from foldmark.graphs.derivative.facts import element_types
from foldmark.graphs.emitter import Emitter
from foldmark.graphs.light import LightModel, with_outputs
from foldmark.graphs.sites import Site, SiteKind
from foldmark.ledger.on_disk import on_disk
from foldmark.runtimes.onnxruntime import Array, Optimization, Session

__all__ = [
    "Float32",
    "Recording",
    "as_float32",
    "check_finite",
    "dot",
    "error_name",
    "is_stored",
    "stored_errors",
    "with_errors",
]

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Recording:
    """What one batch showed.

    Attributes:
        feeds: the batch.
        simulated: outputs of the simulated quantized model.
        start: outputs of the float skeleton (all amounts 0).
        before: site name -> its tensor as the quantized run sees it, before quantization;
            weights and biases too.
        delta: site name -> error that the site adds, of the same shape.
    """

    feeds: Mapping[str, Array]
    simulated: Mapping[str, Array]
    start: Mapping[str, Array]
    before: Mapping[str, Float32]
    delta: Mapping[str, Float32]


_PIECE = 4096


def is_stored(site: Site) -> bool:
    """Return True when the site's tensor is a constant of the model."""
    return site.kind in (SiteKind.WEIGHT, SiteKind.BIAS)


def dot(left: Float32, right: Float32) -> float:
    """Return the inner product: float32 within pieces of 4,096, float64 between them.

    All in float64 where float32 overflows.
    """
    left, right = left.ravel(), right.ravel()
    whole = left.size // _PIECE * _PIECE
    with np.errstate(over="ignore", invalid="ignore"):
        pieces = np.linalg.vecdot(
            left[:whole].reshape(-1, _PIECE), right[:whole].reshape(-1, _PIECE)
        )
    rest = left[whole:].astype(np.float64) @ right[whole:].astype(np.float64)
    product = float(pieces.sum(dtype=np.float64) + rest)
    if np.isfinite(product):
        return product
    with np.errstate(invalid="ignore"):
        return float(left.astype(np.float64) @ right.astype(np.float64))


def as_float32(array: Array) -> Float32:
    """Return the array in float32, itself when it is."""
    return array.astype(np.float32, copy=False)


def check_finite(site: Site, before: Float32, delta: Float32) -> None:
    """Raise NonFiniteValue when a site's error is not finite, naming site and first index.

    before   the tensor; where it is finite, its scale made something else of it
    """
    if np.isfinite(dot(delta, delta)):  # one pass, and no array of flags
        return
    if np.isfinite(delta).all():
        return
    index = tuple(int(i) for i in np.argwhere(~np.isfinite(delta))[0])
    value = float(before[index])
    stored = is_stored(site)
    if np.isfinite(value):
        what = "its scale is so large that codes unfold to infinity or NaN"
        got = f"first where the float value is {value:.4g}"
    elif stored:
        what, got = "the float model's values are not finite", f"first {value}"
    else:
        what, got = "the quantized run meets NaN or infinity here", f"first {value}"
    raise NonFiniteValue(
        what,
        where=f"{site.kind.value} {site.name!r}",
        got=f"{got} at index {list(index)}",
        expected="finite numbers",
        todo="repair that weight" if stored and not np.isfinite(value) else "",
    )


def error_name(site: Site) -> str:
    """Return the name of the recording model's output that holds the site's error."""
    return f"error at {site.name}"


def with_errors(simulated: LightModel, sites: Sequence[Site]) -> tuple[LightModel, dict[str, str]]:
    """Return the simulated model with each site's tensor and error as further outputs.

    The error is subtracted in the graph, while both are in the processor's cache. The second
    result names, by site, the output that holds the tensor.
    """
    types = element_types(simulated)
    emitter = Emitter("record/")
    before = {}
    for site in sites:
        pair = [site.before, site.after]
        if types.get(site.before, np.float32) != np.float32:
            pair = [emitter.emit("Cast", name, to=onnx.TensorProto.FLOAT) for name in pair]
        before[site.name] = pair[0]
        emitter.emit("Sub", pair[1], pair[0], name=error_name(site))
    recording = onnx.ModelProto()
    recording.CopyFrom(simulated.model)
    recording.graph.node.extend(emitter.nodes)
    names = [*before.values(), *(error_name(site) for site in sites)]
    return with_outputs(LightModel(recording, simulated.weights), names), before


def stored_errors(
    skeleton: LightModel, simulated: LightModel, sites: Sequence[Site]
) -> tuple[dict[str, Float32], dict[str, Float32]]:
    """Return the float values of stored sites, and what quantization adds to them.

    Where the errors together would take a gigabyte they lie on disk.
    """
    floats = _constants(skeleton, [site.tensor for site in sites])
    quantized = _constants(simulated, [site.after for site in sites])
    before, delta = {}, {}
    are_large = sum(4 * array.size for array in floats.values()) > IN_MEMORY
    for site in sites:
        exact, coded = floats[site.tensor], quantized[site.after]
        before[site.name] = as_float32(exact)
        with np.errstate(over="ignore", invalid="ignore"):
            dtype = np.result_type(exact, coded, np.float32)
            error = as_float32(np.subtract(coded, exact, dtype=dtype))
        check_finite(site, before[site.name], error)
        delta[site.name] = on_disk(error) if are_large else error
    return before, delta


def _constants(model: LightModel, names: Sequence[str]) -> dict[str, Array]:
    """Return values that depend on no input: initializers, or computed from them alone."""
    stored = {tensor.name: tensor for tensor in model.model.graph.initializer}
    known: dict[str, Array] = {}
    computed = []
    for name in dict.fromkeys(names):
        if name in model.weights:
            known[name] = model.weights[name]
        elif name in stored:
            known[name] = onnx.numpy_helper.to_array(stored[name])
        else:
            computed.append(name)
    if computed:
        session = Session(_constant_part(model, computed), optimization=Optimization.OFF)
        known |= session.run({})
    return known


def _constant_part(model: LightModel, names: Sequence[str]) -> LightModel:
    """Return the part of a model that computes the named values."""
    part = onnx.ModelProto()
    part.CopyFrom(model.model)
    needed = set(names)
    kept = []
    for node in reversed(part.graph.node):
        if any(name in needed for name in node.output):
            kept.append(node)
            needed.update(node.input)
    inputs = {value.name for value in part.graph.input} & needed
    if inputs:
        raise DataMismatch(
            "a weight's codes depend on an input", where=", ".join(names), got=", ".join(inputs)
        )
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(kept)]
    del part.graph.node[:], part.graph.output[:], part.graph.input[:]
    part.graph.node.extend(nodes)
    constants = [tensor for tensor in part.graph.initializer if tensor.name in needed]
    constants = [onnx.TensorProto.FromString(t.SerializeToString()) for t in constants]
    del part.graph.initializer[:]
    part.graph.initializer.extend(constants)
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    weights = {name: array for name, array in model.weights.items() if name in needed}
    return LightModel(part, weights)
