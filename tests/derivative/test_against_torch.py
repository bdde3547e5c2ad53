"""Gradients of whole tensors against PyTorch's, where the runtime computes in float32 alone."""

from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper
from tests.derivative.checking import derive, model_of

from foldmark.runtimes.onnxruntime import Session

torch = pytest.importorskip("torch")
functional = torch.nn.functional

DRAW = np.random.default_rng(8)


def draw(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


def compare(
    node: str,
    attributes: dict[str, object],
    feeds: dict[str, np.ndarray],
    reference: Callable[..., "torch.Tensor"],
    *,
    opset: int = 18,
) -> None:
    """Compare the gradients of sum(weights * y) with respect to every feed."""
    model = model_of([helper.make_node(node, list(feeds), ["y"], **attributes)], feeds, opset=opset)
    _, derivative = derive(model, feeds, list(feeds))
    results = Session(derivative.model).run(feeds)
    leaves = {
        name: torch.from_numpy(array).double().requires_grad_() for name, array in feeds.items()
    }
    y = reference(*leaves.values())
    weights = np.random.default_rng(7).standard_normal(tuple(y.shape)).astype(np.float32)
    (y * torch.from_numpy(weights)).sum().backward()
    for name, leaf in leaves.items():
        expected = leaf.grad.numpy()
        got = results[derivative.gradients[name]]
        np.testing.assert_allclose(
            got, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max(), err_msg=name
        )


CONVOLUTIONS = [
    # image, kernel, (stride, dilation, pad, group)
    ((2, 3, 9), (4, 3, 3), (1, 1, 0, 1)),
    ((2, 3, 9, 8), (4, 3, 3, 3), (1, 1, 1, 1)),
    ((2, 3, 9, 8), (4, 3, 3, 3), (2, 1, 1, 1)),
    ((2, 3, 11, 10), (4, 3, 3, 3), (3, 2, 2, 1)),
    ((2, 4, 9, 8), (6, 2, 3, 3), (2, 1, 1, 2)),
    ((2, 4, 9, 8), (4, 1, 3, 3), (2, 1, 1, 4)),
    ((2, 4, 9, 8), (8, 1, 5, 5), (1, 2, 4, 4)),
    ((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), (2, 1, 1, 1)),
]


@pytest.mark.parametrize(("image", "kernel", "geometry"), CONVOLUTIONS)
def test_conv(
    image: tuple[int, ...], kernel: tuple[int, ...], geometry: tuple[int, int, int, int]
) -> None:
    stride, dilation, pad, group = geometry
    spatial = len(image) - 2
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[spatial - 1]
    compare(
        "Conv",
        {
            "strides": [stride] * spatial,
            "dilations": [dilation] * spatial,
            "pads": [pad] * 2 * spatial,
            "group": group,
        },
        {"x": draw(*image), "w": draw(*kernel), "b": draw(kernel[0])},
        lambda x, w, b: convolve(x, w, b, stride, pad, dilation, group),
    )


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("dilation", [1, 2])
def test_conv_transpose(stride: int, group: int, dilation: int) -> None:
    extra = stride - 1
    compare(
        "ConvTranspose",
        {
            "strides": [stride] * 2,
            "dilations": [dilation] * 2,
            "pads": [1] * 4,
            "output_padding": [extra] * 2,
            "group": group,
        },
        {"x": draw(2, 4, 5, 6), "w": draw(4, 3, 3, 3), "b": draw(3 * group)},
        lambda x, w, b: functional.conv_transpose2d(x, w, b, stride, 1, extra, group, dilation),
    )


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize(("kernel", "stride", "pad"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (3, 3, 0)])
def test_pools(kernel: int, stride: int, pad: int, ceil: int) -> None:
    attributes: dict[str, object] = {
        "kernel_shape": [kernel] * 2,
        "strides": [stride] * 2,
        "pads": [pad] * 4,
        "ceil_mode": ceil,
    }
    compare(
        "MaxPool",
        attributes,
        {"x": draw(2, 3, 9, 8)},
        lambda x: functional.max_pool2d(x, kernel, stride, pad, ceil_mode=bool(ceil)),
        opset=19,
    )
    compare(
        "AveragePool",
        attributes,
        {"x": draw(2, 3, 9, 8)},
        lambda x: functional.avg_pool2d(
            x, kernel, stride, pad, ceil_mode=bool(ceil), count_include_pad=False
        ),
        opset=19,
    )


def test_gelu_erf_and_attention_scores() -> None:
    compare("Gelu", {}, {"x": draw(4, 5)}, functional.gelu, opset=20)
    compare("Erf", {}, {"x": draw(4, 5)}, torch.erf)
    compare("Softmax", {"axis": -1}, {"x": 30 * draw(4, 5)}, lambda x: torch.softmax(x, -1))


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_lstm(direction: str) -> None:
    ways = 1 if direction == "forward" else 2
    hidden, inputs = 3, 4
    feeds = {
        "x": draw(5, 2, inputs),
        "w": draw(ways, 4 * hidden, inputs) * 0.5,
        "r": draw(ways, 4 * hidden, hidden) * 0.5,
        "b": draw(ways, 8 * hidden) * 0.5,
    }

    def gates(matrix: "torch.Tensor") -> "torch.Tensor":
        """From ONNX's order of gates (i o f c) to PyTorch's (i f c o)."""
        i, o, f, c = matrix.chunk(4)
        return torch.cat([i, f, c, o])

    def reference(x, w, r, b):
        flat = []
        for way in range(ways):
            flat += [gates(w[way]), gates(r[way])]
            flat += [gates(b[way][: 4 * hidden]), gates(b[way][4 * hidden :])]
        zero = torch.zeros(ways, 2, hidden, dtype=torch.float64)
        y, _, _ = torch.lstm(x, (zero, zero), flat, True, 1, 0.0, False, ways == 2, False)
        return y.reshape(5, 2, ways, hidden).transpose(1, 2)

    compare("LSTM", {"hidden_size": hidden, "direction": direction}, feeds, reference)
