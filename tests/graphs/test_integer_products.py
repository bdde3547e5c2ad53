"""Integer products that become real later, weights that Cast and Mul decode, packed weights."""

import warnings

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    QuantFormat,
)
from tests.graphs.networks import WIDEST, Network, draw
from tests.graphs.proof import Arithmetic, constants, prove, run

from foldmark.errors import OperatorNotSupported
from foldmark.graphs.reading.read import read_quantized
from foldmark.graphs.sites import QuantizedGraph, SiteKind

W, B = draw(6, 4), draw(4, seed=1)
X = {"x": 2 * draw(5, 6, seed=2)}
IMAGE = {"x": draw(2, 3, 6, 6, seed=5)}


def close(graph: QuantizedGraph, feeds: dict[str, np.ndarray]) -> None:
    """The simulated model computes what the integer kernels do, in another order."""
    real, simulated = run(graph.original, feeds), run(graph.simulated, feeds)
    for name, values in real.items():
        np.testing.assert_allclose(simulated[name], values, rtol=1e-5, atol=2e-5)


def plain_dense(operator: str = "MatMul", w: np.ndarray = W, bias: bool = False) -> onnx.ModelProto:
    plain = Network()
    plain.input("x", ["n", *([3, 6, 6] if operator == "Conv" else [6])])
    plain.constant("w", w)
    plain.node(operator, ["x", "w"], "product" if bias else "y")
    if bias:
        plain.node("Add", ["product", plain.constant("b", B)], "y")
    plain.output("y")
    return plain.model()


def dynamic(net: Network) -> tuple[str, str, str]:
    """Quantize x at run time; return codes, scale and zero point."""
    outputs = ("x_codes", "x_scale", "x_zero_point")
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], outputs, name="/x_codes"))
    return outputs


def stored(net: Network, w: np.ndarray, axis: int | None, zero: int, dtype) -> tuple[str, str, str]:
    others = tuple(i for i in range(w.ndim) if i != axis)
    spread = np.abs(w).max(others, keepdims=axis is not None)
    scale = (spread / np.float32(WIDEST - 7)).astype(np.float32)
    codes = (np.rint(w / scale) + zero).astype(dtype)
    return (
        net.constant("w_quantized", codes),
        net.constant("w_scale", scale.reshape(-1) if axis is not None else scale.reshape(())),
        net.constant("w_zero_point", np.full(scale.size if axis is not None else (), zero, dtype)),
    )


@pytest.mark.parametrize(("zero", "dtype"), [(0, np.int8), (7, np.int8), (128, np.uint8)])
@pytest.mark.parametrize("axis", [None, 1])
def test_matmul_integer(axis: int | None, zero: int, dtype) -> None:
    net = Network()
    net.input("x", ["n", 6])
    codes, scale, zero_point = dynamic(net)
    w, w_scale, w_zero = stored(net, W, axis, zero, dtype)
    net.node("MatMulInteger", [codes, w, zero_point, w_zero], "acc")
    net.node("Cast", ["acc"], "real", to=TensorProto.FLOAT)
    net.node("Mul", [scale, w_scale], "scales")
    net.node("Mul", ["real", "scales"], "y")
    net.output("y")
    graph = prove(net.model(), plain_dense(), X, arithmetic=Arithmetic.UNCHECKED)
    close(graph, X)
    x_site, w_site = graph.sites
    assert (x_site.name, x_site.encoding.number_format, x_site.encoding.is_dynamic) == (
        "x",
        "uint8",
        True,
    )
    assert (w_site.name, w_site.encoding.axis) == ("w", axis)
    np.testing.assert_array_equal(w_site.encoding.scale, constants(net.model())["w_scale"])


def test_scales_applied_one_after_the_other() -> None:
    net = Network()
    net.input("x", ["n", 6])
    codes, scale, zero_point = dynamic(net)
    w, w_scale, w_zero = stored(net, W, 1, 0, np.int8)
    net.node("MatMulInteger", [codes, w, zero_point, w_zero], "acc")
    net.node("Cast", ["acc"], "real", to=TensorProto.FLOAT)
    net.node("Mul", ["real", scale], "once")
    net.node("Mul", [w_scale, "once"], "twice")
    net.node("Mul", ["twice", net.constant("gain", np.full(4, 3, np.float32))], "y")
    net.output("y")
    plain = Network()
    plain.input("x", ["n", 6])
    plain.node("MatMul", ["x", plain.constant("w", W)], "product")
    plain.node("Mul", ["product", plain.constant("gain", np.full(4, 3, np.float32))], "y")
    plain.output("y")
    graph = prove(net.model(), plain.model(), X, arithmetic=Arithmetic.UNCHECKED)
    close(graph, X)
    np.testing.assert_array_equal(graph.sites[1].encoding.scale, constants(net.model())["w_scale"])


