"""Every rule against central differences in float64 and against itself in float32."""

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from tests.derivative.checking import check, check_single, derive, model_of

from foldmark.runtimes.onnxruntime import Session

RNG = np.random.default_rng(3)


def values(*shape: int, low: float = -2.0, high: float = 2.0) -> NDArray[np.float64]:
    """Return values no two of which are near each other, none near zero."""
    count = int(np.prod(shape, dtype=int))
    steps = np.linspace(low, high, count + 2)[1:-1] + 0.37 * (high - low) / (count + 2)
    return RNG.permutation(steps).reshape(shape)


UNARY = [
    ("Abs", {}),
    ("Acos", {"low": -0.9, "high": 0.9}),
    ("Acosh", {"low": 1.2, "high": 3.0}),
    ("Asin", {"low": -0.9, "high": 0.9}),
    ("Asinh", {}),
    ("Atan", {}),
    ("Atanh", {"low": -0.9, "high": 0.9}),
    ("Cos", {}),
    ("Cosh", {}),
    ("Erf", {}),
    ("Exp", {}),
    ("HardSwish", {"low": -5, "high": 5}),
    ("Identity", {}),
    ("Log", {"low": 0.1, "high": 3}),
    ("Mish", {}),
    ("Neg", {}),
    ("Reciprocal", {"low": 0.3, "high": 3}),
    ("Relu", {}),
    ("Sigmoid", {}),
    ("Sin", {}),
    ("Sinh", {}),
    ("Softplus", {}),
    ("Softsign", {}),
    ("Sqrt", {"low": 0.1, "high": 3}),
    ("Tan", {"low": -1.2, "high": 1.2}),
    ("Tanh", {}),
]


@pytest.mark.parametrize(("operator", "span"), UNARY, ids=[name for name, _ in UNARY])
def test_unary(operator: str, span: dict[str, float]) -> None:
    feeds = {"x": values(3, 4, **span)}
    check(model_of([helper.make_node(operator, ["x"], ["y"])], feeds), feeds, ["x"])


WITH_ATTRIBUTES = [
    ("Celu", {"alpha": 0.7}, 18),
    ("Elu", {"alpha": 0.7}, 18),
    ("Gelu", {}, 20),
    ("Gelu", {"approximate": "tanh"}, 20),
    ("HardSigmoid", {}, 18),
    ("HardSigmoid", {"alpha": -0.4, "beta": 0.3}, 18),
    ("LeakyRelu", {"alpha": 0.2}, 18),
    ("LpNormalization", {"axis": 1, "p": 1}, 18),
    ("LpNormalization", {"axis": 0, "p": 2}, 18),
    ("LogSoftmax", {"axis": 0}, 18),
    ("LogSoftmax", {}, 13),
    ("Selu", {}, 18),
    ("Softmax", {"axis": 0}, 18),
    ("Softmax", {}, 13),
    ("Swish", {"alpha": 1.3}, 24),
    ("ThresholdedRelu", {"alpha": 0.6}, 18),
    ("Flatten", {"axis": 1}, 18),
    ("Transpose", {"perm": [1, 0]}, 18),
    ("Transpose", {}, 18),
    ("MeanVarianceNormalization", {"axes": [1]}, 18),
]


@pytest.mark.parametrize(("operator", "attributes", "opset"), WITH_ATTRIBUTES)
def test_unary_with_attributes(operator: str, attributes: dict[str, object], opset: int) -> None:
    feeds = {"x": values(4, 5, low=-4, high=4)}
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    check(model_of([node], feeds, opset=opset), feeds, ["x"])


BROADCASTS = [
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((4,), (3, 4)),
    ((2, 3, 4), (3, 1)),
    ((2, 1, 4), (3, 1)),
    ((), (3, 4)),
    ((1, 4), (3, 4)),
    ((1, 1), (4,)),
]


