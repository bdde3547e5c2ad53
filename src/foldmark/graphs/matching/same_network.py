"""Whether a float model and a quantized one are one network, and where they part if not."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import ModelsDiffer
from foldmark.formats.onnx_tensor import element_count, tensor_array
from foldmark.graphs.matching.float_weights import FloatWeights
from foldmark.graphs.matching.likeness import distance
from foldmark.graphs.matching.match import Match
from foldmark.graphs.reading.workspace import Draft
from foldmark.graphs.sites import UnmatchedWeight

__all__ = ["changed_constants", "check_same_network"]

_LAYERS = {"Conv": "Conv", "ConvTranspose": "ConvTranspose", "MatMul": "MatMul", "Gemm": "MatMul"}
# Share of the weights' elements that may be without an original in one network.
_MOST_UNMATCHED = 0.5
# Correlation below which weights of one name are other weights.
_UNLIKE = 0.3


@dataclass(frozen=True)
class _Layer:
    """A node with a weight, reduced to what an optimizer leaves alone."""

    operator: str
    shape: tuple[int, ...]
    node: str

    def same_as(self, other: "_Layer") -> bool:
        return self.operator == other.operator and sorted(self.shape) == sorted(other.shape)

    def __str__(self) -> str:
        return f"{self.operator} {list(self.shape)} at {self.node!r}"


def check_same_network(
    known: FloatWeights,
    skeleton: onnx.ModelProto,
    weights: list[tuple[Draft, NDArray[Any]]],
    matches: dict[str, Match | str],
) -> str:
    """Refuse two models that are not one network; return where they part if all is matched.

    "" where both have the same layers, or the same number of weights cut or joined otherwise.

    Raises:
        ModelsDiffer: outputs differ in number, or most weights have no original or another
            one's values; the message names the first layer where the two part.
    """
    outputs = [len(model.graph.output) for model in (known.model, skeleton)]
    if outputs[0] != outputs[1]:
        raise ModelsDiffer(
            "the models have different outputs",
            got=f"{outputs[0]} in the float model, {outputs[1]} in the quantized one",
        )
    matrices = [(draft, values) for draft, values in weights if values.ndim > 1]
    strange = [(d, v) for d, v in matrices if not _resembles(matches[d.after])]
    share = sum(v.size for _, v in strange) / max(1, sum(v.size for _, v in matrices))
    parted = _first_difference(known.model, skeleton)
    same_size = not parted or _same_size(known, skeleton)
    if parted and (share > _MOST_UNMATCHED or (strange and not same_size)):
        raise ModelsDiffer("the models are different networks", got=parted)
    if share > _MOST_UNMATCHED:
        draft, _ = strange[0]
        found = matches[draft.after]
        raise ModelsDiffer(
            "the models have the same layers but other weights",
            where=f"weight {draft.name!r}",
            got=found if isinstance(found, str) else f"a correlation of {found.likeness:.2f}",
        )
    return "" if same_size else parted


def _resembles(match: Match | str) -> bool:
    return isinstance(match, Match) and match.likeness > _UNLIKE


def _layers(model: onnx.ModelProto) -> Iterator[_Layer]:
    """Yield the layers of a graph in order, those whose weight is a constant."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node:
        for item in node.attribute if node.op_type == "Constant" else ():
            if item.name == "value":
                shapes[node.output[0]] = tuple(item.t.dims)
        if node.op_type in ("Identity", "Transpose", "Cast") and node.input[0] in shapes:
            shapes[node.output[0]] = shapes[node.input[0]]
        if node.op_type in _LAYERS and node.input[1] in shapes:
            name = node.name or node.output[0]
            yield _Layer(_LAYERS[node.op_type], shapes[node.input[1]], name)


def _first_difference(original: onnx.ModelProto, skeleton: onnx.ModelProto) -> str:
    """Return which layers part first, in words; "" when all are alike."""
    for number, (a, b) in enumerate(zip_longest(_layers(original), _layers(skeleton)), 1):
        if a is None or b is None or not a.same_as(b):
            here = f"layer {number} is {a or 'missing'} in the float model"
            return f"{here}, {b or 'missing'} in the quantized one"
    return ""


def _same_size(known: FloatWeights, skeleton: onnx.ModelProto) -> bool:
    """True when both have as many elements in layers: joining and cutting keep that."""
    sizes = [
        sum(int(np.prod(layer.shape)) for layer in _layers(model))
        for model in (known.model, skeleton)
    ]
    return sizes[0] == sizes[1]


def changed_constants(
    known: FloatWeights, skeleton: onnx.ModelProto, drafted: set[str]
) -> Iterator[UnmatchedWeight]:
    """Yield constants that both models hold in float under one name, with other values."""
    for tensor in skeleton.graph.initializer:
        original = known.tensors.get(tensor.name)
        if original is None or tensor.name in drafted or element_count(tensor) == 0:
            continue
        if tensor.dims != original.dims or tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        apart = distance(tensor_array(tensor), tensor_array(original))
        if apart > _CHANGED:
            yield UnmatchedWeight(
                tensor.name,
                tuple(tensor.dims),
                f"stored in float, and {100 * apart:.2g} % away from the float model's",
            )


# Relative distance from which a float constant counts as changed.
_CHANGED = 1e-6