def test_a_fixed_input_scale_folded_into_one_constant() -> None:
    net = Network()
    net.input("x", ["n", 6])
    parameters = [net.constant("x_scale", np.float32(0.05)), net.constant("x_zp", np.uint8(130))]
    net.node("QuantizeLinear", ["x", *parameters], "x_codes")
    w, w_scale, w_zero = stored(net, W, None, 0, np.int8)
    both = np.float32(0.05) * constants(net.model())[w_scale]
    net.node("MatMulInteger", ["x_codes", w, "x_zp", w_zero], "acc")
    net.node("Cast", ["acc"], "real", to=TensorProto.FLOAT)
    net.node("Mul", ["real", net.constant("both", both)], "y")
    net.output("y")
    graph = prove(net.model(), plain_dense(), X, arithmetic=Arithmetic.UNCHECKED)
    close(graph, X)
    assert graph.sites[0].encoding.scale == np.float32(0.05)


def test_an_int32_product_may_be_dequantized() -> None:
    net = Network()
    net.input("x", ["n", 6])
    parameters = [net.constant("x_scale", np.float32(0.05)), net.constant("x_zp", np.uint8(130))]
    net.node("QuantizeLinear", ["x", *parameters], "x_codes")
    w, w_scale, w_zero = stored(net, W, None, 0, np.int8)
    both = np.float32(0.05) * constants(net.model())[w_scale]
    net.node("MatMulInteger", ["x_codes", w, "x_zp", w_zero], "acc")
    net.node("DequantizeLinear", ["acc", net.constant("both", both)], "y")
    net.output("y")
    close(prove(net.model(), plain_dense(), X, arithmetic=Arithmetic.UNCHECKED), X)


def test_a_product_of_two_activations() -> None:
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("x", ["n", 6])
        each.node("Transpose", ["x"], "t", perm=[1, 0])
        each.output("y")
    codes, scale, zero_point = dynamic(net)
    others = ["t_codes", "t_scale", "t_zero_point"]
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", ["t"], others, name="/t_codes"))
    net.node("MatMulInteger", [codes, "t_codes", zero_point, "t_zero_point"], "acc")
    net.node("Cast", ["acc"], "real", to=TensorProto.FLOAT)
    net.node("Mul", [scale, "t_scale"], "scales")
    net.node("Mul", ["real", "scales"], "y")
    plain.node("MatMul", ["x", "t"], "y")
    graph = prove(net.model(), plain.model(), X, arithmetic=Arithmetic.UNCHECKED)
    assert [site.name for site in graph.sites] == ["x", "t"]
    close(graph, X)


def test_a_product_that_is_never_scaled_is_refused_by_name() -> None:
    net = Network()
    net.input("x", ["n", 6])
    codes, _, zero_point = dynamic(net)
    w, _, w_zero = stored(net, W, None, 0, np.int8)
    net.node("MatMulInteger", [codes, w, zero_point, w_zero], "acc")
    net.node("Cast", ["acc"], "y", to=TensorProto.FLOAT)
    net.output("y")
    with pytest.raises(OperatorNotSupported, match="not multiplied by the scale of its input"):
        read_quantized(net.model(), None)


@pytest.mark.parametrize("axis", [None, 0])
def test_conv_integer(axis: int | None) -> None:
    w = draw(4, 3, 3, 3)
    net = Network()
    net.input("x", ["n", 3, 6, 6])
    codes, scale, zero_point = dynamic(net)
    stored_w, w_scale, _ = stored(net, w, axis, 0, np.int8)
    net.constant("zero", np.int8(0))
    if axis == 0:
        shape = net.constant("shape", np.array([1, -1, 1, 1]))
        w_scale = net.node("Reshape", [w_scale, shape], "w_scale_wide")
    net.node("ConvInteger", [codes, stored_w, zero_point, "zero"], "acc")
    net.node("Cast", ["acc"], "real", to=TensorProto.FLOAT)
    net.node("Mul", [scale, w_scale], "scales")
    net.node("Mul", ["real", "scales"], "y")
    net.output("y")
    graph = prove(net.model(), plain_dense("Conv", w), IMAGE, arithmetic=Arithmetic.UNCHECKED)
    close(graph, IMAGE)
    assert graph.sites[1].encoding.axis == axis


