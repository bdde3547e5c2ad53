"""Float operators of com.microsoft that an optimizer made, written in ONNX's own operators."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from foldmark.errors import OperatorNotSupported
from foldmark.graphs.reading.nodes import attributes
from foldmark.graphs.reading.shapes import rank_of
from foldmark.graphs.reading.workspace import Workspace

__all__ = [
    "bias_gelu",
    "embed_layer_normalization",
    "fast_gelu",
    "fused_conv",
    "fused_gemm",
    "fused_matmul",
    "gelu",
    "quick_gelu",
    "simplified_layer_normalization",
    "skip_layer_normalization",
    "skip_simplified_layer_normalization",
]


class Steps:
    """Writes the operators that one node stands for; the last gives the node's output."""

    def __init__(self, space: Workspace, node: onnx.NodeProto) -> None:
        self.space, self.node = space, node
        self.given = attributes(node)
        self.inputs = [space.value(name) if name else "" for name in node.input]

    def input(self, place: int) -> str:
        """Return an input's name, "" when it is absent."""
        return self.inputs[place] if place < len(self.inputs) else ""

    def output(self, place: int = 0) -> str:
        """Return an output's name, "" when nobody wants it."""
        return str(self.node.output[place]) if place < len(self.node.output) else ""

    def do(self, operator: str, *inputs: str, into: str = "", **given: Any) -> str:
        """Write an operator and return its output."""
        name = into or self.space.fresh(f"{self.node.output[0]}_{operator.lower()}")
        label = f"{self.node.name}_{operator.lower()}" if self.node.name else name
        return self.space.emit(operator, inputs, name, name=label, attributes=given)

    def number(self, value: float) -> str:
        """Return a float constant."""
        return self.space.constant(np.asarray(value, np.float32), f"{self.node.output[0]}_number")

    def integers(self, values: Sequence[int]) -> str:
        """Return a constant list of int64."""
        return self.space.constant(np.asarray(values, np.int64), f"{self.node.output[0]}_indices")


def gelu(space: Workspace, node: onnx.NodeProto) -> None:
    """Read Gelu: 0.5 x (1 + erf(x / sqrt(2)))."""
    steps = Steps(space, node)
    _gelu(steps, steps.input(0))


def bias_gelu(space: Workspace, node: onnx.NodeProto) -> None:
    """Read BiasGelu: Gelu of a sum."""
    steps = Steps(space, node)
    _gelu(steps, steps.do("Add", steps.input(0), steps.input(1)))


def _gelu(steps: Steps, x: str) -> None:
    error = steps.do("Erf", steps.do("Div", x, steps.number(math.sqrt(2.0))))
    gate = steps.do("Mul", x, steps.do("Add", error, steps.number(1.0)))
    steps.do("Mul", gate, steps.number(0.5), into=steps.output())


def fast_gelu(space: Workspace, node: onnx.NodeProto) -> None:
    """Read FastGelu: 0.5 x (1 + tanh(0.797885 x + 0.035677 x^3)), x with its bias added."""
    steps = Steps(space, node)
    x = steps.input(0)
    if steps.input(1):
        x = steps.do("Add", x, steps.input(1))
    slope, curve = math.sqrt(2 / math.pi), 0.044715 * math.sqrt(2 / math.pi)
    square = steps.do("Mul", steps.do("Mul", x, x), steps.number(curve))
    inner = steps.do("Mul", x, steps.do("Add", square, steps.number(slope)))
    gate = steps.do("Add", steps.do("Tanh", inner), steps.number(1.0))
    steps.do("Mul", steps.do("Mul", x, gate), steps.number(0.5), into=steps.output())


def quick_gelu(space: Workspace, node: onnx.NodeProto) -> None:
    """Read QuickGelu: x sigmoid(alpha x)."""
    steps = Steps(space, node)
    x = steps.input(0)
    inner = steps.do("Mul", x, steps.number(float(steps.given.get("alpha", 1.702))))
    steps.do("Mul", x, steps.do("Sigmoid", inner), into=steps.output())


def skip_layer_normalization(space: Workspace, node: onnx.NodeProto) -> None:
    """Read SkipLayerNormalization: input, skip, gamma, beta, bias; layer norm of the sum."""
    steps = Steps(space, node)
    total = _skipped(steps, steps.input(4))
    _layer_normalization(steps, total, steps.input(2), steps.input(3), steps.output())


def _skipped(steps: Steps, bias: str) -> str:
    """Write input + skip + bias, which may be an output too."""
    _refuse_statistics(steps)
    wanted = steps.output(3)
    total = steps.do("Add", steps.input(0), steps.input(1), into="" if bias else wanted)
    return steps.do("Add", total, bias, into=wanted) if bias else total


def _refuse_statistics(steps: Steps) -> None:
    if steps.output(1) or steps.output(2):
        raise OperatorNotSupported(
            f"{steps.node.op_type} with mean or variance as output",
            where=f"node {steps.node.name or steps.output()!r}",
        )


def _layer_normalization(steps: Steps, x: str, gamma: str, beta: str, into: str) -> None:
    inputs = [x, gamma, beta] if beta else [x, gamma]
    epsilon = float(steps.given.get("epsilon", 1e-12))
    steps.do("LayerNormalization", *inputs, into=into, axis=-1, epsilon=epsilon)


def simplified_layer_normalization(space: Workspace, node: onnx.NodeProto) -> None:
    """Read SimplifiedLayerNormalization: x gamma / sqrt(mean(x^2) + epsilon)."""
    steps = Steps(space, node)
    axis = int(steps.given.get("axis", -1))
    if axis != -1 and axis != (rank_of(space, steps.input(0)) or 0) - 1:
        raise OperatorNotSupported(
            "SimplifiedLayerNormalization over several axes", where=f"node {node.name!r}"
        )
    _root_mean_square(steps, steps.input(0), steps.input(1), 1e-5)


