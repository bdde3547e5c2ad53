"""float16 and bfloat16 copies: weights, casts and every rounding in between are sites."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tests.graphs.networks import Network, draw
from tests.graphs.proof import Arithmetic, constants, prove, run

from foldmark.errors import OperatorNotSupported
from foldmark.graphs.reading.read import read_quantized
from foldmark.graphs.sites import QuantizedGraph, SiteKind

W, B = draw(6, 4), draw(4, seed=1)
X = {"x": 2 * draw(5, 6, seed=2)}
KINDS = {"float16": (TensorProto.FLOAT16, np.float16)}
# ONNX Runtime casts to bfloat16 but computes nothing in it on a CPU.
ALL_KINDS = KINDS | {"bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16)}


def plain(opset: int = 17) -> Network:
    net = Network(opset)
    net.input("x", ["n", 6])
    net.node("MatMul", ["x", net.constant("w", W)], "y")
    net.output("y")
    return net


def half(x: np.ndarray) -> np.ndarray:
    """Return x rounded to float16, as float32."""
    return x.astype(np.float16).astype(np.float32)


def rounded(net: Network, original: Network | None, expected: np.ndarray) -> QuantizedGraph:
    """Prove a network in float16, its result computed by numpy.

    ONNX Runtime has no float16 kernels on a CPU: it leaves the casts out, and rounds nothing.
    """
    known = None if original is None else original.model()
    graph = prove(net.model(), known, X, arithmetic=Arithmetic.UNCHECKED)
    np.testing.assert_array_equal(run(graph.simulated, X)["y"], expected)
    return graph


@pytest.mark.parametrize("name", KINDS)
def test_a_half_precision_operator_between_casts(name: str) -> None:
    kind, dtype = KINDS[name]
    net = Network(17)
    net.input("x", ["n", 6])
    net.node("Cast", ["x"], "x_half", to=kind)
    net.node("MatMul", ["x_half", net.constant("w", W.astype(dtype))], "y_half")
    net.node("Cast", ["y_half"], "y", to=TensorProto.FLOAT)
    net.output("y")
    graph = rounded(net, plain(), half(half(X["x"]) @ half(W)))
    assert [(s.name, s.kind, s.encoding.number_format) for s in graph.sites] == [
        ("x", SiteKind.ACTIVATION, name),
        ("w", SiteKind.WEIGHT, name),
        ("y", SiteKind.ACTIVATION, name),
    ]
    w = graph.sites[1]
    assert not w.encoding.is_dynamic
    assert w.codes.dtype == dtype
    np.testing.assert_array_equal(constants(graph.skeleton)["w"], W)
    np.testing.assert_array_equal(constants(graph.simulated)["w"], W.astype(dtype).astype("f4"))


@pytest.mark.parametrize("name", ALL_KINDS)
def test_a_cast_there_and_back_is_a_site(name: str) -> None:
    kind, dtype = ALL_KINDS[name]
    net = Network(17)
    net.input("x", ["n", 6])
    net.node("Cast", ["x"], "x_half", to=kind)
    net.node("Cast", ["x_half"], "back", to=TensorProto.FLOAT)
    net.node("MatMul", ["back", net.constant("w", W)], "y")
    net.output("y")
    graph = prove(net.model(), plain().model(), X)
    (site,) = graph.sites
    seen = run(graph.simulated, X, [site.after])[site.after]
    np.testing.assert_array_equal(seen, X["x"].astype(dtype).astype(np.float32))


def test_half_precision_inputs_and_outputs_keep_their_type() -> None:
    net = Network(17)
    net.input("x", ["n", 6], TensorProto.FLOAT16)
    net.node("MatMul", ["x", net.constant("w", W.astype(np.float16))], "y")
    net.output("y", TensorProto.FLOAT16)
    feeds = {"x": X["x"].astype(np.float16)}
    graph = prove(net.model(), None, feeds)
    assert [site.name for site in graph.sites] == ["y"]
    assert graph.skeleton.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    assert [u.name for u in graph.unmatched] == ["w"]


def test_what_only_moves_or_compares_rounds_nothing() -> None:
    net = Network(17)
    net.input("x", ["n", 6])
    net.node("Cast", ["x"], "h", to=TensorProto.FLOAT16)
    net.node("Relu", ["h"], "r")
    net.node("Transpose", ["r"], "t", perm=[1, 0])
    net.node("Neg", ["t"], "m")
    net.node("Mul", ["m", "m"], "e")
    net.node("Cast", ["e"], "y", to=TensorProto.FLOAT)
    net.output("y")
    graph = rounded(net, None, half(np.maximum(half(X["x"]), 0) ** 2).T)
    assert [site.name for site in graph.sites] == ["x", "e"]


def test_int8_codes_read_with_a_half_precision_scale() -> None:
    step = np.float16(np.abs(W).max() / 127)
    net = Network(19)
    net.input("x", ["n", 6])
    net.node("Cast", ["x"], "h", to=TensorProto.FLOAT16)
    h = net.pair("h", np.float16(0.05), np.int8(3))
    w = net.stored("w", np.rint(W / step).astype(np.int8), step, np.int8(0))
    net.node("MatMul", [h, w], "y_half")
    net.node("Cast", ["y_half"], "y", to=TensorProto.FLOAT)
    net.output("y")
    scale = half(np.float32(0.05))
    codes = np.clip(np.rint(half(X["x"]) / scale) + 3, -128, 127)
    decoded = half((codes - 3).astype(np.float32) * scale)
    stored = half(np.rint(W / step).astype(np.float32) * np.float32(step))
    graph = rounded(net, plain(19), half(decoded @ stored))
    kinds = [(s.name, s.encoding.number_format) for s in graph.sites]
    assert kinds == [("x", "float16"), ("h", "int8"), ("w", "int8"), ("y", "float16")]


def test_a_graph_whose_nodes_are_out_of_order() -> None:
    net = Network(17)
    net.input("x", ["n", 6])
    net.node("MatMul", ["x_half", net.constant("w", W.astype(np.float16))], "y_half")
    net.node("Cast", ["x"], "x_half", to=TensorProto.FLOAT16)
    net.node("Cast", ["y_half"], "y", to=TensorProto.FLOAT)
    net.output("y")
    rounded(net, plain(), half(half(X["x"]) @ half(W)))


def test_half_precision_inside_a_subgraph_is_refused_by_name() -> None:
    half = onnx.helper.make_tensor_value_info("out", TensorProto.FLOAT16, None)
    node = onnx.helper.make_node("Neg", ["h"], ["out"])
    branch = onnx.helper.make_graph([node], "branch", [], [half])
    net = Network(17)
    net.input("x", ["n", 6])
    net.input("which", [], TensorProto.BOOL)
    net.node("Cast", ["x"], "h", to=TensorProto.FLOAT16)
    net.node("If", ["which"], "z", then_branch=branch, else_branch=branch)
    net.node("Cast", ["z"], "y", to=TensorProto.FLOAT)
    net.output("y")
    with pytest.raises(OperatorNotSupported, match="subgraphs of If"):
        read_quantized(net.model(), None)
