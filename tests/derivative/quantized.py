"""A small quantized network taken apart by hand, with every kind of site in it."""

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from foldmark.graphs.emitter import Emitter
from foldmark.graphs.sites import Encoding, QuantizedGraph, Site, SiteKind

ENCODING = Encoding("int8", scale=np.float32(0.05), zero_point=np.int8(0))


def weights() -> dict[str, NDArray[np.float32]]:
    draw = np.random.default_rng(5)
    shapes = {"first": (6, 16), "bias": (16,), "second": (16, 16), "last": (16, 4)}
    return {n: (0.4 * draw.standard_normal(s)).astype(np.float32) for n, s in shapes.items()}


def batch(samples: int, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    draw = np.random.default_rng(seed)
    return {"x": draw.standard_normal((samples, 6)).astype(np.float32)}


def _network(pairs: bool, tail: str) -> onnx.ModelProto:
    """Return the network, with quantization at five tensors and four constants or without."""
    nodes: list[onnx.NodeProto] = []
    constants = [numpy_helper.from_array(a, n) for n, a in weights().items()]
    step = {"x": 0.05, "h": 0.07, "s": 0.01, "m": 0.06, "y": 0.05}
    step |= {"first": 0.03, "bias": 0.02, "second": 0.04, "last": 0.05}

    def at(name: str) -> str:
        after = f"{name} quantized"
        if not pairs:
            nodes.append(helper.make_node("Identity", [name], [after]))
            return after
        scale, zero = f"{name} scale", f"{name} zero"
        constants.append(numpy_helper.from_array(np.float32(step[name]), scale))
        constants.append(numpy_helper.from_array(np.int8(0), zero))
        nodes.append(helper.make_node("QuantizeLinear", [name, scale, zero], [f"{name} codes"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name} codes", scale, zero], [after]))
        return after

    def stored(name: str) -> str:
        return at(name) if pairs else name

    nodes.append(helper.make_node("Gemm", [at("x"), stored("first"), stored("bias")], ["h"]))
    nodes.append(helper.make_node("Softmax", [at("h")], ["s"]))
    nodes.append(helper.make_node("MatMul", [at("s"), stored("second")], ["m"]))
    nodes.append(helper.make_node(tail, [at("m")], ["g"], name="the tail"))
    nodes.append(helper.make_node("MatMul", ["g", stored("last")], ["y"]))
    at("y")
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y quantized", TensorProto.FLOAT, ["n", 4])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def taken_apart(tail: str = "Tanh") -> QuantizedGraph:
    """Return the network with its sites; the operator before the last layer can be chosen."""
    simulated, skeleton = _network(True, tail), _network(False, tail)
    sites = [
        Site(f"{n}", SiteKind.ACTIVATION, "", "", f"{n} quantized", n, f"{n} quantized", ENCODING)
        for n in ("x", "h", "s", "m", "y")
    ]
    sites += [
        Site(n, SiteKind.BIAS if n == "bias" else SiteKind.WEIGHT, "", "", n, n, after, ENCODING)
        for n in weights()
        for after in [f"{n} quantized"]
    ]
    return QuantizedGraph(simulated, simulated, skeleton, tuple(sites), ())


def squared_distance(emitter: Emitter) -> str:
    """Append sum (y - aim)^2."""
    apart = emitter.subtract("y quantized", "aim")
    return emitter.reduce_sum(emitter.multiply(apart, apart), [0, 1])


def distance(outputs: dict[str, NDArray[np.generic]], aim: NDArray[np.float32]) -> float:
    return float(np.sum((outputs["y quantized"].astype(np.float64) - aim) ** 2))