def skip_simplified_layer_normalization(space: Workspace, node: onnx.NodeProto) -> None:
    """Read SkipSimplifiedLayerNormalization: input, skip, gamma, bias."""
    steps = Steps(space, node)
    _root_mean_square(steps, _skipped(steps, steps.input(3)), steps.input(2), 1e-12)


def _root_mean_square(steps: Steps, x: str, gamma: str, default: float) -> None:
    square = steps.do("Mul", x, x)
    if steps.space.opset() >= 18:
        mean = steps.do("ReduceMean", square, steps.integers([-1]), keepdims=1)
    else:
        mean = steps.do("ReduceMean", square, axes=[-1], keepdims=1)
    epsilon = steps.number(float(steps.given.get("epsilon", default)))
    root = steps.do("Sqrt", steps.do("Add", mean, epsilon))
    steps.do("Mul", steps.do("Div", x, root), gamma, into=steps.output())


def embed_layer_normalization(space: Workspace, node: onnx.NodeProto) -> None:
    """Read EmbedLayerNormalization: the sum of three looked-up embeddings, layer norm of it."""
    write_embedding(Steps(space, node))


def write_embedding(steps: Steps) -> None:
    """Write word, position and segment look-ups, their sum, its layer norm, the mask's sum."""
    ids, segments, words, positions, kinds, gamma, beta = (steps.input(i) for i in range(7))
    total = steps.do("Gather", words, ids)
    if kinds:
        total = steps.do("Add", total, steps.do("Gather", kinds, segments))
    places = steps.input(8) or _places(steps, ids)
    total = steps.do("Add", total, steps.do("Gather", positions, places), into=steps.output(2))
    _layer_normalization(steps, total, gamma, beta, steps.output())
    if steps.output(1):
        mask = steps.input(7)
        if mask:
            steps.do("ReduceSum", mask, steps.integers([1]), into=steps.output(1), keepdims=0)
        else:
            first = steps.do("Mul", ids, steps.do("CastLike", steps.integers([0]), ids))
            summed = steps.do("ReduceSum", first, steps.integers([1]), keepdims=0)
            steps.do("Cast", summed, into=steps.output(1), to=int(onnx.TensorProto.INT32))


def _places(steps: Steps, ids: str) -> str:
    """Return 0 .. sequence length - 1."""
    shape = steps.do("Shape", ids)
    zero, one = (steps.space.constant(np.asarray(i, np.int64), "place") for i in (0, 1))
    return steps.do("Range", zero, steps.do("Gather", shape, one), one)


def fused_matmul(space: Workspace, node: onnx.NodeProto) -> None:
    """Read FusedMatMul: alpha a b, each with its last two axes swapped on demand."""
    steps = Steps(space, node)
    if steps.given.get("transBatchA") or steps.given.get("transBatchB"):
        raise OperatorNotSupported("FusedMatMul with transBatch", where=f"node {node.name!r}")
    sides = [
        _swapped(steps, steps.input(place)) if steps.given.get(key) else steps.input(place)
        for place, key in enumerate(("transA", "transB"))
    ]
    alpha = float(steps.given.get("alpha", 1.0))
    if alpha == 1.0:
        steps.do("MatMul", *sides, into=steps.output())
    else:
        product = steps.do("MatMul", *sides)
        steps.do("Mul", product, steps.number(alpha), into=steps.output())


def _swapped(steps: Steps, x: str) -> str:
    rank = rank_of(steps.space, x)
    if rank is None:
        raise OperatorNotSupported(
            "FusedMatMul that transposes a value of unknown rank",
            where=f"node {steps.node.name or steps.output()!r}",
            todo="run shape inference on the model",
        )
    return steps.do("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])


def fused_conv(space: Workspace, node: onnx.NodeProto) -> None:
    """Read FusedConv: a convolution, a sum with Z, an activation function."""
    steps = Steps(space, node)
    kept = {k: v for k, v in steps.given.items() if not k.startswith("activation")}
    inputs = [name for name in steps.inputs[:3] if name]
    z = steps.input(3)
    value = steps.do("Conv", *inputs, **kept)
    if z:
        value = steps.do("Add", value, z)
    _activation(steps, value, list(steps.given.get("activation_params", [])))


def fused_gemm(space: Workspace, node: onnx.NodeProto) -> None:
    """Read FusedGemm: a Gemm and an activation function."""
    steps = Steps(space, node)
    kept = {k: v for k, v in steps.given.items() if not k.startswith("activation")}
    value = steps.do("Gemm", *(name for name in steps.inputs if name), **kept)
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    _activation(steps, value, [float(steps.given[n]) for n in names if n in steps.given])


# Attributes that the parameters of a fused activation function stand for.
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Elu": ("alpha",),
    "Softplus": (),
    "Softsign": (),
}


def _activation(steps: Steps, value: str, parameters: list[float]) -> None:
    operator = steps.given.get("activation", b"").decode()
    if operator == "":
        steps.do("Identity", value, into=steps.output())
    elif operator == "Clip":
        bounds = [steps.number(bound) for bound in parameters]
        steps.do("Clip", value, *bounds, into=steps.output())
    elif operator in _ACTIVATIONS:
        given = dict(zip(_ACTIVATIONS[operator], parameters, strict=False))
        steps.do(operator, value, into=steps.output(), **given)
    else:
        raise OperatorNotSupported(
            f"{steps.node.op_type} with activation {operator}",
            where=f"node {steps.node.name or steps.output()!r}",
        )