@pytest.mark.parametrize(("left", "right"), BROADCASTS)
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean"])
def test_binary(operator: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    feeds = {"a": values(*left, low=0.3, high=2), "b": values(*right, low=0.5, high=1.7) + 0.011}
    node = helper.make_node(operator, ["a", "b"], ["y"])
    check(model_of([node], feeds), feeds, ["a", "b"])


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, -1.0])
def test_power_by_a_constant(exponent: float) -> None:
    feeds = {"x": values(3, 4, low=0.2, high=2)}
    node = helper.make_node("Pow", ["x", "p"], ["y"])
    check(model_of([node], feeds, constants={"p": np.float64(exponent)}), feeds, ["x"])


@pytest.mark.parametrize("exponent", [2.0, 3.0, 4.0])
def test_power_of_negative_values(exponent: float) -> None:
    feeds = {"x": values(3, 4)}
    node = helper.make_node("Pow", ["x", "p"], ["y"])
    check(model_of([node], feeds, constants={"p": np.float64(exponent)}), feeds, ["x"])


def test_three_operands() -> None:
    feeds = {"a": values(3, 1), "b": values(4), "c": values(3, 4)}
    for operator in ("Sum", "Mean", "Max", "Min"):
        node = helper.make_node(operator, ["a", "b", "c"], ["y"])
        check(model_of([node], feeds), feeds, ["a", "b", "c"])


def test_remainder() -> None:
    feeds = {"a": values(3, 4, low=0.1, high=5), "b": np.array([0.7, 0.9, 1.3, 2.1])}
    node = helper.make_node("Mod", ["a", "b"], ["y"], fmod=1)
    check(model_of([node], feeds), feeds, ["a", "b"])


@pytest.mark.parametrize("slope", [(4,), (1,), (3, 1)])
def test_parametric_relu(slope: tuple[int, ...]) -> None:
    feeds = {"x": values(3, 4), "a": values(*slope)}
    check(model_of([helper.make_node("PRelu", ["x", "a"], ["y"])], feeds), feeds, ["x", "a"])