@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("bias", [True, False])
def test_matmul_integer_to_float(axis: int | None, bias: bool) -> None:
    net = Network()
    net.input("x", ["n", 6])
    codes, scale, zero_point = dynamic(net)
    w, w_scale, w_zero = stored(net, W, axis, 3, np.int8)
    inputs = [codes, w, scale, w_scale, zero_point, w_zero]
    inputs += [net.constant("b", B)] if bias else []
    net.node("MatMulIntegerToFloat", inputs, "y", "com.microsoft")
    net.output("y")
    graph = prove(
        net.model("com.microsoft"), plain_dense(bias=bias), X, arithmetic=Arithmetic.UNCHECKED
    )
    close(graph, X)
    assert [site.name for site in graph.sites] == ["x", "w"]


@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("bias", [True, False])
def test_dynamic_quantize_matmul(axis: int | None, bias: bool) -> None:
    net = Network()
    net.input("x", ["n", 6])
    w, w_scale, w_zero = stored(net, W, axis, 0, np.int8)
    inputs = ["x", w, w_scale, w_zero, *([net.constant("b", B)] if bias else [])]
    net.node("DynamicQuantizeMatMul", inputs, "y", "com.microsoft")
    net.output("y")
    graph = prove(
        net.model("com.microsoft"), plain_dense(bias=bias), X, arithmetic=Arithmetic.UNCHECKED
    )
    close(graph, X)
    assert [(s.name, s.kind) for s in graph.sites] == [
        ("x", SiteKind.ACTIVATION),
        ("w", SiteKind.WEIGHT),
    ]


@pytest.mark.parametrize("zero", [0, 5])
@pytest.mark.parametrize("form", ["tensor", "columns", "turned", "folded"])
def test_weights_decoded_by_cast_and_mul(form: str, zero: int) -> None:
    net = Network()
    net.input("x", ["n", 6])
    axis = {"tensor": None, "columns": 1, "turned": 1, "folded": 1}[form]
    codes, scale, _ = stored(net, W, axis, zero, np.int8)
    kept = constants(net.model())
    if form in {"turned", "folded"}:
        net.constants = [t for t in net.constants if t.name != "w_quantized"]
        shape = (4, 6) if form == "turned" else (2, 3, 4)
        turned = kept["w_quantized"].T if form == "turned" else kept["w_quantized"]
        net.constant("w_quantized", np.ascontiguousarray(turned).reshape(shape))
    if form == "turned":
        scale = net.constant("scale_column", kept["w_scale"].reshape(4, 1))
    value = net.node("Cast", [codes], "w_cast", to=TensorProto.FLOAT)
    if zero:
        value = net.node("Sub", [value, net.constant("zero", np.float32(zero))], "w_shifted")
    value = net.node("Mul", [value, scale], "w_mul")
    if form == "turned":
        value = net.node("Transpose", [value], "w_turned", perm=[1, 0])
    if form == "folded":
        value = net.node("Reshape", [value, net.constant("shape", np.array([6, 4]))], "w_flat")
    net.node("MatMul", ["x", value], "y")
    net.output("y")
    (site,) = prove(net.model(), plain_dense(), X).sites
    assert (site.name, site.encoding.axis, site.encoding.number_format) == ("w", axis, "int8")
    np.testing.assert_array_equal(site.codes, kept["w_quantized"])
    assert (site.encoding.zero_point is None) == (zero == 0)


def test_rows_gathered_before_they_are_decoded() -> None:
    table = draw(9, 6)
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("ids", ["n"], TensorProto.INT64)
        each.output("y")
    rows = (np.abs(table).max(1, keepdims=True) / 127).astype(np.float32)
    net.constant("table_q", np.rint(table / rows).astype(np.int8))
    net.node("Gather", ["table_q", "ids"], "codes")
    net.node("Gather", [net.constant("table_scale", rows), "ids"], "scales")
    net.node("Cast", ["codes"], "real", to=TensorProto.FLOAT)
    net.node("Mul", ["real", "scales"], "y")
    plain.node("Gather", [plain.constant("table", table), "ids"], "y")
    (site,) = prove(net.model(), plain.model(), {"ids": np.array([1, 8, 3])}).sites
    assert (site.name, site.kind, site.encoding.axis) == ("table", SiteKind.WEIGHT, 0)


