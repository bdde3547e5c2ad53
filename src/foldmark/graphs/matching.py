"""Finding the float tensor that a quantized weight was made from."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.formats.onnx_tensor import tensor_array
from foldmark.graphs.reading.names import without_suffixes
from foldmark.graphs.reading.workspace import Draft

__all__ = ["FloatWeights", "Match", "match_weights"]

Array = NDArray[Any]

# Correlation from which a tensor counts as the original of another, name or no name.
_ALIKE = 0.8
_SAMPLED = 1 << 12


@dataclass(frozen=True)
class Match:
    """A float original.

    Attributes:
        name: of the tensor in the float model.
        array: in the layout of the quantized weight.
        how: "name", "content", ...: what it was found by.
    """

    name: str
    array: Array
    how: str


class FloatWeights:
    """The constants of a float model, found by name and by content."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.tensors = {tensor.name: tensor for tensor in _constants(model)}
        self._by_size: dict[int, list[str]] | None = None

    def array(self, name: str) -> Array:
        """Return the elements of a constant."""
        return tensor_array(self.tensors[name])

    def of_size(self, count: int) -> list[str]:
        """Return the names of the constants with so many elements."""
        if self._by_size is None:
            self._by_size = {}
            for name, tensor in self.tensors.items():
                size = int(np.prod(tensor.dims, dtype=np.int64))
                self._by_size.setdefault(size, []).append(name)
        return self._by_size.get(count, [])


def _constants(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    floats = {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.BFLOAT16,
        onnx.TensorProto.DOUBLE,
    }
    for tensor in model.graph.initializer:
        if tensor.data_type in floats:
            yield tensor
    for node in model.graph.node:
        for item in node.attribute:
            if node.op_type == "Constant" and item.name == "value" and item.t.data_type in floats:
                tensor = onnx.TensorProto()
                tensor.CopyFrom(item.t)
                tensor.name = node.output[0]
                yield tensor


def match_weights(
    weights: list[tuple[Draft, Array]], float_model: onnx.ModelProto | None
) -> dict[str, Match | str]:
    """Return the original of each quantized weight, or the reason why there is none.

    Args:
        weights: each site with its dequantized values.
        float_model: where the originals are, None when there is no such model.

    Returns:
        by `Draft.after`.
    """
    known = None if float_model is None else FloatWeights(float_model)
    return {draft.after: _match(draft, values, known) for draft, values in weights}


def _match(draft: Draft, values: Array, known: FloatWeights | None) -> Match | str:
    found: Match | str = "no float model was given"
    if known is not None:
        found = _by_name(draft, values, known) or _by_content(values, known)
    if isinstance(found, str) and draft.own is not None:
        return Match(draft.names[0], draft.own, "stored beside its quantization")
    return found


def _by_name(draft: Draft, values: Array, known: FloatWeights) -> Match | None:
    for given in draft.names:
        for name in without_suffixes(given):
            array = fitted(known.array(name), values) if name in known.tensors else None
            if array is not None:
                return Match(name, array, "name")
    return None


def fitted(candidate: Array, values: Array) -> Array | None:
    """Return a candidate in the layout of a weight, transposed or reshaped, or None.

    Between layouts of equal shape the one that correlates better is taken.
    """
    layouts = list(_layouts(candidate, values.shape))
    if not layouts:
        return None
    if len(layouts) == 1:
        return layouts[0]
    return max(layouts, key=lambda layout: correlation(layout, values))


def _layouts(candidate: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    if candidate.shape == shape:
        yield candidate
    if candidate.ndim == 2 and candidate.T.shape == shape:
        yield candidate.T
    if candidate.shape != shape and candidate.size == int(np.prod(shape)):
        if _trimmed(candidate.shape) == _trimmed(shape):
            yield candidate.reshape(shape)
        elif candidate.ndim > 1 and _trimmed(candidate.T.shape) == _trimmed(shape):
            yield candidate.T.reshape(shape)


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def correlation(a: Array, b: Array) -> float:
    """Return the cosine of the angle between two arrays of one shape, over a sample of each.

    Where one is all zero the other must be too.
    """
    if a.size == 0:
        return 1.0
    places = np.unravel_index(
        np.linspace(0, a.size - 1, min(a.size, _SAMPLED)).astype(int), a.shape
    )
    x, y = (each[places].astype(np.float64) for each in (a, b))
    norms = math.sqrt(float((x * x).sum()) * float((y * y).sum()))
    if norms == 0.0:
        return 1.0 if np.array_equal(x, y) else 0.0
    return float((x * y).sum()) / norms


def _by_content(values: Array, known: FloatWeights) -> Match | str:
    names = known.of_size(values.size)
    best, score = None, -1.0
    for name in names:
        for layout in _layouts(known.array(name), values.shape):
            likeness = correlation(layout, values)
            if likeness > score:
                best, score = Match(name, layout, "content"), likeness
    if best is None:
        return f"no float tensor of shape {list(values.shape)}"
    if score < _ALIKE:
        return (
            f"no float tensor resembles it; the nearest, {best.name!r}, correlates at {score:.2f}"
        )
    return best
