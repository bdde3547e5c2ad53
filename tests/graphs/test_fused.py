"""Float operators of com.microsoft, against ONNX Runtime's own kernels."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tests.graphs.networks import Network, draw
from tests.graphs.proof import run

from foldmark.errors import OperatorNotSupported
from foldmark.graphs.reading.read import read_quantized

X = draw(2, 5, 8)
GAMMA, BETA, BIAS = (1 + draw(8, seed=1) / 4, draw(8, seed=2), draw(8, seed=3))


def behind_a_pair(opset: int = 17) -> Network:
    """Return a network whose input is quantized to "x_dq", so that there is a site."""
    net = Network(opset)
    net.input("x", X.shape)
    net.pair("x", np.float32(0.03), np.uint8(128))
    return net


def agree(net: Network, outputs: tuple[str, ...] = ("y",), feeds=None) -> onnx.ModelProto:
    """Check that the simulated model computes what the fused operators do; return it."""
    for name in outputs:
        net.output(name)
    model = net.model("com.microsoft")
    graph = read_quantized(model, None)
    for each in (graph.simulated, graph.skeleton):
        assert {node.domain for node in each.graph.node} == {""}
    given = {"x": X, **(feeds or {})}
    real, simulated = run(model, given), run(graph.simulated, given)
    for name in outputs:
        np.testing.assert_allclose(simulated[name], real[name], rtol=2e-5, atol=2e-6)
    return graph.simulated


@pytest.mark.parametrize(
    ("operator", "inputs", "given"),
    [
        ("Gelu", [], {}),
        ("BiasGelu", ["bias"], {}),
        ("FastGelu", [], {}),
        ("FastGelu", ["bias"], {}),
        ("QuickGelu", [], {"alpha": 1.5}),
        ("QuickGelu", [], {}),
    ],
)
def test_gelu(operator: str, inputs: list[str], given: dict) -> None:
    net = behind_a_pair()
    net.constant("bias", BIAS)
    net.node(operator, ["x_dq", *inputs], "y", "com.microsoft", **given)
    agree(net)


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("simplified", [True, False])
@pytest.mark.parametrize("total", [True, False])
def test_skip_layer_normalization(opset: int, bias: bool, simplified: bool, total: bool) -> None:
    net = behind_a_pair(opset)
    net.node("Neg", ["x"], "skip")
    net.constant("gamma", GAMMA)
    net.constant("beta", BETA)
    net.constant("bias", BIAS)
    shifts = [] if simplified else ["beta"]
    inputs = ["x_dq", "skip", "gamma", *shifts, *(["bias"] if bias else [])]
    operator = "SkipSimplifiedLayerNormalization" if simplified else "SkipLayerNormalization"
    outputs = ["y", "", "", "total"] if total else ["y"]
    net.nodes.append(
        onnx.helper.make_node(operator, inputs, outputs, domain="com.microsoft", epsilon=1e-5)
    )
    agree(net, ("y", "total") if total else ("y",))


def test_simplified_layer_normalization() -> None:
    net = behind_a_pair()
    net.node("SimplifiedLayerNormalization", ["x_dq", net.constant("g", GAMMA)], "y", epsilon=1e-4)
    agree(net)


@pytest.mark.parametrize("kinds", [True, False])
@pytest.mark.parametrize("mask", [True, False])
def test_embed_layer_normalization(kinds: bool, mask: bool) -> None:
    net = behind_a_pair()
    for name in ("ids", "segments", "mask"):
        net.input(name, [2, 5], TensorProto.INT32)
    net.constant("words", draw(20, 8))
    net.constant("positions", draw(9, 8, seed=1))
    net.constant("kinds", draw(2, 8, seed=2))
    net.constant("gamma", GAMMA)
    net.constant("beta", BETA)
    segment = ("segments", "kinds") if kinds else ("", "")
    inputs = ["ids", segment[0], "words", "positions", segment[1], "gamma", "beta"]
    inputs += ["mask"] if mask else []
    net.nodes.append(
        onnx.helper.make_node(
            "EmbedLayerNormalization", inputs, ["e", "index"], domain="com.microsoft"
        )
    )
    net.node("Add", ["e", "x_dq"], "y")
    net.outputs.append(onnx.helper.make_tensor_value_info("index", TensorProto.INT32, [2]))
    feeds = {
        "ids": np.array([[3, 5, 7, 1, 0], [2, 2, 19, 4, 4]], np.int32),
        "segments": np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]], np.int32),
        "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
    }
    agree(net, ("y",), feeds)


@pytest.mark.parametrize(("turned", "alpha"), [((0, 0), 1.0), ((0, 1), 0.5), ((1, 0), 1.0)])
def test_fused_matmul(turned: tuple[int, int], alpha: float) -> None:
    net = behind_a_pair()
    net.node("Neg", ["x"], "other")
    given = {"transA": turned[0], "transB": turned[1], "alpha": alpha}
    if turned == (0, 0):
        net.constant("other_w", draw(8, 3))
        net.node("FusedMatMul", ["x_dq", "other_w"], "y", "com.microsoft", **given)
    else:
        net.node("FusedMatMul", ["x_dq", "other"], "y", "com.microsoft", **given)
    agree(net)


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [("Relu", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.5]), ("HardSigmoid", [0.3, 0.4])],
)
@pytest.mark.parametrize("with_sum", [True, False])
def test_fused_conv(activation: str, parameters: list[float], with_sum: bool) -> None:
    net = behind_a_pair()
    net.constant("shape", np.array([2, 5, 8, 1]))
    net.node("Reshape", ["x_dq", "shape"], "image")
    net.constant("w", draw(5, 5, 3, 1) / 4)
    inputs = ["image", "w", net.constant("b", draw(5, seed=7)), *(["image"] if with_sum else [])]
    given = {"pads": [1, 0, 1, 0], "activation": activation}
    if parameters:
        given["activation_params"] = parameters
    net.node("FusedConv", inputs, "y", "com.microsoft", **given)
    agree(net)


def test_fused_gemm() -> None:
    net = behind_a_pair()
    net.constant("shape", np.array([10, 8]))
    net.node("Reshape", ["x_dq", "shape"], "rows")
    inputs = ["rows", net.constant("w", draw(8, 4)), net.constant("b", draw(4))]
    given = {"activation": "LeakyRelu", "activation_alpha": 0.3, "alpha": 0.5}
    net.node("FusedGemm", inputs, "y", "com.microsoft", **given)
    agree(net)


def test_an_unknown_activation_is_refused_by_name() -> None:
    net = behind_a_pair()
    net.constant("shape", np.array([10, 8]))
    net.node("Reshape", ["x_dq", "shape"], "rows")
    net.node(
        "FusedGemm",
        ["rows", net.constant("w", draw(8, 4)), net.constant("b", draw(4))],
        "y",
        "com.microsoft",
        activation="Snake",
    )
    net.output("y")
    with pytest.raises(OperatorNotSupported, match="FusedGemm with activation Snake"):
        read_quantized(net.model("com.microsoft"), None)
