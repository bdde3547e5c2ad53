"""Runs with saturating pairs: the arithmetic of the exact oracle inside a whole network."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.models.digits import held_out, images, residual_network
from tests.proof import small
from tests.properties import examples

from foldmark.exact.dot import saturating_pairs_dot
from foldmark.proof.quality import measure_quality
from foldmark.proof.saturating import (
    SaturatingSession,
    dynamic_codes,
    integer_products,
    saturation_errors,
)
from foldmark.proof.saturation import saturation_cost
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import Form, Recipe
from foldmark.recipes.recipe_file import BUILT_IN
from foldmark.runtimes.batches import open_data
from foldmark.runtimes.machine import machine
from foldmark.runtimes.onnxruntime import EXACT_SUMS, Optimization, Session
from foldmark.runtimes.profile import execute


@examples(60)
@given(st.data())
def test_the_error_of_a_sum_is_that_of_the_oracle(data):
    inner = data.draw(st.integers(1, 9))
    extremes = st.sampled_from([0, 1, 127, 128, 129, 254, 255]) | st.integers(0, 255)
    rows = data.draw(arrays(np.uint8, (3, inner), elements=extremes))
    weights = data.draw(arrays(np.uint8, (inner, 4), elements=extremes)).view(np.int8)
    errors = saturation_errors(rows, weights)
    for i, a in enumerate(rows.tolist()):
        for j, w in enumerate(weights.T.tolist()):
            exact = sum(x * y for x, y in zip(a, w, strict=True))
            assert saturating_pairs_dot(a, w) == exact + errors[i, j]


def test_sums_are_exact_where_onnx_runtime_is_asked_for_them():
    codes = np.full((4, 8), 255, np.uint8)
    weight = np.full((8, 4), 127, np.int8)
    node = onnx.helper.make_node("MatMulInteger", ["x", "w"], ["y"], "product")
    kinds = (onnx.TensorProto.UINT8, onnx.TensorProto.INT32)
    ends = zip(("x", "y"), kinds, ((4, 8), (4, 4)), strict=True)
    given, made = (onnx.helper.make_tensor_value_info(*each) for each in ends)
    stored = [onnx.numpy_helper.from_array(weight, "w")]
    graph = onnx.helper.make_graph([node], "product", [given], [made], stored)
    opset = onnx.helper.make_opsetid("", 17)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(EXACT_SUMS, "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (sums,) = session.run(None, {"x": codes})
    assert np.array_equal(sums, codes.astype(np.int32) @ weight.astype(np.int32))


def rewritten(built, feeds):
    return execute(built, feeds, optimization=Optimization.EXTENDED, runs=1).graph


def conv_dilated():
    """A grouped convolution with stride, dilation and padding of its own on every side."""
    built = small.conv()
    node = next(n for n in built.graph.node if n.op_type == "Conv")
    del node.attribute[:]
    node.attribute.extend(
        [
            onnx.helper.make_attribute("strides", [2, 1]),
            onnx.helper.make_attribute("dilations", [1, 2]),
            onnx.helper.make_attribute("pads", [1, 0, 2, 3]),
            onnx.helper.make_attribute("group", 2),
        ]
    )
    weight = next(t for t in built.graph.initializer if t.name == "w")
    codes = onnx.numpy_helper.to_array(weight)[:, :2]
    weight.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(codes), "w"))
    return built


FORMS = [small.qdq_matmul, small.dynamic_matmul, small.conv, conv_dilated]


def feeds_of(build):
    shape = (4, 8, 8) if "conv" in build.__name__ else (small.INNER,)
    return {"x": 6 * small.samples(4, shape)["x"]}


@pytest.mark.parametrize("build", FORMS)
def test_it_is_what_this_processor_computes(build):
    """Sums cut short where this processor cuts them, exact ones where it does not."""
    feeds = feeds_of(build)
    graph = rewritten(build(), feeds)
    found = SaturatingSession(graph, saturate=bool(machine().saturates)).run(feeds)["y"]
    np.testing.assert_allclose(found, Session(build()).run(feeds)["y"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("build", FORMS)
def test_products_saturate_as_by_hand(build):
    """The codes are multiplied pair by pair in plain integers; the rest is read off the model."""
    feeds = feeds_of(build)
    built = build()
    exact, cut = (
        SaturatingSession(rewritten(built, feeds), saturate=each).run(feeds)["y"]
        for each in (False, True)
    )
    assert not np.array_equal(exact, cut)
    x = feeds["x"]
    wanted = convolved(built, x) if "conv" in build.__name__ else multiplied(build, x)
    step = 1e-4 if build is small.dynamic_matmul else 0.2  # of its output codes
    assert np.abs(cut - wanted).max() < 1.001 * step
    assert (np.abs(cut - wanted) < 1e-3).mean() > 0.99  # a half may round the other way
    assert (np.abs(exact - wanted) > 1.001 * step).any()


def multiplied(build, x):
    """A matrix product of a small model with saturating pairs, in plain numpy."""
    if build is small.dynamic_matmul:
        codes, scale = dynamic_codes(x)
        zero = np.rint(-x.min() / scale)
    else:
        scale, zero = np.float32(0.03), 128
        codes = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
    columns = small.codes().T.tolist()
    sums = np.array(
        [[saturating_pairs_dot(a, w) - zero * sum(w) for w in columns] for a in codes.tolist()]
    )
    real = sums * (scale / np.float32(40))
    if build is small.dynamic_matmul:
        return real
    return np.clip(np.rint(real / np.float32(0.2)), 0, 255) * np.float32(0.2)


def convolved(built, x):
    """The quantized convolution of a small model with saturating pairs, in plain numpy."""
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in built.graph.initializer}
    node = next(n for n in built.graph.node if n.op_type == "Conv")
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    group, (sh, sw) = found.get("group", 1), found.get("strides", [1, 1])
    (dh, dw), pads = found.get("dilations", [1, 1]), found.get("pads", [0, 0, 0, 0])
    quantize = {n.output[0]: n for n in built.graph.node if n.op_type == "QuantizeLinear"}
    first, *_, last = quantize.values()
    xs, xz = stored[first.input[1]], stored[first.input[2]]
    ys, yz = stored[last.input[1]], stored[last.input[2]]
    weight = next(n for n in built.graph.node if n.output[0] == node.input[1])
    codes, ws = stored[weight.input[0]], stored[weight.input[1]]
    q = np.clip(np.rint(x / xs) + xz, 0, 255).astype(np.uint8)
    q = np.pad(q, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])], constant_values=xz)
    size = [q.shape[2] - dh * 2, q.shape[3] - dw * 2]
    sums = np.zeros((len(x), len(codes), -(-size[0] // sh), -(-size[1] // sw)), np.int64)
    inner, each = codes.shape[1], len(codes) // group
    for n, o, i, j in np.ndindex(sums.shape):
        channels = slice(o // each * inner, (o // each + 1) * inner)
        a = q[n, channels, i * sh : i * sh + 2 * dh + 1 : dh, j * sw : j * sw + 2 * dw + 1 : dw]
        a, w = (m.transpose(1, 2, 0).ravel().tolist() for m in (a, codes[o]))
        sums[n, o, i, j] = saturating_pairs_dot(a, w) - int(xz) * sum(w)
    real = sums * (xs * ws)
    return (np.clip(np.rint(real / ys) + yz, 0, 255) - yz) * ys


@pytest.mark.parametrize("form", list(Form))
def test_a_network_is_what_this_processor_computes(form):
    model = onnx.load(residual_network())
    recipe = BUILT_IN["static"]
    recipe = Recipe(recipe.name, recipe.mode, form, observer=recipe.observer)
    made = quantize_model(model, recipe, {"image": images()[0][:32]}).model
    feeds = {"image": held_out(8)["image"]}
    graph, cut = rewritten(made, feeds), bool(machine().saturates)
    found = SaturatingSession(graph, saturate=cut).run(feeds)["logits"]
    real = Session(made).run(feeds)["logits"]
    assert np.abs(found - real).max() < 0.02 * np.abs(real).max()


def test_the_cost_is_that_of_the_samples_it_names():
    built, feeds = small.qdq_matmul(), {"x": 8 * small.samples(40)["x"]}
    data = open_data(feeds, built)
    execution = execute(built, feeds, optimization=Optimization.EXTENDED, runs=1)
    cost = saturation_cost(Session(small.float_matmul()), execution, data, 5e10 / 16)
    assert cost.samples == 16
    session = SaturatingSession(execution.graph)
    few = open_data({"x": feeds["x"][:16]}, built)
    assert cost.saturated == measure_quality(Session(small.float_matmul()), session, few)
    assert cost.saturated != cost.exact
    assert cost.exact == measure_quality(
        Session(small.float_matmul()), SaturatingSession(execution.graph, saturate=False), few
    )


def product(operator, activation, weight, window=()):
    """One integer operator on the largest codes, and the exact sum of each of its results."""
    inner, shape = 64, (4, 64, *window) if window else (4, 64)
    top = {"uint8": 255, "int8": 127}
    a = np.full(shape, top[activation], activation)
    w = np.full((16, inner, *window) if window else (inner, 16), top[weight], weight)
    zero = np.array(0 if activation == "uint8" else -128, activation)
    step, wide = np.float32(1), np.float32(top[activation] - int(zero)) * top[weight] * inner / 200
    stored = {"w": w, "zero": zero, "none": np.array(0, weight), "one": step, "wide": wide}
    names = {
        "MatMulInteger": ["x", "w", "zero", "none"],
        "ConvInteger": ["x", "w", "zero", "none"],
        "MatMulIntegerToFloat": ["x", "w", "one", "one", "zero", "none"],
        "QLinearMatMul": ["x", "one", "zero", "w", "one", "none", "wide", "zero"],
        "QLinearConv": ["x", "one", "zero", "w", "one", "none", "wide", "zero"],
        "QGemm": ["x", "one", "zero", "w", "one", "none", "", "wide", "zero"],
    }[operator]
    domain = "com.microsoft" if operator in ("MatMulIntegerToFloat", "QGemm") else ""
    node = onnx.helper.make_node(operator, names, ["y"], operator, domain=domain)
    kind = onnx.helper.np_dtype_to_tensor_dtype(a.dtype)
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [onnx.helper.make_tensor_value_info("x", kind, a.shape)],
        [onnx.ValueInfoProto(name="y")],
        [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items() if k in names],
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    made = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
    exact = (int(a.flat[0]) - int(zero)) * int(w.flat[0]) * inner
    unit = (int(zero), float(wide)) if operator.startswith(("QL", "QG")) else (0, 1.0)
    return made, a, exact, unit


MATRICES = ["MatMulInteger", "MatMulIntegerToFloat", "QLinearMatMul", "QGemm"]


@pytest.mark.parametrize("activation", ["uint8", "int8"])
@pytest.mark.parametrize("operator", [*MATRICES, "QLinearConv", "ConvInteger"])
def test_operators_are_counted_whose_kernel_saturates(operator, activation):
    """uint8 activations on int8 weights, but for ConvInteger, whose weight is on the left."""
    window = (1, 1) if operator.endswith(("Conv", "ConvInteger")) else ()
    built, a, exact, (zero, step) = product(operator, activation, "int8", window)
    counted = bool(list(integer_products(built)))
    assert counted == (activation == "uint8" and operator != "ConvInteger")
    found = (Session(built).run({"x": a})["y"].astype(np.float64) - zero) * step
    cut = counted and bool(machine().saturates)
    assert np.all(np.abs(found / exact - 1) < 0.01) != cut


@pytest.mark.parametrize("operator", MATRICES)
def test_exact_sums_are_exact_on_any_processor(operator):
    built, a, exact, (zero, step) = product(operator, "uint8", "int8")
    found = SaturatingSession(built, saturate=False).run({"x": a})["y"].astype(np.float64)
    assert np.all(np.abs((found - zero) * step / exact - 1) < 0.01)
