"""LSTM, Attention and EmbedLayerNormalization beside ONNX Runtime's own quantizer and float."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.exact_sums import SEVEN_BITS
from tests.surgery import nets

from foldmark.errors import NothingQuantized
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import Mode, Recipe
from foldmark.runtimes.onnxruntime import Session

DYNAMIC = Recipe(mode=Mode.DYNAMIC)
HIDDEN, INNER = 16, 12


def lstm(direction="forward", bias=True, kind="LSTM", **attributes):
    ways, gates = (2 if direction == "bidirectional" else 1), (4 if kind == "LSTM" else 3)
    stored = {
        "w": nets.random(ways, gates * HIDDEN, INNER) * 0.3,
        "r": nets.random(ways, gates * HIDDEN, HIDDEN, seed=1) * 0.3,
    }
    inputs = ["x", "w", "r"]
    if bias:
        stored["b"] = nets.random(ways, 2 * gates * HIDDEN, seed=2) * 0.1
        inputs.append("b")
    node = helper.make_node(
        kind, inputs, ["y", "last"], "rnn", hidden_size=HIDDEN, direction=direction, **attributes
    )
    return nets.net(
        [node], {n: a.astype(np.float32) for n, a in stored.items()}, (5, "n", INNER), 4
    )


def distance(model, made, feeds):
    real, other = (Session(each).run(feeds)["y"] for each in (model, made))
    return np.linalg.norm(other - real) / np.linalg.norm(real)


def theirs(model, tmp_path, per_channel, kinds, *, reduce_range=False):
    """What ONNX Runtime's quantizer makes of a model."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    onnx.save(model, tmp_path / "m.onnx")
    quantize_dynamic(
        tmp_path / "m.onnx",
        tmp_path / "q.onnx",
        op_types_to_quantize=kinds,
        per_channel=per_channel,
        weight_type=QuantType.QInt8,
        reduce_range=reduce_range,
    )
    return onnx.load(tmp_path / "q.onnx")


@pytest.mark.sessions_as_they_are
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("bias", [False, True])
def test_lstm(direction, bias, per_channel, tmp_path):
    model = lstm(direction, bias)
    feeds = {"x": nets.random(5, 3, INNER, seed=4)}
    recipe = Recipe(mode=Mode.DYNAMIC, per_channel=per_channel, rule=SEVEN_BITS)
    made = quantize_model(model, recipe)
    assert [node.op_type for node in made.model.graph.node] == ["DynamicQuantizeLSTM"]
    mine = distance(model, made.model, feeds)
    assert mine < 0.03
    other = theirs(model, tmp_path, per_channel, ["LSTM"], reduce_range=True)
    if direction != "bidirectional":  # theirs has one scale for both directions
        real, own = (Session(each).run(feeds)["y"] for each in (other, made.model))
        assert own == pytest.approx(real, abs=2e-5)
    assert mine < 1.2 * distance(model, other, feeds)


@pytest.mark.sessions_as_they_are
def test_lstm_beside_products_in_static():
    model = lstm()
    model.graph.node.append(helper.make_node("MatMul", ["last", "v"], ["z"], "product"))
    model.graph.initializer.append(numpy_helper.from_array(nets.random(HIDDEN, 4), "v"))
    model.graph.output[0].name = "z"
    feeds = {"x": nets.random(5, 3, INNER, seed=4)}
    made = quantize_model(model, Recipe(rule=SEVEN_BITS), [feeds])
    kinds = [node.op_type for node in made.model.graph.node]
    assert "DynamicQuantizeLSTM" in kinds
    assert "QuantizeLinear" in kinds
    real, other = (Session(each).run(feeds)["z"] for each in (model, made.model))
    assert np.linalg.norm(other - real) < 0.05 * np.linalg.norm(real)


def with_computed_weights(branches):
    """The LSTM as torch exports it: its gates are reordered in the graph, in each branch anew."""
    plain = lstm(bias=False)
    w, r = (numpy_helper.to_array(each)[0] for each in plain.graph.initializer)
    stored = {"ih": np.roll(w, HIDDEN, 0), "hh": np.roll(r, HIDDEN, 0)}
    stored |= {"a": [0], "b": [HIDDEN], "c": [4 * HIDDEN], "axis": [0]}

    def nodes(name, result):
        made = []
        for source in ("ih", "hh"):
            for at, ends in (("tail", ("b", "c")), ("head", ("a", "b"))):
                part = f"{name}_{source}_{at}"
                made.append(helper.make_node("Slice", [source, *ends, "axis"], [part]))
            parts = [f"{name}_{source}_tail", f"{name}_{source}_head"]
            made.append(helper.make_node("Concat", parts, [f"{name}_{source}_turned"], axis=0))
            inside = [f"{name}_{source}_turned", "axis"]
            made.append(helper.make_node("Unsqueeze", inside, [f"{name}_{source}"]))
        inputs = ["x", f"{name}_ih", f"{name}_hh"]
        return [
            *made,
            helper.make_node("LSTM", inputs, [result], f"{name}_rnn", hidden_size=HIDDEN),
        ]

    stored = {
        name: np.asarray(array, np.float32 if len(name) == 2 else np.int64)
        for name, array in stored.items()
    }
    if not branches:
        return nets.net(nodes("only", "y"), stored, (5, "n", INNER), 4)
    graphs = {}
    for name in ("then", "else"):
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
        graphs[f"{name}_branch"] = helper.make_graph(nodes(name, f"{name}_y"), name, [], [out])
    chosen = [
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], "if", **graphs),
    ]
    stored["zero"] = np.zeros((), np.float32)
    return nets.net(chosen, stored, (5, "n", INNER), 4)


