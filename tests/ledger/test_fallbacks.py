"""What can't be done the usual way is done another way, or refused in one line; both are said."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.models.branches import branches
from tests.models.copies import Copy, quantized
from tests.models.digits import held_out, images, residual_network

import foldmark
from foldmark.errors import (
    BadInput,
    DataMismatch,
    ModelsDiffer,
    NoData,
    NonFiniteValue,
    NothingQuantized,
    OutputNotComparable,
)


def network(int8: bool, operator: str = "Hardmax", **attributes):
    """Two layers and an operator between them that has no derivative here."""
    draw = np.random.default_rng(0)
    nodes, constants, current = [], [], "x"
    if int8:
        constants += [
            numpy_helper.from_array(np.float32(0.5), "s"),
            numpy_helper.from_array(np.int8(0), "z"),
        ]
    for layer in range(2):
        weight = draw.standard_normal((8, 8)).astype(np.float32) / 3
        if int8:
            for kind in ("Quantize", "Dequantize"):
                nodes.append(
                    helper.make_node(f"{kind}Linear", [current, "s", "z"], [f"{current}{kind[0]}"])
                )
                current = f"{current}{kind[0]}"
        constants.append(numpy_helper.from_array(weight, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [current, f"w{layer}"], [f"h{layer}"]))
        current = f"h{layer}"
        if layer == 0:
            nodes.append(helper.make_node(operator, [current], ["m"], **attributes))
            current = "m"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("h1", TensorProto.FLOAT, ["n", 8])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def test_without_a_derivative_sites_are_switched_off_one_at_a_time():
    data = {"x": np.random.default_rng(1).standard_normal((16, 8)).astype(np.float32)}
    exact, near = network(False), network(True)
    report = foldmark.explain(exact, near, data, batch_size=16)
    assert report.cost.nodes == 0
    assert any("Hardmax" in note for note in report.notes)
    assert "interaction" in str(report)
    assert not report.fixes
    run = [
        onnxruntime.InferenceSession(m.SerializeToString()).run(None, data)[0]
        for m in (exact, near)
    ]
    moved = ((run[1] - run[0]) ** 2).sum() / (run[0] ** 2).sum()
    assert report.metric.change == pytest.approx(moved, rel=1e-3)
    assert {entry.site.name for entry in report.entries} == {"x", "m"}
    # Hardmax turns the error of x into whole steps; what follows it is exact.
    assert report.entries[0].site.name == "x"
    assert report.entries[0].amount == pytest.approx(moved, rel=0.1)


def test_quantized_alone_explains_activations_and_says_so():
    near = quantized(residual_network(), Copy.QDQ, {"image": images()[0][:64]})
    report = foldmark.explain(None, near, held_out(16), metric="mse", cures=False)
    assert {entry.site.kind.value for entry in report.entries} == {"activation"}
    assert report.closure.graph == pytest.approx(0, abs=1e-9)
    assert report.notes[0] == (
        "Without the float model weights are not explained: only activations are; 14 weights "
        "count as exact."
    )
    assert len(report.unmatched) == 14
    assert "no float model was given" not in str(report)
    assert abs(report.closure.relative_error) <= 1e-3


def test_a_float_model_alone_is_not_called_a_second_copy():
    with pytest.raises(NothingQuantized, match=r"nothing in it is quantized.*Is it the float"):
        foldmark.explain(None, residual_network(), held_out(4))


def digits_copy():
    return quantized(residual_network(), Copy.QDQ, {"image": images()[0][:64]})


def with_nan():
    data = held_out(4)
    data["image"] = data["image"].copy()
    data["image"][2, 0, 3, 1] = np.nan
    return data


def nan_weight():
    model = onnx.load(residual_network())
    tensor = next(t for t in model.graph.initializer if t.name == "head.weight")
    array = numpy_helper.to_array(tensor).copy()
    array[1, 2] = np.nan
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


def overflowing():
    model = onnx.load(digits_copy())
    tensor = next(t for t in model.graph.initializer if t.name == "head.weight_scale")
    array = np.full_like(numpy_helper.to_array(tensor), 3e38)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


FAULTS = {
    "another network": (branches, digits_copy, held_out(4), {}, ModelsDiffer, "inputs"),
    "no samples": (residual_network, digits_copy, [], {}, NoData, "no samples"),
    "nan in data": (residual_network, digits_copy, with_nan(), {}, NonFiniteValue, "2, 0, 3, 1"),
    "rank": (
        residual_network,
        digits_copy,
        {"image": np.zeros((4, 8), np.float32)},
        {},
        DataMismatch,
        "wrong rank",
    ),
    "no such output": (
        residual_network,
        digits_copy,
        held_out(4),
        {"outputs": ("probabilities",)},
        OutputNotComparable,
        "logits float32",
    ),
    "no labels": (
        residual_network,
        digits_copy,
        {"image": held_out(4)["image"]},
        {"metric": "cross-entropy"},
        DataMismatch,
        "needs labels",
    ),
    "no such metric": (
        residual_network,
        digits_copy,
        held_out(4),
        {"metric": "psnr"},
        BadInput,
        "one of mse, cosine, kl",
    ),
    "quantized twice": (
        digits_copy,
        digits_copy,
        held_out(4),
        {},
        ModelsDiffer,
        "quantized itself",
    ),
    "labels of another name": (
        residual_network,
        digits_copy,
        held_out(4),
        {"label_name": "truth"},
        DataMismatch,
        "'truth'",
    ),
    "labels that name nothing": (
        residual_network,
        digits_copy,
        held_out(4),
        {"labels": np.full(4, -1)},
        DataMismatch,
        "the labels given: every label is negative, and such are left out",
    ),
    "labels beyond the classes": (
        residual_network,
        digits_copy,
        held_out(4),
        {"labels": np.array([0, 3, 10, 1])},
        DataMismatch,
        "got 10; expected below 10, counted from 0",
    ),
    "one-hot labels": (
        residual_network,
        digits_copy,
        held_out(4),
        {"labels": np.eye(10, dtype=int)[:4]},
        DataMismatch,
        "got 10 a sample; expected 1",
    ),
    "nan in a weight": (
        nan_weight,
        digits_copy,
        held_out(4),
        {},
        NonFiniteValue,
        "weight 'head.weight': the float model's values are not finite; got first nan at index "
        "[1, 2]",
    ),
    "a scale that overflows": (
        residual_network,
        overflowing,
        held_out(4),
        {},
        NonFiniteValue,
        "'head.weight': its scale is so large that codes unfold to infinity",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_input_is_one_line_that_says_where(fault):
    exact, near, data, options, error, text = FAULTS[fault]
    with pytest.raises(error) as caught:
        foldmark.explain(exact(), near(), data, **options)
    assert text in caught.value.sentence()
    assert "\n" not in caught.value.sentence()


def test_integer_outputs_cannot_be_compared():
    def counted(int8):
        model = network(int8, "Relu")
        model.graph.node.append(helper.make_node("ArgMax", ["h1"], ["best"], axis=1))
        del model.graph.output[:]
        model.graph.output.append(
            helper.make_tensor_value_info("best", TensorProto.INT64, ["n", 1])
        )
        return model

    data = {"x": np.zeros((4, 8), np.float32) + 1}
    with pytest.raises(OutputNotComparable, match=r"no output holds floats; got best int64"):
        foldmark.explain(counted(False), counted(True), data)


def overflowing_image():
    data = held_out(4)
    data["image"] = data["image"].copy()
    data["image"][2, 0, 3, 1] = 3e38
    return data


def test_an_output_that_is_not_finite_is_refused_with_model_sample_and_index():
    given = residual_network(), digits_copy(), overflowing_image()
    with pytest.raises(NonFiniteValue) as caught:
        foldmark.explain(*given, batch_size=2)
    said = caught.value.sentence()
    assert said.startswith("output 'logits': the float model gives NaN or infinity; got first ")
    assert "at [2, 0]" in said


def test_an_account_that_does_not_close_says_so_first():
    data = {"x": np.random.default_rng(1).standard_normal((16, 8)).astype(np.float32)}
    report = foldmark.explain(network(False, "Relu"), network(True, "Relu"), data, cures=False)
    assert "does not close" not in report.verdict
    open_one = replace(report, closure=replace(report.closure, sites=1.5 * report.closure.total))
    assert "; the account does not close (+5e-01): its entries" in open_one.verdict