@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((4,), (3, 4)), ((3, 1), ())])
def test_where(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    feeds = {
        "c": np.arange(12).reshape(3, 4) % 3 == 0,
        "a": values(*shapes[0]),
        "b": values(*shapes[1]),
    }
    check(model_of([helper.make_node("Where", ["c", "a", "b"], ["y"])], feeds), feeds, ["a", "b"])


def test_clip() -> None:
    feeds = {"x": values(4, 5), "low": np.float64(-0.81), "high": np.float64(1.07)}
    node = helper.make_node("Clip", ["x", "low", "high"], ["y"])
    check(model_of([node], feeds), feeds, ["x", "low", "high"])
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    check(
        model_of([node], {k: feeds[k] for k in ("x", "high")}),
        {k: feeds[k] for k in ("x", "high")},
        ["x"],
    )


MATMULS = [
    ((3, 4), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 3, 4), (1, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (3, 4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 5)),
]


@pytest.mark.parametrize(("left", "right"), MATMULS)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    feeds = {"a": values(*left), "b": values(*right)}
    check(model_of([helper.make_node("MatMul", ["a", "b"], ["y"])], feeds), feeds, ["a", "b"])


@pytest.mark.parametrize("flip_a", [0, 1])
@pytest.mark.parametrize("flip_b", [0, 1])
@pytest.mark.parametrize("bias", [(5,), (3, 5), (3, 1), ()])
def test_gemm(flip_a: int, flip_b: int, bias: tuple[int, ...]) -> None:
    feeds = {
        "a": values(*((4, 3) if flip_a else (3, 4))),
        "b": values(*((5, 4) if flip_b else (4, 5))),
        "c": values(*bias),
    }
    node = helper.make_node(
        "Gemm", ["a", "b", "c"], ["y"], alpha=0.7, beta=1.3, transA=flip_a, transB=flip_b
    )
    check(model_of([node], feeds), feeds, ["a", "b", "c"])


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij,bkj->bik", [(2, 3, 4), (2, 5, 4)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("bhid,bhjd->bhij", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("ij->j", [(3, 4)]),
        ("ij,k->ik", [(3, 4), (2,)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
        ("ij,jk", [(2, 3), (3, 4)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    names = ["a", "b", "c"][: len(shapes)]
    feeds = {name: values(*shape) for name, shape in zip(names, shapes, strict=True)}
    node = helper.make_node("Einsum", names, ["y"], equation=equation)
    check(model_of([node], feeds), feeds, names)


CONVOLUTIONS = [
    ((2, 3, 9), (4, 3, 3), {}),
    ((2, 3, 7, 8), (4, 3, 3, 2), {}),
    ((2, 3, 7, 8), (4, 3, 3, 2), {"pads": [1, 0, 2, 1]}),
    ((2, 3, 7, 8), (4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 8, 8), (4, 3, 3, 3), {"strides": [3, 2]}),
    ((2, 3, 9, 9), (4, 3, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    ((2, 3, 11, 10), (4, 3, 3, 3), {"dilations": [2, 1], "strides": [2, 3]}),
    ((2, 4, 7, 8), (6, 2, 3, 3), {"group": 2, "strides": [2, 1]}),
    ((2, 4, 7, 8), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    ((2, 4, 7, 8), (8, 1, 3, 3), {"group": 4, "strides": [2, 2], "pads": [0, 1, 1, 0]}),
    ((2, 3, 7, 8), (4, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((2, 3, 7, 8), (4, 3, 2, 2), {"auto_pad": "SAME_LOWER"}),
    ((2, 3, 7, 8), (4, 3, 3, 3), {"auto_pad": "VALID", "strides": [3, 3]}),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"strides": [1, 2, 2]}),
    ((2, 3, 6, 6), (4, 3, 1, 1), {"strides": [2, 2]}),
    # Weights whose gradient is a product for each tap: samples summed after it or within it.
    ((2, 3, 5, 6), (4, 3, 1, 1), {}),
    ((2, 9, 2, 2), (8, 9, 1, 1), {"pads": [1, 0, 0, 0]}),
    ((2, 8, 7, 6), (3, 8, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ((2, 16, 2, 3), (18, 8, 2, 2), {"group": 2, "dilations": [1, 2], "pads": [1, 0, 0, 0]}),
    ((3, 16, 5), (4, 8, 3), {"group": 2, "strides": [2]}),
    ((2, 4, 7, 8), (4, 1, 3, 3), {"group": 4, "strides": [2, 2], "dilations": [2, 1]}),
    ((2, 3, 9, 8), (3, 1, 5, 5), {"group": 3}),
]


@pytest.mark.parametrize(("image", "kernel", "attributes"), CONVOLUTIONS)
def test_conv(
    image: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, object]
) -> None:
    feeds = {"x": values(*image), "w": values(*kernel), "b": values(kernel[0])}
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **attributes)
    check(model_of([node], feeds), feeds, ["x", "w", "b"])


@pytest.mark.parametrize(
    ("image", "kernel", "attributes"),
    [
        ((2, 12, 6, 6), (24, 12, 1, 1), {}),
        ((2, 12, 6, 6), (12, 1, 3, 3), {"group": 12, "pads": [1] * 4}),
        ((2, 12, 6, 6), (24, 12, 3, 3), {"strides": [2, 2], "pads": [1] * 4}),
    ],
)
def test_a_weight_gradient_takes_no_window_as_large_as_the_image(
    image: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, object]
) -> None:
    """As a convolution of the image with the response it took ten forward passes."""
    feeds = {"x": values(*image).astype(np.float32), "w": values(*kernel).astype(np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    _, derivative = derive(model_of([node], feeds), feeds, ["x", "w"])
    nodes = derivative.model.model.graph.node
    assert [each.op_type for each in nodes if each.op_type == "Conv"] == ["Conv"]
    assert len(nodes) < 12 + 8 * np.prod(kernel[2:])


TRANSPOSED = [
    ((2, 3, 5), (3, 4, 3), {}),
    ((2, 3, 4, 5), (3, 4, 3, 2), {"strides": [2, 2]}),
    ((2, 3, 4, 5), (3, 4, 3, 3), {"strides": [2, 3], "pads": [1, 0, 1, 2]}),
    ((2, 3, 4, 5), (3, 4, 3, 3), {"strides": [2, 2], "output_padding": [1, 1]}),
    ((2, 3, 4, 5), (3, 4, 2, 3), {"dilations": [2, 2]}),
    ((2, 4, 4, 5), (4, 3, 3, 3), {"group": 2, "strides": [2, 1]}),
    ((2, 4, 4, 5), (4, 1, 3, 3), {"group": 4, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 4, 5), (3, 4, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((2, 3, 4, 5), (3, 4, 3, 3), {"output_shape": [8, 10], "strides": [2, 2]}),
    ((2, 9, 4, 5), (9, 8, 3, 2), {"strides": [2, 3], "pads": [1, 0, 1, 2]}),
    ((2, 9, 2, 2), (9, 8, 1, 1), {}),
    ((2, 3, 4, 5), (3, 1, 3, 3), {"group": 3, "strides": [2, 2], "output_padding": [1, 1]}),
]


@pytest.mark.parametrize(("image", "kernel", "attributes"), TRANSPOSED)
def test_conv_transpose(
    image: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, object]
) -> None:
    channels = kernel[1] * int(attributes.get("group", 1))
    feeds = {"x": values(*image), "w": values(*kernel), "b": values(channels)}
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **attributes)
    check(model_of([node], feeds), feeds, ["x", "w", "b"])


POOLS = [
    {"kernel_shape": [2, 2]},
    {"kernel_shape": [3, 2], "strides": [2, 2]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [2, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"kernel_shape": [3, 3], "strides": [4, 4]},
]


@pytest.mark.parametrize("attributes", POOLS)
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_pool(operator: str, attributes: dict[str, object]) -> None:
    feeds = {"x": values(2, 3, 7, 8)}
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    check(model_of([node], feeds, opset=19), feeds, ["x"])


@pytest.mark.parametrize("attributes", POOLS[:4])
def test_average_pool_with_padding_counted(attributes: dict[str, object]) -> None:
    feeds = {"x": values(2, 3, 7, 8)}
    node = helper.make_node("AveragePool", ["x"], ["y"], count_include_pad=1, **attributes)
    check(model_of([node], feeds, opset=19), feeds, ["x"])


def test_dilated_pools() -> None:
    feeds = {"x": values(2, 3, 9, 8)}
    for operator in ("MaxPool", "AveragePool"):
        node = helper.make_node(operator, ["x"], ["y"], kernel_shape=[3, 2], dilations=[2, 3])
        check(model_of([node], feeds, opset=19), feeds, ["x"])


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pool(operator: str) -> None:
    feeds = {"x": values(2, 3, 4, 5)}
    check(model_of([helper.make_node(operator, ["x"], ["y"])], feeds), feeds, ["x"])


@pytest.mark.parametrize(("axis", "scale"), [(-1, (4,)), (1, (3, 4)), (2, (4,)), (-2, (3, 4))])
def test_layer_normalization(axis: int, scale: tuple[int, ...]) -> None:
    feeds = {"x": values(2, 3, 4), "s": values(*scale), "b": values(*scale)}
    node = helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"], axis=axis, epsilon=1e-3)
    check(model_of([node], feeds), feeds, ["x", "s", "b"])


def test_rms_normalization() -> None:
    feeds = {"x": values(2, 3, 4), "s": values(4)}
    node = helper.make_node("RMSNormalization", ["x", "s"], ["y"], axis=-1)
    check(model_of([node], feeds, opset=23), feeds, ["x", "s"])


def test_batch_normalization() -> None:
    feeds = {
        "x": values(2, 3, 4, 5),
        "s": values(3),
        "b": values(3),
        "m": values(3),
        "v": values(3, low=0.5, high=2),
    }
    node = helper.make_node("BatchNormalization", list(feeds), ["y"])
    check(model_of([node], feeds), feeds, list(feeds))


def test_instance_normalization() -> None:
    feeds = {"x": values(2, 3, 4, 5), "s": values(3), "b": values(3)}
    node = helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"])
    check(model_of([node], feeds), feeds, ["x", "s", "b"])


@pytest.mark.parametrize(("opset", "scale"), [(18, 2), (21, 4)])
def test_group_normalization(opset: int, scale: int) -> None:
    feeds = {"x": values(2, 4, 3, 3), "s": values(scale), "b": values(scale)}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    node = helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)
    check_single(model_of([node], feeds, opset=opset), feeds, ["x", "s", "b"])


def test_shrink() -> None:
    feeds = {"x": values(4, 5).astype(np.float32)}
    node = helper.make_node("Shrink", ["x"], ["y"], lambd=0.83, bias=0.1)
    check_single(model_of([node], feeds), feeds, ["x"])


REDUCTIONS = [
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
]


@pytest.mark.parametrize("operator", REDUCTIONS)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[1], [0, -1], None])
@pytest.mark.parametrize("opset", [13, 18])
def test_reduction(operator: str, keepdims: int, axes: list[int] | None, opset: int) -> None:
    feeds = {"x": values(2, 3, 4, low=0.3, high=2)}
    as_input = opset >= 18 or operator == "ReduceSum"
    constants = {"axes": np.array(axes)} if axes is not None and as_input else {}
    attributes = {"axes": axes} if axes is not None and not as_input else {}
    inputs = ["x", "axes"] if constants else ["x"]
    node = helper.make_node(operator, inputs, ["y"], keepdims=keepdims, **attributes)
    check(model_of([node], feeds, opset=opset, constants=constants), feeds, ["x"])


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_running_sum(reverse: int, exclusive: int) -> None:
    feeds = {"x": values(3, 4)}
    node = helper.make_node("CumSum", ["x", "k"], ["y"], reverse=reverse, exclusive=exclusive)
    check(model_of([node], feeds, constants={"k": np.array(1)}), feeds, ["x"])


LAYOUTS = [
    ("Reshape", {"s": [4, 6]}, {}),
    ("Reshape", {"s": [0, -1]}, {}),
    ("Squeeze", {"s": [1]}, {}),
    ("Unsqueeze", {"s": [0, 2]}, {}),
    ("Expand", {"s": [5, 2, 2, 3, 4]}, {}),
    ("Tile", {"s": [2, 3, 1, 2]}, {}),
    ("Slice", {"a": [1], "b": [3], "c": [3]}, {}),
    ("Slice", {"a": [-3, 0], "b": [9999, -1], "c": [-1, 2]}, {}),
    ("Slice", {"a": [3], "b": [-9999], "c": [3], "d": [-1]}, {}),
    ("Slice", {"a": [0], "b": [4], "c": [3], "d": [2]}, {}),
    ("Pad", {"s": [0, 1, 0, 2, 1, 0, 3, 0]}, {}),
    ("Pad", {"s": [0, 0, -1, 2, 0, 0, 0, -1]}, {}),
    ("Pad", {"s": [0, 0, 1, 2, 0, 0, 1, 3]}, {"mode": "reflect"}),
    ("Pad", {"s": [0, 0, 1, 2, 0, 0, 1, 3]}, {"mode": "edge"}),
    ("Trilu", {"k": 1}, {"upper": 1}),
    ("Trilu", {"k": -1}, {"upper": 0}),
    ("Transpose", {}, {"perm": [3, 0, 2, 1]}),
]


@pytest.mark.parametrize(("operator", "parameters", "attributes"), LAYOUTS)
def test_layout(
    operator: str, parameters: dict[str, list[int]], attributes: dict[str, object]
) -> None:
    if operator == "Pad" and attributes:
        parameters = {"s": [0, 0, 1, 2, 0, 0, 1, 3]}
    feeds = {"x": values(2, 1, 3, 4)}
    constants = {name: np.array(value, np.int64) for name, value in parameters.items()}
    node = helper.make_node(operator, ["x", *constants], ["y"], **attributes)
    check(model_of([node], feeds, constants=constants), feeds, ["x"])


def test_pad_takes_a_value() -> None:
    feeds = {"x": values(2, 3), "v": np.float64(0.3)}
    node = helper.make_node("Pad", ["x", "p", "v"], ["y"])
    check(model_of([node], feeds, constants={"p": np.array([1, 0, 0, 2])}), feeds, ["x", "v"])


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode: str) -> None:
    feeds = {"x": values(2, 8, 3, 2)}
    node = helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=2, mode=mode)
    check(model_of([node], feeds), feeds, ["x"])


def test_space_to_depth() -> None:
    feeds = {"x": values(2, 3, 4, 6)}
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2)
    check(model_of([node], feeds), feeds, ["x"])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat_and_split(axis: int) -> None:
    feeds = {"a": values(2, 3), "b": values(2, 3), "c": values(2, 3)}
    node = helper.make_node("Concat", ["a", "b", "c"], ["y"], axis=axis)
    model = model_of([node], feeds)
    check(model, feeds, ["a", "b", "c"])
    check(model, feeds, ["b"])
    feeds = {"x": values(4, 6)}
    sizes = {"s": np.array([1, 3] if axis == 0 else [2, 4])}
    split = helper.make_node("Split", ["x", "s"], ["p", "q"], axis=axis)
    for used in (["p", "q"], ["q"]):
        check(model_of([split], feeds, constants=sizes, outputs=used), feeds, ["x"])


def test_reverse_sequence() -> None:
    feeds = {"x": values(4, 3, 2)}
    node = helper.make_node("ReverseSequence", ["x", "n"], ["y"], time_axis=0, batch_axis=1)
    check(model_of([node], feeds, constants={"n": np.array([4, 2, 3])}), feeds, ["x"])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [1, -1, [1], [0, 2, 0], [[0, 1], [2, 2], [-1, 0]]])
def test_gather(axis: int, indices: object) -> None:
    feeds = {"x": values(3, 4, 3)}
    node = helper.make_node("Gather", ["x", "i"], ["y"], axis=axis)
    check(model_of([node], feeds, constants={"i": np.array(indices)}), feeds, ["x"])


def test_gather_by_an_input() -> None:
    feeds = {"x": values(5, 4), "i": np.array([[3, 1], [1, 0]], np.int32)}
    check(model_of([helper.make_node("Gather", ["x", "i"], ["y"])], feeds), feeds, ["x"])


def test_gather_elements() -> None:
    feeds = {"x": values(3, 4)}
    node = helper.make_node("GatherElements", ["x", "i"], ["y"], axis=1)
    indices = {"i": np.array([[0, 0], [3, 1], [2, -1]])}
    check(model_of([node], feeds, constants=indices), feeds, ["x"])


@pytest.mark.parametrize("batch_dims", [0, 1])
def test_gather_nd(batch_dims: int) -> None:
    feeds = {"x": values(2, 3, 4)}
    node = helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=batch_dims)
    indices = {"i": np.array([[[1], [0]], [[1], [1]]])}
    check(model_of([node], feeds, constants=indices), feeds, ["x"])


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_scatter(reduction: str) -> None:
    feeds = {"x": values(4, 3), "u": values(2, 3)}
    elements = helper.make_node(
        "ScatterElements", ["x", "i", "u"], ["y"], axis=0, reduction=reduction
    )
    indices = {"i": np.array([[0, 1, 2], [3, 0, 1]])}
    check(model_of([elements], feeds, constants=indices), feeds, ["x", "u"])
    rows = helper.make_node("ScatterND", ["x", "i", "u"], ["y"], reduction=reduction)
    check(model_of([rows], feeds, constants={"i": np.array([[1], [3]])}), feeds, ["x", "u"])


def test_top_k() -> None:
    feeds = {"x": values(3, 5)}
    node = helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=1)
    check(model_of([node], feeds, constants={"k": np.array([2])}), feeds, ["x"])


RESIZES = [
    {"mode": "nearest"},
    {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    {"mode": "linear"},
    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    {"mode": "cubic"},
]


@pytest.mark.parametrize("attributes", RESIZES)
@pytest.mark.parametrize("by", ["scales", "sizes"])
def test_resize(attributes: dict[str, object], by: str) -> None:
    feeds = {"x": values(1, 2, 4, 5)}
    if by == "scales":
        constants = {"s": np.array([1, 1, 1.5, 2], np.float32)}
        inputs = ["x", "", "s"]
    else:
        constants = {"s": np.array([1, 2, 7, 3])}
        inputs = ["x", "", "", "s"]
    node = helper.make_node("Resize", inputs, ["y"], **attributes)
    check(model_of([node], feeds, constants=constants), feeds, ["x"])


def test_dropout_is_the_identity() -> None:
    feeds = {"x": values(3, 4)}
    check(model_of([helper.make_node("Dropout", ["x"], ["y"])], feeds), feeds, ["x"])


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
def test_recurrent(operator: str) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    feeds = {
        "x": values(4, 2, 3),
        "w": 0.3 * values(1, gates * 2, 3),
        "r": 0.3 * values(1, gates * 2, 2),
        "b": 0.3 * values(1, gates * 4),
    }
    node = helper.make_node(operator, ["x", "w", "r", "b"], ["y", "h"], hidden_size=2)
    for outputs in (["y"], ["y", "h"], ["h"]):
        check(model_of([node], feeds, outputs=outputs), feeds, ["x", "w", "r", "b"], tolerance=1e-5)


RARE = [
    ("LRN", {"size": 3, "alpha": 0.3}, (1, 5, 3, 3)),
    ("LpPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, (1, 2, 4, 4)),
]


@pytest.mark.parametrize(("operator", "attributes", "shape"), RARE)
def test_rare(operator: str, attributes: dict[str, object], shape: tuple[int, ...]) -> None:
    feeds = {"x": values(*shape)}
    check(model_of([helper.make_node(operator, ["x"], ["y"], **attributes)], feeds), feeds, ["x"])


@pytest.mark.parametrize(
    ("operator", "inputs"),
    [
        ("Gelu", ["x"]),
        ("FastGelu", ["x"]),
        ("FastGelu", ["x", "b"]),
        ("BiasGelu", ["x", "b"]),
        ("QuickGelu", ["x"]),
    ],
)
def test_runtime_operators_against_float32_differences(operator: str, inputs: list[str]) -> None:
    feeds = {"x": values(3, 4).astype(np.float32), "b": values(4).astype(np.float32)}
    feeds = {name: feeds[name] for name in inputs}
    node = helper.make_node(operator, inputs, ["y"], domain="com.microsoft")
    check_single(model_of([node], feeds), feeds, inputs)


@pytest.mark.parametrize("operator", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_composites_of_the_runtime(operator: str) -> None:
    feeds = {"x": values(2, 3, 4), "s": values(2, 3, 4), "g": values(4), "b": values(4)}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    if "Simplified" in operator:
        del feeds["b"]
    node = helper.make_node(
        operator, list(feeds), ["y", "", "", "t"], domain="com.microsoft", epsilon=1e-3
    )
    check_single(model_of([node], feeds, outputs=["y", "t"]), feeds, list(feeds))


def test_casts_pass_the_gradient_in_the_input_type() -> None:
    feeds = {"x": values(3, 4)}
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=onnx.TensorProto.FLOAT),
        helper.make_node("CastLike", ["h", "x"], ["y"]),
    ]
    _, derivative = derive(model_of(nodes, feeds), feeds, ["x"])
    got = Session(derivative.model).run(feeds)[derivative.gradients["x"]]
    expected = np.random.default_rng(7).standard_normal((3, 4)).astype(np.float32)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, expected)
