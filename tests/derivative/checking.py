"""Check a gradient graph against central differences of the model it came from."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from foldmark.errors import NotSupported
from foldmark.graphs.derivative.facts import probe
from foldmark.graphs.derivative.gradient import Derivative, gradient
from foldmark.graphs.derivative.prepare import prepare
from foldmark.graphs.light import LightModel
from foldmark.runtimes.onnxruntime import Optimization, Session

Feeds = Mapping[str, NDArray[np.generic]]
STEP = 1e-6


def model_of(
    nodes: Sequence[onnx.NodeProto],
    feeds: Feeds,
    *,
    outputs: Sequence[str] = ("y",),
    opset: int = 18,
    constants: Feeds | None = None,
) -> onnx.ModelProto:
    """Return a model whose inputs are `feeds`, with free lengths, and that weighs its outputs.

    Output "loss" is the sum over elements of each output times fixed random weights, so that
    no symmetry of a plain sum hides a wrong gradient.
    """
    inputs = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            [f"{name}_{axis}" for axis in range(array.ndim)],
        )
        for name, array in feeds.items()
    ]
    initializers = [onnx.numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(
        nodes,
        "checked",
        inputs,
        [onnx.ValueInfoProto(name=name) for name in outputs],
        initializer=initializers,
    )
    domains = {node.domain for node in nodes} - {""}
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def weighed(model: LightModel, results: Mapping[str, NDArray[np.generic]]) -> LightModel:
    """Return the model with the scalar "loss" of the given outputs."""
    weighing = onnx.ModelProto()
    weighing.CopyFrom(model.model)
    terms = []
    for name, array in results.items():
        weights = np.random.default_rng(7).standard_normal(array.shape).astype(array.dtype)
        weighing.graph.initializer.append(onnx.numpy_helper.from_array(weights, f"{name} weights"))
        weighing.graph.node.append(
            helper.make_node("Mul", [name, f"{name} weights"], [f"{name} product"])
        )
        weighing.graph.node.append(
            helper.make_node("ReduceSum", [f"{name} product"], [f"{name} term"], keepdims=0)
        )
        terms.append(f"{name} term")
    weighing.graph.node.append(helper.make_node("Sum", terms, ["loss"]))
    weighing.graph.output.append(onnx.ValueInfoProto(name="loss"))
    return LightModel(weighing, model.weights)


def derive(
    model: onnx.ModelProto, feeds: Feeds, with_respect_to: Sequence[str]
) -> tuple[LightModel, Derivative]:
    """Return the weighed model and its derivative, built from facts observed on the feeds."""
    outputs = [output.name for output in model.graph.output]
    prepared = prepare(model)
    results = Session(prepared, optimization=Optimization.BASIC).run(feeds)
    loss = weighed(prepared, {name: results[name] for name in outputs})
    probing = probe(loss)
    facts = probing.facts(feeds, Session(probing.model).run(feeds))
    return loss, gradient(loss, "loss", with_respect_to, facts)


def check(
    model: onnx.ModelProto, feeds: Feeds, with_respect_to: Sequence[str], *, tolerance: float = 1e-6
) -> None:
    """Compare every gradient with central differences along random directions.

    In float64, and then the float32 gradient with the float64 one; in float32 alone, with wide
    steps, where the runtime has no float64 kernel.
    """
    try:
        loss, derivative = derive(model, feeds, with_respect_to)
        forward = Session(loss, optimization=Optimization.BASIC)
        backward = Session(derivative.model, optimization=Optimization.BASIC)
        results = backward.run(feeds)
    except NotSupported:
        narrow, single = in_single_precision(feeds, model)
        check_single(single, narrow, with_respect_to)
        return
    rng = np.random.default_rng(11)
    gradients = {}
    for name in with_respect_to:
        got = results[derivative.gradients[name]]
        assert got.shape == feeds[name].shape, (name, got.shape, feeds[name].shape)
        assert got.dtype == feeds[name].dtype
        gradients[name] = got
        for _ in range(4):
            direction = rng.standard_normal(feeds[name].shape)
            ends = [
                forward.run({**feeds, name: feeds[name] + sign * STEP * direction})["loss"]
                for sign in (1, -1)
            ]
            measured = float(ends[0] - ends[1]) / (2 * STEP)
            expected = float(np.sum(got * direction))
            size = np.abs(got * direction).sum()
            assert abs(measured - expected) <= tolerance * max(size, 1e-3), (name, measured)
    _check_single_precision(model, feeds, gradients)


def in_single_precision(feeds: Feeds, model: onnx.ModelProto) -> tuple[Feeds, onnx.ModelProto]:
    """Return feeds and model with float32 in place of float64."""
    single = onnx.ModelProto()
    single.CopyFrom(model)
    double, real = onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT
    for value in single.graph.input:
        if value.type.tensor_type.elem_type == double:
            value.type.tensor_type.elem_type = real
    for tensor in single.graph.initializer:
        if tensor.data_type == double:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    narrow = {
        name: np.asarray(array, np.float32) if array.dtype == np.float64 else array
        for name, array in feeds.items()
    }
    return narrow, single


def _check_single_precision(
    model: onnx.ModelProto, feeds: Feeds, expected: Mapping[str, NDArray[np.generic]]
) -> None:
    """Run the same gradient in float32 through ONNX Runtime, as replay does."""
    narrow, single = in_single_precision(feeds, model)
    _, derivative = derive(single, narrow, list(expected))
    for optimization in (Optimization.OFF, Optimization.ALL):
        results = Session(derivative.model, optimization=optimization).run(narrow)
        for name, reference in expected.items():
            got = results[derivative.gradients[name]]
            scale = max(float(np.abs(reference).max()), 1e-3)
            np.testing.assert_allclose(got / scale, reference / scale, atol=2e-4, rtol=2e-4)


def check_single(model: onnx.ModelProto, feeds: Feeds, with_respect_to: Sequence[str]) -> None:
    """Compare with central differences in float32, for operators without a float64 kernel."""
    loss, derivative = derive(model, feeds, with_respect_to)
    original = weighed(
        LightModel(model, {}),
        {o.name: Session(model).run(feeds)[o.name] for o in model.graph.output},
    )
    forward, backward = Session(original), Session(derivative.model)
    np.testing.assert_allclose(
        Session(loss).run(feeds)["loss"], forward.run(feeds)["loss"], rtol=1e-4
    )
    results = backward.run(feeds)
    rng = np.random.default_rng(11)
    step = np.float32(1e-2)
    for name in with_respect_to:
        got = results[derivative.gradients[name]]
        direction = rng.standard_normal(feeds[name].shape).astype(np.float32)
        ends = [
            float(forward.run({**feeds, name: feeds[name] + sign * step * direction})["loss"])
            for sign in (1, -1)
        ]
        measured = (ends[0] - ends[1]) / (2 * float(step))
        assert got.shape == feeds[name].shape
        size = np.abs(got * direction).sum()
        assert abs(measured - np.sum(got * direction)) <= 5e-3 * max(size, 1e-2), name
