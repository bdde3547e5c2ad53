"""The promise of a graph taken apart, checked by running it."""

from collections.abc import Iterable
from enum import Enum

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from foldmark.graphs.reading.read import read_quantized
from foldmark.graphs.sites import QuantizedGraph

Feeds = dict[str, np.ndarray]


class Arithmetic(Enum):
    """How near the simulated model has to come to the quantized one."""

    EXACT = "the same operators in the same order"
    SUMMED_OTHERWISE = "float sums in another order, which may tip single codes"
    UNCHECKED = "integer kernels, compared by the test itself"


def run(
    model: onnx.ModelProto, feeds: Feeds, also: Iterable[str] = (), *, optimized: bool = False
) -> dict[str, np.ndarray]:
    """Run a model and return its outputs and further values by name."""
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    outputs = [value.name for value in tapped.graph.output]
    for name in dict.fromkeys(also):
        if name not in outputs:
            tapped.graph.output.append(onnx.ValueInfoProto(name=name))
            outputs.append(name)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(tapped.SerializeToString(), options)
    return dict(zip(outputs, session.run(outputs, feeds), strict=True))


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def tapped(graph: QuantizedGraph, feeds: Feeds) -> Feeds:
    """Run the simulated model; return its outputs and what stands before and after each site."""
    moving = [site for site in graph.sites if site.codes is None]
    return run(graph.simulated, feeds, [n for s in moving for n in (s.before, s.after)])


def deltas(graph: QuantizedGraph, seen: Feeds) -> dict[str, np.ndarray]:
    """Return the error that each site adds in the quantized run, by the name it is added to."""
    stored, original = constants(graph.simulated), constants(graph.skeleton)
    return {
        site.tensor: (
            seen[site.after].astype(np.float32) - seen[site.before].astype(np.float32)
            if site.codes is None
            else stored[site.after] - original[site.before]
        )
        for site in graph.sites
    }


def injected(skeleton: onnx.ModelProto, errors: Feeds) -> onnx.ModelProto:
    """Return the skeleton with an error added to the value of each name."""
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    for place, tensor in enumerate(model.graph.initializer):
        if tensor.name in errors:
            shifted = numpy_helper.to_array(tensor) + errors[tensor.name]
            model.graph.initializer[place].CopyFrom(
                numpy_helper.from_array(shifted.astype(np.float32), tensor.name)
            )
    for node in model.graph.node:
        if node.output and node.output[0] in errors:
            assert node.op_type == "Identity"
            name = f"{node.output[0]}/error"
            model.graph.initializer.append(numpy_helper.from_array(errors[node.output[0]], name))
            node.op_type = "Add"
            node.input.append(name)
    return model


def prove(
    quantized: onnx.ModelProto,
    original: onnx.ModelProto | None,
    feeds: Feeds,
    *,
    arithmetic: Arithmetic = Arithmetic.EXACT,
    same_float: bool = True,
) -> QuantizedGraph:
    """Take a model apart and check what the parts promise.

    The skeleton with every error added is the simulated model; the simulated model is the
    quantized one; the skeleton is the float model.
    """
    graph = read_quantized(quantized, original)
    assert graph.original is quantized
    assert len({site.name for site in graph.sites}) == len(graph.sites)
    assert [v.name for v in graph.skeleton.graph.input] == [v.name for v in quantized.graph.input]
    simulated, real = tapped(graph, feeds), run(quantized, feeds)
    plain = run(graph.skeleton, feeds)
    replayed = run(injected(graph.skeleton, deltas(graph, simulated)), feeds)
    for name in real:
        assert replayed[name].dtype == real[name].dtype
        change = np.abs(simulated[name] - plain[name].astype(np.float64))
        tolerance = 1e-5 * change.max(initial=0.0)
        np.testing.assert_allclose(replayed[name], simulated[name], rtol=0, atol=tolerance)
        if arithmetic is Arithmetic.EXACT:
            np.testing.assert_array_equal(simulated[name], real[name])
        elif arithmetic is Arithmetic.SUMMED_OTHERWISE:
            apart = np.abs(simulated[name] - real[name].astype(np.float64))
            assert apart.mean() <= 0.01 * change.mean()
    if original is not None and same_float:
        for (name, got), expected in zip(plain.items(), run(original, feeds).values(), strict=True):
            tolerance = 1e-6 * max(1.0, np.abs(expected).max(initial=0.0))
            np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance, err_msg=name)
    return graph
