"""Small float networks and hand-written quantized copies of them."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDEST = 63
"""The largest weight code of 7 bits: two products with uint8 codes fit 16 bits on any processor."""


class Network:
    """A graph under construction; every call returns the name of the value it makes."""

    def __init__(self, opset: int = 13) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int | str | None], kind=TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, name: str, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(
        self, operator: str, inputs: Sequence[str], output: str, domain: str = "", **attributes
    ) -> str:
        self.nodes.append(
            helper.make_node(
                operator, inputs, [output], name=f"/{output}", domain=domain, **attributes
            )
        )
        return output

    def pair(self, x: str, scale, zero, *, tag: str = "", domain: str = "", **attributes) -> str:
        """Put a QuantizeLinear and a DequantizeLinear behind a value."""
        base = f"{x}{tag}"
        parameters = [self.constant(f"{base}_scale", np.asarray(scale))]
        if zero is not None:
            parameters.append(self.constant(f"{base}_zero_point", np.asarray(zero)))
        codes = self.node("QuantizeLinear", [x, *parameters], f"{base}_q", domain, **attributes)
        return self.node(
            "DequantizeLinear", [codes, *parameters], f"{base}_dq", domain, **attributes
        )

    def stored(self, name: str, codes, scale, zero=None, **attributes) -> str:
        """Store codes and put a DequantizeLinear behind them."""
        inputs = [self.constant(f"{name}_quantized", codes)]
        inputs.append(self.constant(f"{name}_scale", np.asarray(scale)))
        if zero is not None:
            inputs.append(self.constant(f"{name}_zero_point", np.asarray(zero)))
        return self.node("DequantizeLinear", inputs, f"{name}_dq", **attributes)

    def output(self, name: str, kind=TensorProto.FLOAT, shape=None) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def model(self, *domains: str) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.constants)
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(domain, 1) for domain in domains]
        model = helper.make_model(graph, opset_imports=opsets)
        model.ir_version = min(model.ir_version, 10)
        return model


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
