"""A network with an If whose branches hold layers of their own, and its int8 copy."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.models.store import built


def weights() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    shapes = {"enter": (16, 24), "bold": (24, 24), "calm": (24, 24), "leave": (24, 6)}
    return {
        name: (draw.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in shapes.items()
    }


def samples(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return inputs; every run of them goes down one branch, chosen by their mean."""
    draw = np.random.default_rng(seed)
    return {"x": (draw.standard_normal((count, 16)) + 0.5).astype(np.float32)}


class _Graph:
    """Collects nodes; `pair` is what the int8 copy puts around a tensor, nothing in float."""

    def __init__(self, int8: bool) -> None:
        self.int8 = int8
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, operator: str, inputs: list[str], output: str, **attributes) -> str:
        self.nodes.append(
            helper.make_node(operator, inputs, [output], name=f"/{output}", **attributes)
        )
        return output

    def pair(self, tensor: str, highest: float) -> str:
        if not self.int8:
            return tensor
        scale = self.constant(f"{tensor}_scale", np.float32(highest / 127))
        zero = self.constant(f"{tensor}_zero_point", np.int8(0))
        codes = self.node("QuantizeLinear", [tensor, scale, zero], f"{tensor}_QuantizeLinear")
        return self.node("DequantizeLinear", [codes, scale, zero], f"{tensor}_DequantizeLinear")

    def weight(self, name: str, array: np.ndarray) -> str:
        if not self.int8:
            return self.constant(name, array)
        step = np.float32(np.abs(array).max() / 127)
        scale = self.constant(f"{name}_scale", step)
        zero = self.constant(f"{name}_zero_point", np.int8(0))
        codes = np.clip(np.rint(array / step), -127, 127).astype(np.int8)
        stored = self.constant(f"{name}_quantized", codes)
        return self.node("DequantizeLinear", [stored, scale, zero], f"{name}_DequantizeLinear")


def _branch(int8: bool, name: str, activation: str) -> onnx.GraphProto:
    graph = _Graph(int8)
    hidden = graph.node(
        "MatMul", ["entered", graph.weight(name, weights()[name])], f"{name}_product"
    )
    out = graph.node(activation, [graph.pair(hidden, 3.0)], f"{name}_out")
    info = helper.make_tensor_value_info(out, TensorProto.FLOAT, None)
    return helper.make_graph(graph.nodes, name, [], [info], graph.constants)


def _write(int8: bool, path: Path) -> None:
    graph = _Graph(int8)
    entered = graph.node(
        "MatMul", [graph.pair("x", 4.0), graph.weight("enter", weights()["enter"])], "entering"
    )
    graph.node("Relu", [entered], "entered_float")
    graph.node("Identity", [graph.pair("entered_float", 4.0)], "entered")
    graph.node("ReduceMean", ["x"], "mean", keepdims=0)
    graph.constant("half", np.float32(0.5))
    graph.node("Greater", ["mean", "half"], "is_bold")
    graph.node(
        "If",
        ["is_bold"],
        "chosen",
        then_branch=_branch(int8, "bold", "Relu"),
        else_branch=_branch(int8, "calm", "Tanh"),
    )
    leave = graph.weight("leave", weights()["leave"])
    graph.node("MatMul", [graph.pair("chosen", 3.0), leave], "logits")
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "branches",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 6])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    onnx.checker.check_model(model)
    onnx.save(model, path)


def branches() -> Path:
    """Return the float32 model: x [batch, 16] -> logits [batch, 6]."""
    return built("branches.onnx", lambda path: _write(False, path))


def branches_int8() -> Path:
    """Return its copy with int8 pairs inside and outside the branches."""
    return built("branches.int8.onnx", lambda path: _write(True, path))