@pytest.mark.sessions_as_they_are
@pytest.mark.parametrize("branches", [False, True])
def test_weights_that_follow_from_constants(branches):
    """As if they were stored: the same codes, once for both branches, no float weight left."""
    feeds = {"x": nets.random(5, 3, INNER, seed=4)}
    plain = quantize_model(lstm(bias=False), DYNAMIC).model
    made = quantize_model(with_computed_weights(branches), DYNAMIC)
    assert len(made.account.done) == 1 + branches
    stored = {each.name: numpy_helper.to_array(each) for each in made.model.graph.initializer}
    codes = [array for array in stored.values() if array.dtype == np.int8 and array.ndim == 3]
    assert len(codes) == 2
    expected = [numpy_helper.to_array(each) for each in plain.graph.initializer]
    for array in codes:
        assert any(np.array_equal(array, each) for each in expected)
    assert not any(a.dtype == np.float32 and a.size > 4 * HIDDEN for a in stored.values())
    for sign in (1, -1):
        fed = {"x": sign * np.abs(feeds["x"])}
        real, own = (Session(each).run(fed)["y"] for each in (plain, made.model))
        assert np.array_equal(real, own)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lstm(kind="GRU"), "no integer kernel for GRU"),
        (lstm(layout=1), "time axis first"),
    ],
)
def test_what_no_kernel_does_is_named(model, words):
    with pytest.raises(NothingQuantized, match=words):
        quantize_model(model, DYNAMIC)


def attention(mask=False, **attributes):
    width, heads = 16, 2
    inputs = ["x", "w", "b"] + (["mask"] if mask else [])
    stored = {
        "w": (nets.random(width, 3 * width) / 4).astype(np.float32),
        "b": nets.random(3 * width, seed=1),
    }
    if mask:
        stored["mask"] = np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], np.int32)
    node = helper.make_node(
        "Attention",
        inputs,
        ["y"],
        "attention",
        domain="com.microsoft",
        num_heads=heads,
        **attributes,
    )
    model = nets.net([node], stored, (2, 5, width), 3)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("mask", "attributes"), [(False, {}), (True, {}), (False, {"unidirectional": 1})]
)
def test_attention(mask, attributes, per_channel, tmp_path):
    model = attention(mask, **attributes)
    feeds = {"x": nets.random(2, 5, 16, seed=3)}
    made = quantize_model(model, Recipe(mode=Mode.DYNAMIC, per_channel=per_channel))
    assert [n.op_type for n in made.model.graph.node] == ["DynamicQuantizeLinear", "QAttention"]
    mine = distance(model, made.model, feeds)
    assert mine < 0.03
    assert mine < 1.5 * distance(model, theirs(model, tmp_path, per_channel, ["Attention"]), feeds)


def test_attention_that_no_kernel_takes():
    with pytest.raises(NothingQuantized, match="the integer kernel has no scale"):
        quantize_model(attention(scale=0.1), DYNAMIC)


def test_onnx_attention_leaves_its_inputs_to_products():
    nodes = [helper.make_node("MatMul", ["x", f"w{i}"], [f"p{i}"], f"product{i}") for i in range(3)]
    nodes.append(
        helper.make_node(
            "Attention", ["p0", "p1", "p2"], ["y"], "mix", q_num_heads=2, kv_num_heads=2
        )
    )
    stored = {f"w{i}": nets.random(16, 16, seed=i) for i in range(3)}
    model = nets.net(nodes, stored, (2, 5, 16), 3, opset=23)
    model.ir_version = 11
    feeds = {"x": nets.random(2, 5, 16, seed=3)}
    for recipe in (DYNAMIC, Recipe()):
        made = quantize_model(model, recipe, feeds)
        assert [each.operator for each in made.account.done] == ["MatMul"] * 3
        assert "it holds no weights" in made.account.left[0].reason
        assert distance(model, made.model, feeds) < 0.1


@pytest.mark.parametrize("segments", [True, False])
def test_embeddings_with_their_norm(segments, tmp_path):
    width, words = 16, 50
    stored = {
        "word": nets.random(words, width), "place": nets.random(8, width, seed=1),
        "kind": nets.random(2, width, seed=2), "gamma": nets.random(width, seed=3) * 0.1 + 1,
        "beta": nets.random(width, seed=4),
    }  # fmt: skip
    stored = {name: array.astype(np.float32) for name, array in stored.items()}
    stored["which"] = np.zeros((2, 6), np.int32)
    if not segments:
        del stored["which"], stored["kind"]
    read = ["ids", "which", "word", "place", "kind", "gamma", "beta"]
    nodes = [
        helper.make_node("Cast", ["x"], ["ids"], "ids", to=TensorProto.INT32),
        helper.make_node(
            "EmbedLayerNormalization",
            [name if segments or name not in ("which", "kind") else "" for name in read],
            ["y", "mask_index"],
            "embed",
            domain="com.microsoft",
            epsilon=1e-12,
        ),
    ]
    model = nets.net(nodes, stored, (2, 6), 3)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    feeds = {"x": np.random.default_rng(0).integers(0, words, (2, 6)).astype(np.float32)}
    made = quantize_model(model, DYNAMIC)
    assert "QEmbedLayerNormalization" in [node.op_type for node in made.model.graph.node]
    mine = distance(model, made.model, feeds)
    assert mine < 0.03
    if segments:
        other = theirs(model, tmp_path, False, ["EmbedLayerNormalization"])
        assert mine < 1.5 * distance(model, other, feeds)