def nbits_model(bits: int, symmetric: bool, rows: int, form: QuantFormat) -> tuple:
    w = draw(rows, 12)
    plain = Network(21)
    plain.input("x", ["n", rows])
    plain.node("MatMul", ["x", plain.constant("w", w)], "y")
    plain.output("y")
    original = plain.model()
    config = DefaultWeightOnlyQuantConfig(
        block_size=16, is_symmetric=symmetric, bits=bits, quant_format=form
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        maker = MatMulNBitsQuantizer(original, algo_config=config)
        maker.process()
    return maker.model.model, plain.model(), {"x": draw(3, rows, seed=4)}, w


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("rows", [48, 40])
def test_matmul_nbits(bits: int, symmetric: bool, rows: int) -> None:
    quantized, original, feeds, w = nbits_model(bits, symmetric, rows, QuantFormat.QOperator)
    assert [node.op_type for node in quantized.graph.node] == ["MatMulNBits"]
    graph = prove(quantized, original, feeds, arithmetic=Arithmetic.UNCHECKED)
    close(graph, feeds)
    (site,) = graph.sites
    assert (site.name, site.encoding.number_format) == ("w", f"uint{bits}")
    assert (site.encoding.axis, site.encoding.block_size) == (0, 16)
    assert site.codes.shape == w.shape
    assert site.encoding.scale.shape == site.encoding.zero_point.shape == (3, 12)
    np.testing.assert_array_equal(constants(graph.skeleton)[site.tensor], w)


@pytest.mark.parametrize("symmetric", [True, False])
def test_four_bit_blocks_as_quantize_and_dequantize(symmetric: bool) -> None:
    quantized, original, feeds, _ = nbits_model(4, symmetric, 48, QuantFormat.QDQ)
    graph = prove(quantized, original, feeds)
    (site,) = graph.sites
    assert site.encoding.number_format == ("int4" if symmetric else "uint4")
    assert (site.encoding.axis, site.encoding.block_size) == (0, 16)


def test_matmul_nbits_with_float_zero_points_and_bias() -> None:
    scale = (np.abs(draw(4, 2, seed=3)) + 0.1).astype(np.float32)
    zero = (7.5 + draw(4, 2, seed=7)).astype(np.float32)
    codes = np.random.default_rng(0).integers(0, 16, (4, 32)).astype(np.uint8)
    blocks = (codes.reshape(4, 2, 16) - zero[..., None]) * scale[..., None]
    w = blocks.reshape(4, 32).T + draw(32, 4) / 100
    net, plain = Network(), plain_dense(w=w, bias=True)
    net.input("x", ["n", 32])
    plain.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 32
    net.constant("w_Q4", (codes[:, ::2] | codes[:, 1::2] << 4).reshape(4, 2, 8))
    inputs = ["x", "w_Q4", net.constant("s", scale), net.constant("z", zero), ""]
    given = {"K": 32, "N": 4, "bits": 4, "block_size": 16}
    net.node("MatMulNBits", [*inputs, net.constant("b", B)], "y", "com.microsoft", **given)
    net.output("y")
    graph = prove(
        net.model("com.microsoft"), plain, {"x": draw(3, 32)}, arithmetic=Arithmetic.UNCHECKED
    )
    close(graph, {"x": draw(3, 32)})
    np.testing.assert_array_equal(graph.sites[0].codes.astype(np.uint8), codes.T)


@pytest.mark.parametrize("form", ["int4", "uint4", "uint4 with zero", "packed 4", "packed 8"])
def test_gather_block_quantized(form: str) -> None:
    table = draw(5, 32)
    highest = {"packed 8": 255}.get(form, 15)
    middle = {"int4": 0, "uint4": 0, "packed 8": 128}.get(form, 8)
    scale = np.abs(table.reshape(5, 2, 16)).max(-1) * np.float32(2 / highest)
    low = -8 if form == "int4" else 0
    codes = np.rint(table / np.repeat(scale, 16, 1)) + middle
    codes = np.clip(codes, low, low + highest)
    net, plain = Network(21), Network(21)
    for each in (net, plain):
        each.input("ids", [2, 2], TensorProto.INT64)
        each.output("y")
    whole = codes.astype(np.uint8)
    data = {
        "packed 4": whole[:, ::2] | whole[:, 1::2] << 4,
        "packed 8": whole,
        "int4": codes.astype(ml_dtypes.int4),
    }.get(form, codes.astype(ml_dtypes.uint4))
    inputs = [net.constant("table_Q4", data), "ids", net.constant("s", scale)]
    if form == "uint4 with zero":
        inputs.append(net.constant("z", np.full((5, 2), 8, ml_dtypes.uint4)))
    given = {"block_size": 16, "quantize_axis": 1, "gather_axis": 0}
    if form.startswith("packed"):
        given["bits"] = int(form[-1])
    net.node("GatherBlockQuantized", inputs, "y", "com.microsoft", **given)
    plain.node("Gather", [plain.constant("table", table), "ids"], "y")
    feeds = {"ids": np.array([[1, 4], [0, 1]])}
    graph = prove(net.model("com.microsoft"), plain.model(), feeds)
    (site,) = graph.sites
    assert (site.name, site.encoding.axis, site.encoding.block_size) == ("table", 1, 16)
    np.testing.assert_array_equal(site.codes.astype(int), codes)
