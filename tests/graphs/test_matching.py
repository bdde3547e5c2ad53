"""Float originals are found under other names, in other layouts, joined, cut and folded."""

from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.graphs.networks import Network, draw
from tests.graphs.proof import constants, prove

import foldmark
from foldmark.errors import ModelsDiffer
from foldmark.graphs.reading.read import read_quantized

X = {"x": draw(5, 6, seed=2)}
IMAGE = {"x": draw(2, 3, 6, 6, seed=5)}


def int8(net: Network, name: str, w: np.ndarray) -> str:
    step = np.float32(np.abs(w).max() / 127)
    return net.stored(name, np.rint(w / step).astype(np.int8), step, np.int8(0))


def pair_of_networks(*outputs: str) -> tuple[Network, Network]:
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("x", ["n", 6])
        for output in outputs or ("y",):
            each.output(output)
    return net, plain


def test_a_renamed_weight_is_found_by_content() -> None:
    net, plain = pair_of_networks()
    plain.constant("decoy", draw(6, 4, seed=9))
    plain.node("MatMul", ["x", plain.constant("layer.weight", draw(6, 4))], "a")
    plain.node("Add", ["a", plain.constant("shift", draw(4))], "b")
    plain.node("MatMul", ["b", plain.constant("unused", draw(4, 6))], "c")
    plain.node("MatMul", ["c", "decoy"], "y")
    net.node("MatMul", ["x", int8(net, "val_7", draw(6, 4))], "a")
    net.node("Add", ["a", net.constant("shift", draw(4))], "b")
    net.node("MatMul", ["b", net.constant("unused", draw(4, 6))], "c")
    net.node("MatMul", ["c", net.constant("decoy", draw(6, 4, seed=9))], "y")
    graph = prove(net.model(), plain.model(), X)
    assert [(site.name, site.layer) for site in graph.sites] == [("layer.weight", "layer")]


@pytest.mark.parametrize("size", [4, 6])
def test_a_transposed_weight_is_found(size: int) -> None:
    w = draw(6, size)
    net, plain = pair_of_networks()
    plain.node("Gemm", ["x", plain.constant("w", np.ascontiguousarray(w.T))], "y", transB=1)
    net.node("MatMul", ["x", int8(net, "w", w)], "y")
    graph = prove(net.model(), plain.model(), X)
    np.testing.assert_array_equal(constants(graph.skeleton)["w_dq"], w)


def test_projections_joined_into_one() -> None:
    parts = {name: draw(6, 4, seed=i) for i, name in enumerate(("q", "k", "v"))}
    shifts = {f"{name}_b": draw(4, seed=10 + i) for i, name in enumerate(("q", "k", "v"))}
    net, plain = pair_of_networks()
    for name, part in parts.items():
        plain.node("MatMul", ["x", plain.constant(name, part)], f"{name}_m")
        plain.constant(f"{name}_b", shifts[f"{name}_b"])
        plain.node("Add", [f"{name}_m", f"{name}_b"], f"{name}_y")
    plain.node("Concat", ["q_y", "k_y", "v_y"], "y", axis=1)
    net.node("MatMul", ["x", int8(net, "qkv_w", np.hstack(list(parts.values())))], "m")
    net.node("Add", ["m", int8(net, "qkv_b", np.hstack(list(shifts.values())))], "y")
    graph = prove(net.model(), plain.model(), X)
    assert [site.name for site in graph.sites] == ["q + k + v", "q_b + k_b + v_b"]


def test_a_weight_cut_from_a_larger_one() -> None:
    w = draw(6, 8)
    net, plain = pair_of_networks()
    plain.node("MatMul", ["x", plain.constant("w", w)], "y")
    net.node("MatMul", ["x", int8(net, "left", w[:, :4])], "a")
    net.node("MatMul", ["x", int8(net, "right", w[:, 4:])], "b")
    net.node("Concat", ["a", "b"], "y", axis=1)
    graph = prove(net.model(), plain.model(), X)
    assert [site.name for site in graph.sites] == ["w[0:4]", "w[4:8]"]


def with_batch_norm(seed: int) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    """Return conv and batch norm, and the weight and bias that they make together."""
    w = draw(4, 3, 3, 3, seed=seed)
    gain, shift, mean = (draw(4, seed=seed + i) for i in (1, 2, 3))
    variance = np.abs(draw(4, seed=seed + 4)) + np.float32(0.01)
    plain = Network(15)
    plain.input("x", ["n", 3, 6, 6])
    plain.node("Conv", ["x", plain.constant("conv.weight", w)], "c")
    norm = [
        plain.constant(n, v) for n, v in zip("gsmv", (gain, shift, mean, variance), strict=True)
    ]
    plain.node("BatchNormalization", ["c", *norm], "y", epsilon=1e-5)
    plain.output("y")
    factor = gain / np.sqrt(variance + np.float32(1e-5))
    return plain.model(), w * factor[:, None, None, None], shift - mean * factor


