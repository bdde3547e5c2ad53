"""Models of QuantizeLinear and DequantizeLinear, in every way they are written."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.graphs.networks import Network, draw
from tests.graphs.proof import constants, prove, run

from foldmark.errors import NothingQuantized, OperatorNotSupported
from foldmark.graphs.reading.read import read_quantized
from foldmark.graphs.sites import SiteKind

W, B = draw(6, 4), draw(4, seed=1)
X = {"x": 2 * draw(5, 6, seed=2)}


def dense(opset: int = 13, nodes: bool = True) -> onnx.ModelProto:
    """Return y = relu(x W + b) W2 in float."""
    net = Network(opset)
    net.input("x", ["n", 6])
    net.node("MatMul", ["x", net.constant("w", W)], "product")
    net.node("Add", ["product", net.constant("b", B)], "sum")
    net.node("Relu", ["sum"], "h")
    net.node("MatMul", ["h", net.constant("w2", W.T)], "y")
    net.output("y")
    return net.model()


def codes_of(w: np.ndarray, scale, zero, dtype) -> np.ndarray:
    info = ml_dtypes.iinfo(dtype)
    return np.clip(np.rint(w / scale) + zero, int(info.min), int(info.max)).astype(dtype)


def dense_int8(opset: int = 13) -> Network:
    net = Network(opset)
    net.input("x", ["n", 6])
    x = net.pair("x", np.float32(0.04), np.int8(3))
    scale = np.abs(W).max(0).astype(np.float32) / 127
    w = net.stored("w", codes_of(W, scale, 0, np.int8), scale, np.zeros(4, np.int8), axis=1)
    net.node("MatMul", [x, w], "product")
    bias_scale = np.float32(0.04) * scale
    b = net.stored("b", np.rint(B / bias_scale).astype(np.int32), bias_scale, axis=0)
    net.node("Add", [net.pair("product", np.float32(0.06), np.int8(-4)), b], "sum")
    net.node("Relu", [net.pair("sum", np.float32(0.06), np.int8(-4))], "h")
    h = net.pair("h", np.float32(0.03), np.int8(-128))
    step = np.float32(np.abs(W).max() / 127)
    w2 = net.stored("w2", codes_of(W.T, step, 0, np.int8), step, np.int8(0))
    net.node("MatMul", [h, w2], "y")
    net.output("y")
    return net


def test_a_dense_network() -> None:
    graph = prove(dense_int8().model(), dense(), X)
    kinds = [(site.name, site.kind.value, site.operator) for site in graph.sites]
    assert kinds == [
        ("x", "activation", "MatMul"),
        ("w", "weight", "MatMul"),
        ("product", "activation", "Add"),
        ("b", "bias", "Add"),
        ("sum", "activation", "Relu"),
        ("h", "activation", "MatMul"),
        ("w2", "weight", "MatMul"),
    ]
    w = graph.sites[1]
    assert (w.encoding.number_format, w.encoding.axis) == ("int8", 1)
    np.testing.assert_array_equal(w.codes, codes_of(W, w.encoding.scale, 0, np.int8))
    assert w.encoding.zero_point.tolist() == [0, 0, 0, 0]
    assert graph.sites[3].encoding.number_format == "int32"
    assert graph.sites[0].encoding.zero_point == 3
    assert not graph.unmatched


def test_float_values_keep_their_names() -> None:
    quantized = dense_int8().model()
    graph = read_quantized(quantized, dense())
    seen = run(quantized, X, ["product", "sum", "h", "x_dq"])
    again = run(graph.simulated, X, seen)
    assert all(np.array_equal(seen[name], again[name]) for name in seen)
    plain, original = run(graph.skeleton, X, ["sum", "h"]), run(dense(), X, ["sum", "h"])
    assert all(np.array_equal(plain[name], original[name]) for name in original)


def test_the_skeleton_has_no_quantization_left() -> None:
    graph = read_quantized(dense_int8().model(), dense())
    assert {node.op_type for node in graph.skeleton.graph.node} == {
        "MatMul",
        "Add",
        "Relu",
        "Identity",
    }


def test_without_a_float_model_only_activations_are_sites() -> None:
    graph = prove(dense_int8().model(), None, X)
    assert {site.kind for site in graph.sites} == {SiteKind.ACTIVATION}
    assert [(u.name, u.shape) for u in graph.unmatched] == [
        ("w_quantized", (6, 4)),
        ("b_quantized", (4,)),
        ("w2_quantized", (4, 6)),
    ]
    assert "no float model" in graph.unmatched[0].reason


def test_nothing_quantized_is_said() -> None:
    with pytest.raises(NothingQuantized):
        read_quantized(dense(), dense())


ACTIVATION_TYPES = {
    "int8": (13, "", np.int8(3)),
    "uint8": (13, "", np.uint8(131)),
    "absent": (13, "", None),
    "int16": (21, "", np.int16(-7)),
    "uint16": (21, "", np.uint16(32771)),
    "int4": (21, "", ml_dtypes.int4(-2)),
    "uint4": (21, "", ml_dtypes.uint4(9)),
    "float8e4m3fn": (19, "", ml_dtypes.float8_e4m3fn(0)),
    "float8e5m2": (19, "", ml_dtypes.float8_e5m2(0)),
    "int8 of com.microsoft": (13, "com.microsoft", np.int8(3)),
    "uint16 of com.microsoft": (13, "com.microsoft", np.uint16(32771)),
    "int16 of com.microsoft": (13, "com.microsoft", np.int16(-7)),
}


@pytest.mark.parametrize("name", ACTIVATION_TYPES)
def test_activations_of_every_type(name: str) -> None:
    opset, domain, zero = ACTIVATION_TYPES[name]
    net = Network(opset)
    net.input("x", ["n", 6])
    net.node("Neg", [net.pair("x", np.float32(0.05), zero, domain=domain)], "y")
    net.output("y")
    plain = Network(opset)
    plain.input("x", ["n", 6])
    plain.node("Neg", ["x"], "y")
    plain.output("y")
    graph = prove(net.model(*filter(None, [domain])), plain.model(), X)
    (site,) = graph.sites
    expected = "uint8" if zero is None else name.split(maxsplit=1)[0]
    assert site.encoding.number_format == expected
    assert site.encoding.scale == np.float32(0.05)


WEIGHT_TYPES = [
    (13, np.int8, -128, 127),
    (13, np.uint8, 0, 255),
    (21, np.int16, -32768, 32767),
    (21, np.uint16, 0, 65535),
    (21, ml_dtypes.int4, -8, 7),
    (21, ml_dtypes.uint4, 0, 15),
]


@pytest.mark.parametrize(("opset", "dtype", "low", "high"), WEIGHT_TYPES)
@pytest.mark.parametrize("granularity", ["tensor", "axis 0", "axis -1", "blocks"])
def test_weights_of_every_type(opset: int, dtype, low: int, high: int, granularity: str) -> None:
    opset = 21 if granularity == "blocks" else opset
    w = draw(8, 4)
    shape = {"tensor": (), "axis 0": (8, 1), "axis -1": (1, 4), "blocks": (2, 4)}[granularity]
    scale = (np.abs(draw(*shape, seed=3)) + np.float32(1.0)) * np.float32(6 / (high - low))
    zero = np.full(shape, (high + low + 1) // 2 + 1)
    full = [np.repeat(v, 4, 0) if granularity == "blocks" else v for v in (scale, zero)]
    codes = codes_of(w, *full, dtype)
    stored = [
        v if granularity == "blocks" else v.reshape(-1 if shape else ()) for v in (scale, zero)
    ]
    given = {"axis 0": {"axis": 0}, "axis -1": {"axis": -1}}.get(granularity, {})
    if granularity == "blocks":
        given = {"axis": 0, "block_size": 4}
    net, plain = Network(opset), Network(opset)
    for each in (net, plain):
        each.input("x", ["n", 8])
        each.output("y")
    net.node(
        "MatMul", ["x", net.stored("w", codes, stored[0], stored[1].astype(dtype), **given)], "y"
    )
    plain.node("MatMul", ["x", plain.constant("w", w)], "y")
    graph = prove(net.model(), plain.model(), {"x": draw(3, 8, seed=4)})
    (site,) = graph.sites
    assert site.kind is SiteKind.WEIGHT
    assert site.encoding.axis == {"tensor": None, "axis -1": 1}.get(granularity, 0)
    assert site.encoding.block_size == (4 if granularity == "blocks" else None)
    np.testing.assert_array_equal(site.codes.astype(int), codes.astype(int))
    np.testing.assert_array_equal(constants(graph.skeleton)["w_dq"], w)


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_float8_weights(dtype) -> None:
    net, plain = Network(19), Network(19)
    for each in (net, plain):
        each.input("x", ["n", 6])
        each.output("y")
    net.node("MatMul", ["x", net.stored("w", (W / 0.5).astype(dtype), np.float32(0.5))], "y")
    plain.node("MatMul", ["x", plain.constant("w", W)], "y")
    (site,) = prove(net.model(), plain.model(), X).sites
    assert site.encoding.number_format == np.dtype(dtype).name.replace("_", "").replace(
        "float8e", "float8e"
    )


@pytest.mark.parametrize(
    ("dtype", "opset"),
    [
        (np.int8, 13),
        (np.uint8, 13),
        (np.int16, 21),
        (ml_dtypes.int4, 21),
        (ml_dtypes.float8_e4m3fn, 19),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_weights_stored_in_float_before_a_pair(dtype, opset: int, known: bool) -> None:
    w = np.array([[0.5, 1.5, 2.5, -0.5], [-1.5, 3.25, 1e4, -1e4]], np.float32)
    zero = np.zeros((), dtype) if np.dtype(dtype).name.startswith("float") else np.ones((), dtype)
    net = Network(opset)
    net.input("x", ["n", 2])
    net.constant("w", w)
    net.node("MatMul", ["x", net.pair("w", np.float32(1.0), zero)], "y")
    net.output("y")
    plain = Network(opset)
    plain.input("x", ["n", 2])
    plain.node("MatMul", ["x", plain.constant("w", w)], "y")
    plain.output("y")
    graph = prove(net.model(), plain.model() if known else None, {"x": draw(3, 2)})
    (site,) = graph.sites
    assert site.kind is SiteKind.WEIGHT
    assert site.codes.dtype == dtype
    np.testing.assert_array_equal(constants(graph.skeleton)[site.tensor], w)


def test_one_pair_shared_by_several_consumers_is_one_site() -> None:
    net = Network()
    net.input("x", ["n", 6])
    x = net.pair("x", np.float32(0.1), np.int8(0))
    net.node("Add", [net.node("Neg", [x], "a"), net.node("Exp", [x], "b")], "y")
    net.output("y")
    graph = prove(net.model(), None, X)
    assert [site.name for site in graph.sites] == ["x"]


def test_one_quantizer_with_a_dequantizer_each_is_one_site() -> None:
    net = Network()
    net.input("x", ["n", 6])
    x = net.pair("x", np.float32(0.1), np.int8(0))
    other = net.node("DequantizeLinear", ["x_q", "x_scale", "x_zero_point"], "second_dq")
    net.node("Add", [net.node("Neg", [x], "a"), net.node("Exp", [other], "b")], "y")
    net.output("y")
    net.output("second_dq")
    graph = prove(net.model(), None, X)
    assert [site.name for site in graph.sites] == ["x"]


def test_the_unquantized_value_stays_free_of_the_error() -> None:
    net = Network()
    net.input("x", ["n", 6])
    net.node("Sub", [net.pair("x", np.float32(0.5), np.int8(0)), "x"], "y")
    net.output("y")
    graph = prove(net.model(), None, X)
    assert np.all(run(graph.skeleton, X)["y"] == 0)


def test_codes_read_with_another_scale_count_the_rescaling_as_error() -> None:
    net = Network()
    net.input("x", ["n", 6])
    net.pair("x", np.float32(0.5), np.int8(0))
    net.constant("other", np.float32(0.25))
    net.node("DequantizeLinear", ["x_q", "other", "x_zero_point"], "y")
    net.output("y")
    net.output("x_dq")
    graph = prove(net.model(), None, X)
    assert [site.name for site in graph.sites] == ["x #1", "x #2"]


def test_a_weight_shared_by_two_nodes_is_one_site() -> None:
    w = draw(6, 6)
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("x", ["n", 6])
        each.output("y")
    step = np.float32(np.abs(w).max() / 127)
    shared = net.stored("w", np.rint(w / step).astype(np.int8), step, np.int8(0))
    net.node("MatMul", [net.node("MatMul", ["x", shared], "h"), shared], "y")
    plain.constant("w", w)
    plain.node("MatMul", [plain.node("MatMul", ["x", "w"], "h"), "w"], "y")
    assert [s.name for s in prove(net.model(), plain.model(), X).sites] == ["w"]


def test_tied_embeddings_quantized_once_and_used_twice() -> None:
    table = draw(9, 6)
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("ids", ["n"], TensorProto.INT64)
        each.output("logits")
    step = np.float32(np.abs(table).max() / 127)
    shared = net.stored("table", np.rint(table / step).astype(np.int8), step, np.int8(0))
    for each, name in ((net, shared), (plain, plain.constant("table", table))):
        each.node("Gather", [name, "ids"], "h")
        each.node("Transpose", [name], "turned", perm=[1, 0])
        each.node("MatMul", ["h", "turned"], "logits")
    feeds = {"ids": np.array([1, 8, 3])}
    (site,) = prove(net.model(), plain.model(), feeds).sites
    assert (site.name, site.operator) == ("table", "MatMul")


def test_tied_embeddings_quantized_twice_are_two_sites_of_one_float_tensor() -> None:
    table = draw(9, 6)
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("ids", ["n"], TensorProto.INT64)
        each.output("logits")
    rows = np.abs(table).max(1) / np.float32(127)
    step = np.float32(np.abs(table).max() / 127)
    net.node(
        "Gather", [net.stored("table", np.rint(table / step).astype(np.int8), step), "ids"], "h"
    )
    codes = np.rint(table / rows[:, None]).astype(np.int8).T
    net.node("MatMul", ["h", net.stored("head", codes, rows, axis=1)], "logits")
    plain.node("Gather", [plain.constant("table", table), "ids"], "h")
    plain.node("Transpose", ["table"], "turned", perm=[1, 0])
    plain.node("MatMul", ["h", "turned"], "logits")
    graph = prove(net.model(), plain.model(), {"ids": np.array([1, 8, 3])})
    assert [site.name for site in graph.sites] == ["table #1", "table #2"]


def moved(net: Network, codes: str) -> str:
    """Send codes through operators that move them."""
    net.constant("shape", np.array([2, 5, 3]))
    net.node("Reshape", [codes, "shape"], "c1")
    net.node("Transpose", ["c1"], "c2", perm=[1, 0, 2])
    net.node("Concat", ["c2", "c2"], "c3", axis=2)
    net.constant("places", np.array([4, 0, 2]))
    net.node("Gather", ["c3", "places"], "c4", axis=2)
    net.constant("pads", np.array([0, 1, 0, 0, 1, 0]))
    return net.node("Pad", ["c4", "pads"], "c5")


def test_codes_that_are_moved_between_the_pair() -> None:
    net = Network()
    net.input("x", [5, 6])
    net.pair("x", np.float32(0.1), np.int8(7))
    net.node("DequantizeLinear", [moved(net, "x_q"), "x_scale", "x_zero_point"], "y")
    net.output("y")
    graph = prove(net.model(), None, X)
    assert [site.name for site in graph.sites] == ["x"]
    assert np.all(run(graph.simulated, X)["y"][:, 0] == np.float32(-0.7))


@pytest.mark.parametrize("operator", ["Relu", "Clip", "MaxPool", "Max"])
def test_codes_that_are_compared_between_the_pair(operator: str) -> None:
    net = Network(14)
    net.input("x", [1, 5, 6])
    net.pair("x", np.float32(0.1), np.int8(7))
    low, high = net.constant("low", np.int8(-3)), net.constant("high", np.int8(20))
    inputs = {"Clip": ["x_q", low, high], "Max": ["x_q", "x_q"]}.get(operator, ["x_q"])
    given = {"kernel_shape": [3], "pads": [1, 1]} if operator == "MaxPool" else {}
    net.node(operator, inputs, "c", **given)
    net.node("DequantizeLinear", ["c", "x_scale", "x_zero_point"], "y")
    net.output("y")
    prove(net.model(), None, {"x": X["x"][None]})


def test_outputs_that_are_codes_are_dequantized() -> None:
    net = Network()
    net.input("x", ["n", 6])
    x = net.pair("x", np.float32(0.1), np.int8(7))
    net.node("Neg", [x], "h")
    net.pair("h", np.float32(0.1), np.int8(7))
    net.node("Transpose", ["h_q"], "turned", perm=[1, 0])
    for name in ("h_q", "turned"):
        net.output(name, TensorProto.INT8)
    net.output("h_dq")
    model = net.model()
    graph = read_quantized(model, None)
    assert [site.name for site in graph.sites] == ["x", "h"]
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.INT8
    codes = run(model, X)
    for each in (graph.original, graph.simulated):
        real = run(each, X)
        np.testing.assert_array_equal(real["h_q"], real["h_dq"])
        np.testing.assert_array_equal(real["turned"], real["h_q"].T)
        np.testing.assert_allclose(real["h_q"], (codes["h_q"] - 7.0) * 0.1, rtol=1e-6)
    assert not any("Quantize" in node.op_type for node in graph.skeleton.graph.node)


def test_integer_inputs_are_no_sites() -> None:
    net = Network()
    net.input("image", ["n", 6], TensorProto.UINT8)
    net.constant("step", np.float32(1 / 255))
    net.node("DequantizeLinear", ["image", "step"], "pixels")
    net.node("Neg", [net.pair("pixels", np.float32(0.01), np.int8(0))], "y")
    net.output("y")
    graph = prove(net.model(), None, {"image": np.arange(12, dtype=np.uint8).reshape(2, 6)})
    assert [site.name for site in graph.sites] == ["pixels"]


def test_weights_in_constant_nodes() -> None:
    def with_constant_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
        nodes = [
            helper.make_node("Constant", [], [t.name], value=t) for t in model.graph.initializer
        ]
        nodes += list(model.graph.node)
        del model.graph.initializer[:], model.graph.node[:]
        model.graph.node.extend(nodes)
        return model

    graph = prove(with_constant_nodes(dense_int8().model()), with_constant_nodes(dense()), X)
    assert len(graph.sites) == 7


@pytest.mark.parametrize("opset", [13, 15, 17, 18, 19, 20, 21, 22, 23])
def test_every_opset_from_13_on(opset: int) -> None:
    assert len(prove(dense_int8(opset).model(), dense(opset), X).sites) == 7


def test_quantization_inside_a_subgraph_is_refused_by_name() -> None:
    inner = Network()
    inner.node("Neg", [inner.pair("x", np.float32(0.1), np.int8(0))], "out")
    inner.output("out")
    branch = helper.make_graph(inner.nodes, "b", [], inner.outputs, inner.constants)
    net = Network()
    net.input("x", ["n", 6])
    net.input("which", [], TensorProto.BOOL)
    net.node("If", ["which"], "y", then_branch=branch, else_branch=branch)
    net.output("y")
    with pytest.raises(OperatorNotSupported, match="QuantizeLinear inside a subgraph") as caught:
        read_quantized(net.model(), None)
    assert "If node '/y', else_branch" in str(caught.value)


def test_a_subgraph_reads_quantized_values_from_outside() -> None:
    def branch(operator: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["second_dq"], [f"{operator}_out"])
        out = helper.make_tensor_value_info(f"{operator}_out", TensorProto.FLOAT, None)
        return helper.make_graph([node], operator, [], [out])

    net = Network()
    net.input("x", ["n", 6])
    net.input("which", [], TensorProto.BOOL)
    net.pair("x", np.float32(0.1), np.int8(0))
    net.node("DequantizeLinear", ["x_q", "x_scale", "x_zero_point"], "second_dq")
    net.node("If", ["which"], "z", then_branch=branch("Neg"), else_branch=branch("Exp"))
    net.node("Add", ["z", "x_dq"], "y")
    net.output("y")
    for which in (True, False):
        prove(net.model(), None, {**X, "which": np.array(which)})
