"""Fused attention, quantized or not, and recurrent layers, against ONNX Runtime's kernels."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tests.graphs.networks import WIDEST, Network, draw
from tests.graphs.proof import Arithmetic, prove, run

from foldmark.errors import OperatorNotSupported
from foldmark.graphs.reading.read import read_quantized

X = {"x": draw(2, 5, 8)}
W, B = draw(8, 24, seed=1) / 2, draw(24, seed=2)
MASKS = {
    "none": None,
    "lengths": np.array([3, 5], np.int32),
    "tokens": np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], np.int32),
    "pairs": np.tril(np.ones((2, 5, 5), np.int32)),
}


def with_mask(net: Network, mask: np.ndarray | None) -> str:
    if mask is None:
        return ""
    return net.input("mask", mask.shape, TensorProto.INT32)


def feeds_of(mask: np.ndarray | None) -> dict[str, np.ndarray]:
    return X if mask is None else {**X, "mask": mask}


def plain_attention(mask: np.ndarray | None, **given) -> onnx.ModelProto:
    net = Network(17)
    net.input("x", [2, 5, 8])
    inputs = ["x", net.constant("w", W), net.constant("b", B), with_mask(net, mask)]
    net.node("Attention", inputs, "y", "com.microsoft", num_heads=2, **given)
    net.output("y")
    return net.model("com.microsoft")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("given", [{}, {"unidirectional": 1}, {"scale": 0.3}], ids=str)
def test_attention(mask: str, given: dict) -> None:
    net = Network(17)
    net.input("x", [2, 5, 8])
    x = net.pair("x", np.float32(0.03), np.uint8(128))
    inputs = [x, net.constant("w", W), net.constant("b", B), with_mask(net, MASKS[mask])]
    net.node("Attention", inputs, "y", "com.microsoft", num_heads=2, **given)
    net.output("y")
    model, feeds = net.model("com.microsoft"), feeds_of(MASKS[mask])
    graph = read_quantized(model, plain_attention(MASKS[mask], **given))
    assert {node.domain for node in graph.skeleton.graph.node} == {""}
    real, simulated = run(model, feeds)["y"], run(graph.simulated, feeds)["y"]
    np.testing.assert_allclose(simulated, real, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("axis", [None, 1])
def test_quantized_attention(mask: str, axis: int | None) -> None:
    net = Network(17)
    net.input("x", [2, 5, 8])
    x_scale = net.constant("x_scale", np.float32(0.03))
    x_zero = net.constant("x_zero", np.uint8(128))
    net.node("QuantizeLinear", ["x", x_scale, x_zero], "x_codes")
    highest = np.abs(W).max() if axis is None else np.abs(W).max(0)
    scale = (highest / np.float32(WIDEST)).astype(np.float32)
    net.constant("w_quantized", np.rint(W / scale).astype(np.int8))
    net.constant("w_scale", np.asarray(scale))
    net.constant("w_zero", np.zeros(scale.shape, np.int8))
    known = with_mask(net, MASKS[mask])
    inputs = ["x_codes", "w_quantized", net.constant("b", B), x_scale, "w_scale", known]
    net.node("QAttention", [*inputs, x_zero, "w_zero"], "y", "com.microsoft", num_heads=2)
    net.output("y")
    model, feeds = net.model("com.microsoft"), feeds_of(MASKS[mask])
    original = plain_attention(MASKS[mask])
    graph = prove(model, original, feeds, arithmetic=Arithmetic.UNCHECKED, same_float=False)
    real, simulated = run(model, feeds)["y"], run(graph.simulated, feeds)["y"]
    np.testing.assert_allclose(simulated, real, rtol=1e-4, atol=1e-5)
    plain, expected = run(graph.skeleton, feeds)["y"], run(original, feeds)["y"]
    np.testing.assert_allclose(plain, expected, rtol=1e-4, atol=1e-5)
    assert [(site.name, site.encoding.axis) for site in graph.sites] == [("x", None), ("w", axis)]


def test_attention_with_a_past_is_refused_by_name() -> None:
    net = Network(17)
    net.input("x", [2, 5, 8])
    net.input("past", [2, 2, 2, 3, 4])
    x = net.pair("x", np.float32(0.03), np.uint8(128))
    inputs = [x, net.constant("w", W), net.constant("b", B), "", "past"]
    net.node("Attention", inputs, "y", "com.microsoft", num_heads=2)
    net.output("y")
    with pytest.raises(OperatorNotSupported, match="Attention with a past"):
        read_quantized(net.model("com.microsoft"), None)


def test_quantized_embedding() -> None:
    tables = {"words": draw(20, 8), "places": draw(9, 8, seed=1), "kinds": draw(2, 8, seed=2)}
    tables |= {"gamma": 1 + draw(8, seed=3) / 4, "beta": draw(8, seed=4)}
    net, plain = Network(17), Network(17)
    for each in (net, plain):
        for name in ("ids", "segments"):
            each.input(name, [2, 5], TensorProto.INT32)
        each.output("y")
    scales, zeros = [], []
    for name, table in tables.items():
        step = np.float32((table.max() - min(table.min(), 0)) / 255)
        zero = np.rint(-min(table.min(), 0) / step)
        codes = np.clip(np.rint(table / step) + zero, 0, 255).astype(np.uint8)
        net.constant(f"{name}_quantized", codes)
        plain.constant(name, table)
        scales.append(net.constant(f"{name}_scale", step))
        zeros.append(net.constant(f"{name}_zero", np.uint8(zero)))
    coded = [f"{name}_quantized" for name in tables]
    inputs = ["ids", "segments", *coded, "", *scales, *zeros]
    net.nodes.append(
        onnx.helper.make_node(
            "QEmbedLayerNormalization", inputs, ["y", "index"], domain="com.microsoft"
        )
    )
    plain.nodes.append(
        onnx.helper.make_node(
            "EmbedLayerNormalization",
            ["ids", "segments", *tables],
            ["y", "index"],
            domain="com.microsoft",
        )
    )
    feeds = {
        "ids": np.array([[3, 5, 7, 1, 0], [2, 2, 19, 4, 4]], np.int32),
        "segments": np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]], np.int32),
    }
    model, original = net.model("com.microsoft"), plain.model("com.microsoft")
    graph = prove(model, original, feeds, arithmetic=Arithmetic.UNCHECKED, same_float=False)
    assert sorted(site.name for site in graph.sites) == sorted(tables)
    real, simulated = run(model, feeds)["y"], run(graph.simulated, feeds)["y"]
    np.testing.assert_allclose(simulated, real, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("per_channel", [True, False])
def test_dynamic_quantize_lstm(directions: int, per_channel: bool) -> None:
    w, r = draw(directions, 16, 6), draw(directions, 16, 4, seed=1) / 2
    b = draw(directions, 32, seed=2) / 4
    net, plain = Network(17), Network(17)
    for each in (net, plain):
        each.input("x", [5, 2, 6])
        each.constant("b", b)
        each.output("y")
    scales = []
    for name, weight in (("w", w), ("r", r)):
        plain.constant(name, weight)
        axes = (2,) if per_channel else (1, 2)
        scale = (np.abs(weight).max(axes) / np.float32(WIDEST)).astype(np.float32)
        wide = scale[:, :, None] if per_channel else scale[:, None, None]
        codes = np.rint(weight / wide).astype(np.int8).transpose(0, 2, 1)
        net.constant(f"{name}_quantized", np.ascontiguousarray(codes))
        scales.append(net.constant(f"{name}_scale", scale))
        scales.append(net.constant(f"{name}_zero_point", np.zeros(scale.shape, np.int8)))
    direction = "bidirectional" if directions == 2 else "forward"
    given = {"hidden_size": 4, "direction": direction}
    inputs = ["x", "w_quantized", "r_quantized", "b", "", "", "", "", *scales]
    net.node("DynamicQuantizeLSTM", inputs, "y", "com.microsoft", **given)
    plain.node("LSTM", ["x", "w", "r", "b"], "y", **given)
    feeds = {"x": draw(5, 2, 6, seed=5)}
    model = net.model("com.microsoft")
    graph = prove(model, plain.model(), feeds, arithmetic=Arithmetic.UNCHECKED)
    assert [site.name for site in graph.sites] == ["x", "w", "r"]
    real, simulated = run(model, feeds)["y"], run(graph.simulated, feeds)["y"]
    # The hidden state, rounded to 8 bits at every step, is the kernel's own business.
    np.testing.assert_allclose(simulated, real, atol=0.02)


def test_an_operator_nobody_reads_is_refused_by_name() -> None:
    net = Network(17)
    net.input("x", [3, 64])
    net.constant("w", np.zeros((4, 1024), np.uint8))
    net.constant("absmax", np.ones(32, np.float32))
    given = {"K": 64, "N": 32, "block_size": 64, "quant_type": 1}
    net.node("MatMulBnb4", ["x", "w", "absmax"], "y", "com.microsoft", **given)
    net.output("y")
    with pytest.raises(OperatorNotSupported, match="MatMulBnb4"):
        read_quantized(net.model("com.microsoft"), None)
