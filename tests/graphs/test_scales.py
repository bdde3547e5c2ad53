"""Scales that are no normal positive number are named, whatever form the model has."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnxruntime.quantization import QuantFormat
from tests.faults.surgery import change, constant, put
from tests.graphs.networks import Network, draw
from tests.graphs.test_integer_products import dynamic, nbits_model, stored
from tests.graphs.test_qdq import dense_int8

import foldmark
from foldmark.errors import InvalidScheme, NonFiniteValue
from foldmark.graphs.reading.read import read_quantized

W = draw(6, 4)


def matmul_integer() -> onnx.ModelProto:
    net = Network()
    net.input("x", ["n", 6])
    codes, scale, zero_point = dynamic(net)
    w, w_scale, w_zero = stored(net, W, 1, 0, np.int8)
    net.node("MatMulInteger", [codes, w, zero_point, w_zero], "acc")
    net.node("Cast", ["acc"], "real", to=TensorProto.FLOAT)
    net.node("Mul", [scale, w_scale], "scales")
    net.node("Mul", ["real", "scales"], "y")
    net.output("y")
    return net.model()


def cast_and_multiply() -> onnx.ModelProto:
    net = Network()
    net.input("x", ["n", 6])
    codes, scale, _ = stored(net, W, 1, 0, np.int8)
    net.node("Cast", [codes], "real", to=TensorProto.FLOAT)
    net.node("MatMul", ["x", net.node("Mul", ["real", scale], "w")], "y")
    net.output("y")
    return net.model()


def qlinear_matmul() -> onnx.ModelProto:
    net = Network()
    net.input("x", ["n", 6])
    parameters = [net.constant("x_scale", np.float32(0.05)), net.constant("x_zp", np.int8(0))]
    net.node("QuantizeLinear", ["x", *parameters], "x_codes")
    out = [net.constant("y_scale", np.float32(0.1)), net.constant("y_zp", np.int8(0))]
    weight = stored(net, W, 1, 0, np.int8)
    net.node("QLinearMatMul", ["x_codes", *parameters, *weight, *out], "y_codes")
    net.node("DequantizeLinear", ["y_codes", *out], "y")
    net.output("y")
    return net.model()


def blocks() -> onnx.ModelProto:
    return nbits_model(4, True, 48, QuantFormat.QDQ)[0]


def nbits() -> onnx.ModelProto:
    return nbits_model(4, True, 48, QuantFormat.QOperator)[0]


def dense() -> onnx.ModelProto:
    return dense_int8().model()


# Each form with the scale to spoil and the element of it.
FORMS: dict[str, tuple[Callable[[], onnx.ModelProto], str, tuple[int, ...]]] = {
    "activation": (dense, "x_scale", ()),
    "weight per tensor": (dense, "w2_scale", ()),
    "weight per channel": (dense, "w_scale", (2,)),
    "bias": (dense, "b_scale", (3,)),
    "blocks": (blocks, "w_DQ_scales", (1, 5)),
    "MatMulNBits": (nbits, "w_scales", (7, 2)),
    "MatMulInteger": (matmul_integer, "w_scale", (1,)),
    "Cast and Mul": (cast_and_multiply, "w_scale", (1,)),
    "QLinearMatMul": (qlinear_matmul, "w_scale", (1,)),
    "QLinearMatMul's result": (qlinear_matmul, "y_scale", ()),
}


def spoiled(form: str, value: float) -> onnx.ModelProto:
    make, name, index = FORMS[form]
    model = onnx.ModelProto.FromString(make().SerializeToString())
    scale = constant(model, name).copy()
    scale[index] = value
    put(model, name, scale)
    return model


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_scale_that_is_not_finite_is_refused_by_name_and_index(form: str, value: float) -> None:
    _, name, index = FORMS[form]
    with pytest.raises(NonFiniteValue) as caught:
        read_quantized(spoiled(form, value), None)
    assert caught.value.where == f"scale {name!r}"
    assert caught.value.got == f"{value}" + (f" at {list(index)}" if index else "")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.0, "is 0, so that all its codes stand for 0"),
        (-0.01, "is -0.01, below 0, so that larger values get smaller codes"),
        (1e-41, "is 1e-41, below the smallest normal number of its type (1.18e-38)"),
    ],
)
def test_a_scale_that_is_odd_is_named_and_read(form: str, value: float, told: str) -> None:
    _, name, index = FORMS[form]
    found = read_quantized(spoiled(form, value), None).odd_scales
    if value < 0 and form in {"blocks", "MatMulNBits"}:  # every other of theirs is below 0
        assert found == ()
        return
    (odd,) = found
    place = f" at {list(index)}" if index else ""
    assert str(odd).startswith(f"Scale {name!r}{place} {told}")
    assert odd.count == 1


def test_a_sound_model_has_no_odd_scale() -> None:
    for make in {make for make, *_ in FORMS.values()}:
        assert read_quantized(make(), None).odd_scales == ()


def test_the_report_tells_of_it() -> None:
    plain = Network()
    plain.input("x", ["n", 6])
    plain.node("MatMul", ["x", plain.constant("w", W)], "y")
    plain.output("y")
    model = cast_and_multiply()
    change(model, "w_scale", lambda scale: np.where(np.arange(4) % 2, 0, scale))
    report = foldmark.explain(plain.model(), model, {"x": draw(5, 6, seed=2)}, cures=False)
    told = (
        "Scale 'w_scale' at [1] is 0, so that all its codes stand for 0; 1 more element is like "
        "that."
    )
    assert told in report.notes
    assert report.entries[0].site.name == "w"
    assert report.entries[0].share == pytest.approx(1)


MISFITS = {
    "too many": ("w_scale", np.ones(5, np.float32), "shape [5]; expected [4]"),
    "a matrix": ("w_scale", np.ones((2, 2), np.float32), "shape [2, 2]; expected [4]"),
    "none": ("w2_scale", np.ones(0, np.float32), "shape [0]; expected [6]"),
    "zero points": ("w_zero_point", np.zeros(3, np.int8), "shape [3]; expected [4]"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_scale_that_does_not_fit_its_tensor_is_refused_by_name(misfit: str) -> None:
    name, array, text = MISFITS[misfit]
    model = dense()
    put(model, name, array)
    with pytest.raises(InvalidScheme) as caught:
        read_quantized(model, None)
    assert caught.value.where == f"scale {name.replace('zero_point', 'scale')!r}"
    assert f"got {text}" in caught.value.sentence()


def node(model: onnx.ModelProto, operator: str, output: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.op_type == operator and output in n.output)


def test_an_axis_that_is_not_there_is_refused_by_name() -> None:
    model = dense()
    node(model, "DequantizeLinear", "w_dq").attribute[0].i = 7
    with pytest.raises(InvalidScheme, match=r"scale 'w_scale': it runs along axis 7 of a tensor"):
        read_quantized(model, None)


def test_a_block_of_less_than_one_element_is_refused_by_name() -> None:
    model = dense()
    found = node(model, "DequantizeLinear", "w_dq")
    found.attribute.append(onnx.helper.make_attribute("block_size", -4))
    with pytest.raises(InvalidScheme, match=r"node '/w_dq': .*; got block_size -4"):
        read_quantized(model, None)


def test_a_node_that_lacks_what_it_needs_is_refused_by_name() -> None:
    model = dense()
    del node(model, "DequantizeLinear", "w_dq").input[1:]
    with pytest.raises(InvalidScheme, match=r"node '/w_dq': DequantizeLinear lacks inputs; got"):
        read_quantized(model, None)
    model = nbits()
    kept = [item for item in model.graph.node[0].attribute if item.name != "block_size"]
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.extend(kept)
    with pytest.raises(InvalidScheme, match="MatMulNBits lacks the attribute 'block_size'"):
        read_quantized(model, None)