@pytest.mark.parametrize("name", ["conv.weight", "onnx::Conv_17"])
@pytest.mark.parametrize("seed", range(3))
def test_a_batch_norm_multiplied_into_the_weight(name: str, seed: int) -> None:
    original, folded, bias = with_batch_norm(seed)
    net = Network(15)
    net.input("x", ["n", 3, 6, 6])
    x = net.pair("x", np.float32(0.03), np.int8(0))
    scale = np.float32(0.03) * np.float32(np.abs(folded).max() / 127)
    b = net.stored("other", np.rint(bias / scale).astype(np.int32), scale, np.int32(0))
    net.node("Conv", [x, int8(net, name, folded), b], "y")
    net.output("y")
    graph = prove(net.model(), original, IMAGE)
    assert [site.kind.value for site in graph.sites] == ["activation", "weight", "bias"]
    assert not graph.unmatched
    assert [site.name for site in graph.sites] == ["x", "conv.weight", "s"]
    np.testing.assert_allclose(
        constants(graph.skeleton)[f"{name}_dq"], folded, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("form", ["Mul", "Div", "gain"])
def test_channels_smoothed_before_a_weight(form: str) -> None:
    w, gain = draw(6, 8), np.abs(draw(6, seed=3)) + np.float32(0.5)
    factor = (np.abs(draw(6, seed=5)) + np.float32(0.2)).astype(np.float32)
    net, plain = pair_of_networks()
    plain.node("Mul", ["x", plain.constant("gain", gain)], "n")
    plain.node("MatMul", ["n", plain.constant("w", w)], "y")
    if form == "gain":
        net.node("Mul", ["x", net.constant("gain", gain / factor)], "n")
    else:
        net.node("Mul", ["x", net.constant("gain", gain)], "m")
        moved = factor if form == "Div" else 1 / factor
        net.node(form, ["m", net.constant("smooth", moved)], "n")
    net.node("MatMul", ["n", int8(net, "w", w * factor[:, None])], "y")
    graph = prove(net.model(), plain.model(), X)
    assert [site.name for site in graph.sites] == ["w"]
    smoothed = constants(graph.skeleton)["w_dq"]
    np.testing.assert_allclose(smoothed, w * factor[:, None], rtol=1e-5)


def test_a_bad_scale_is_no_smoothing() -> None:
    w = draw(6, 6)
    columns = (np.abs(w).max(0) / 127).astype(np.float32)
    codes = np.clip(np.rint(w / columns), -127, 127).astype(np.int8)
    net, plain = pair_of_networks()
    for each in (net, plain):
        each.constant("gain", np.abs(draw(6, seed=3)))
        each.node("Mul", ["x", "gain"], "n")
    net.node("MatMul", ["n", net.stored("w", codes, columns, axis=0)], "y")
    plain.node("MatMul", ["n", plain.constant("w", w)], "y")
    graph = prove(net.model(), plain.model(), X)
    np.testing.assert_array_equal(constants(graph.skeleton)["w_dq"], w)


def test_what_has_no_original_is_said() -> None:
    net, plain = pair_of_networks()
    plain.node("MatMul", ["x", plain.constant("w", draw(6, 4))], "h")
    plain.node("MatMul", ["h", plain.constant("w2", draw(4, 4))], "y")
    net.node("MatMul", ["x", int8(net, "w", draw(6, 4))], "h")
    net.node("MatMul", ["h", int8(net, "stranger", draw(4, 4, seed=8))], "y")
    graph = prove(net.model(), plain.model(), X, same_float=False)
    assert [site.name for site in graph.sites] == ["w"]
    (unmatched,) = graph.unmatched
    assert (unmatched.name, unmatched.shape) == ("stranger_quantized", (4, 4))
    assert "resembles" in unmatched.reason


def test_a_float_constant_that_changed_is_said() -> None:
    net, plain = pair_of_networks()
    for each, shift in ((net, 0.1), (plain, 0.0)):
        each.constant("b", draw(4) + np.float32(shift))
        each.constant("same", np.float32(2))
    plain.node("MatMul", ["x", plain.constant("w", draw(6, 4))], "m")
    net.node("MatMul", ["x", int8(net, "w", draw(6, 4))], "m")
    for each in (net, plain):
        each.node("Mul", [each.node("Add", ["m", "b"], "s"), "same"], "y")
    graph = prove(net.model(), plain.model(), X, same_float=False)
    assert [u.name for u in graph.unmatched] == ["b"]
    assert "stored in float" in graph.unmatched[0].reason


def test_a_large_error_does_not_hide_a_weight_of_the_same_name() -> None:
    w = draw(6, 6)
    rows = np.abs(w).max(1).astype(np.float32) / 127
    codes = np.clip(np.rint(w / rows[:, None]), -127, 127).astype(np.int8)
    net, plain = pair_of_networks()
    net.node("MatMul", ["x", net.stored("w", codes, rows, np.zeros(6, np.int8), axis=1)], "y")
    plain.node("MatMul", ["x", plain.constant("w", w)], "y")
    graph = prove(net.model(), plain.model(), X)
    assert [site.name for site in graph.sites] == ["w"]


def test_a_float_model_in_half_precision_is_an_original_too() -> None:
    w = draw(6, 4)
    net, plain = pair_of_networks()
    net.node("MatMul", ["x", int8(net, "w", w)], "y")
    plain.constant("w", w.astype(np.float16))
    plain.node("Cast", ["w"], "wide", to=TensorProto.FLOAT)
    plain.node("MatMul", ["x", "wide"], "y")
    graph = prove(net.model(), plain.model(), X)
    assert constants(graph.skeleton)["w_dq"].dtype == np.float32


def test_an_original_in_a_constant_node_is_found() -> None:
    w = draw(6, 4)
    net, plain = pair_of_networks()
    net.node("MatMul", ["x", int8(net, "w", w)], "y")
    plain.nodes.append(helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(w)))
    plain.node("MatMul", ["x", "w"], "y")
    assert not read_quantized(net.model(), plain.model()).unmatched


