"""The constants of a float model, as exported and as ONNX Runtime's optimizer leaves them."""

import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from numpy.typing import NDArray

from foldmark.formats.onnx_tensor import element_count, is_external, tensor_array

__all__ = ["FloatWeights"]

_FLOATS = frozenset(
    {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.BFLOAT16,
        onnx.TensorProto.DOUBLE,
    }
)


class FloatWeights:
    """The float constants of a graph by name, by size, and by the node that takes them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.tensors = {tensor.name: tensor for tensor in _constants(model)}

    def array(self, name: str) -> NDArray[Any]:
        """Return the elements of a constant."""
        return tensor_array(self.tensors[name])

    def of_size(self, count: int) -> list[str]:
        """Return the names of the constants with so many elements."""
        return self._by_size.get(count, [])

    @cached_property
    def _by_size(self) -> dict[int, list[str]]:
        sizes: dict[int, list[str]] = {}
        for name, tensor in self.tensors.items():
            sizes.setdefault(element_count(tensor), []).append(name)
        return sizes

    def bias_of(self, weight: str) -> str | None:
        """Return the name of the constant that a layer adds, by the weight it multiplies with."""
        return next((name for name in self._biases.get(weight, []) if name in self.tensors), None)

    @cached_property
    def _biases(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for node in self.model.graph.node:
            if len(node.input) > 2:
                found.setdefault(node.input[1], []).append(node.input[2])
        return found

    def count(self, operator: str) -> int:
        """Return how many nodes of an operator the graph has."""
        return sum(node.op_type == operator for node in self.model.graph.node)

    @cached_property
    def optimized(self) -> "FloatWeights | None":
        """The model with constants folded and batch norms multiplied in, as a quantizer sees it.

        None where ONNX Runtime can't load the model, or where it is too large to copy.
        """
        if any(is_external(tensor) for tensor in self.model.graph.initializer):
            return None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "optimized.onnx"
            options.optimized_model_filepath = str(path)
            try:
                onnxruntime.InferenceSession(
                    self.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
                )
                return FloatWeights(onnx.load(path))
            except Exception:
                return None


def _constants(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for tensor in model.graph.initializer:
        if tensor.data_type in _FLOATS:
            yield tensor
    for node in model.graph.node:
        for item in node.attribute if node.op_type == "Constant" else ():
            if item.name == "value" and item.t.data_type in _FLOATS:
                tensor = onnx.TensorProto()
                tensor.CopyFrom(item.t)
                tensor.name = node.output[0]
                yield tensor
