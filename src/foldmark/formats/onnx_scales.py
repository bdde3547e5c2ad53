"""Scales of activations that are none: zero, NaN, infinite, negative or subnormal."""

from collections.abc import Iterator

import numpy as np
import onnx

from foldmark.formats.onnx_activations import operands_of
from foldmark.formats.onnx_graph import Graph
from foldmark.formats.onnx_places import Places
from foldmark.formats.scaled_blocks import Numbers

__all__ = ["faulty_scales"]

_SCALE_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
# Scales looked at at once.
_PIECE = 1 << 20


def faulty_scales(graph: Graph, places: Places, weight_scales: set[int]) -> Iterator[str]:
    """Name the scales of activations that are none.

    Args:
        graph: where to look.
        places: where its tensors lie.
        weight_scales: ids of the tensors that weights have as scales: those are looked at there.
    """
    seen: set[int] = set()
    for node in graph.nodes:
        for operand in operands_of(node):
            scale = graph.constant(node, operand.scale)
            if scale is None or id(scale) in weight_scales | seen:
                continue
            seen.add(id(scale))
            if scale.data_type in _SCALE_TYPES:
                fault = _fault_of(places.numbers(scale))
                if fault:
                    yield f"{node.op_type} {_called(node)!r}: its scale is {fault}"


def _called(node: onnx.NodeProto) -> str:
    return node.name or (node.output[0] if node.output else "")


def _fault_of(scale: Numbers) -> str:
    """Name the worst that is found, in words."""
    found: set[str] = set()
    words: list[str] = []
    for first in range(0, scale.elements, _PIECE):
        stored = scale.read(first, min(first + _PIECE, scale.elements))
        numbers = stored.astype(np.float32)
        normal = 2.0**-14 if stored.dtype == np.float16 else 2.0**-126
        faults = {
            "NaN: so is all behind it": np.isnan(numbers),
            "infinite: every value becomes zero or NaN": np.isinf(numbers),
            "zero: values are divided by it": numbers == 0,
            "negative, which tools do not agree on": numbers < 0,
            f"subnormal in {stored.dtype.name}: some tools flush it to zero": abs(numbers) < normal,
        }
        words = list(faults)
        found |= {fault for fault, where in faults.items() if where.any()}
    return min(found, key=words.index, default="")