def network(*widths: int, seed: int = 0, quantized: bool = False) -> onnx.ModelProto:
    """Return a chain of MatMul and Relu with a layer for each further width."""
    net = Network()
    net.input("x", ["n", widths[0]])
    value = "x"
    for i, shape in enumerate(pairwise(widths)):
        w = draw(*shape, seed=seed + i)
        stored = int8(net, f"w{i}", w) if quantized else net.constant(f"w{i}", w)
        value = net.node("MatMul", [value, stored], f"h{i}")
        value = net.node("Relu", [value], f"r{i}")
    net.node("Identity", [value], "y")
    net.output("y")
    return net.model()


@pytest.mark.parametrize(
    ("widths", "words"),
    [
        ((6, 8, 8, 4), r"layer 2 is MatMul \[8, 4\] at '/h1' .*, MatMul \[8, 8\] at '/h1'"),
        ((6, 9, 4), r"layer 1 is MatMul \[6, 8\] at '/h0' .*, MatMul \[6, 9\] at '/h0'"),
        ((6, 4), r"layer 1 is MatMul \[6, 8\] .*, MatMul \[6, 4\]"),
    ],
)
def test_two_networks_are_told_apart_at_the_first_layer(widths: tuple, words: str) -> None:
    with pytest.raises(ModelsDiffer, match=words):
        read_quantized(network(*widths, quantized=True), network(6, 8, 4))


def test_other_weights_in_the_same_layers_are_told_apart() -> None:
    with pytest.raises(ModelsDiffer, match=r"other weights; got a correlation of -?0\.\d\d"):
        read_quantized(network(6, 8, 4, seed=5, quantized=True), network(6, 8, 4))


def test_another_number_of_outputs_is_another_network() -> None:
    original = network(6, 8, 4)
    original.graph.output.append(onnx.ValueInfoProto(name="h0"))
    with pytest.raises(ModelsDiffer, match="2 in the float model, 1 in the quantized"):
        read_quantized(network(6, 8, 4, quantized=True), original)


def test_one_network_is_not_told_apart() -> None:
    assert len(read_quantized(network(6, 8, 4, quantized=True), network(6, 8, 4)).sites) == 2
    assert read_quantized(network(6, 8, 4, quantized=True), network(6, 8, 4)).parted == ""


def test_a_layer_left_in_float_that_only_one_network_has_is_told() -> None:
    model = network(6, 8, 4, quantized=True)
    last = model.graph.node[-1]
    model.graph.initializer.append(numpy_helper.from_array(draw(4, 4, seed=9), "more"))
    model.graph.node.insert(
        len(model.graph.node) - 1,
        helper.make_node("MatMul", [last.input[0], "more"], ["h2"], name="/h2"),
    )
    model.graph.node[-1].input[0] = "h2"
    graph = read_quantized(model, network(6, 8, 4))
    where = "layer 3 is missing in the float model, MatMul [4, 4] at '/h2' in the quantized one"
    assert graph.parted == where
    report = foldmark.explain(network(6, 8, 4), model, X, cures=False)
    assert f"The two networks part: {where}." in report.notes
