"""A model that gives the ends of its inner values instead of the values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from foldmark.graphs.light import LightModel, lighten

__all__ = ["Ends", "ends_from", "with_ends"]

_PREFIX = "foldmark.ends"
# What is asked of each value; the sum tells NaN, which minima and maxima pass over.
_ASKED = ("ReduceMin", "ReduceMax", "ReduceL1")


@dataclass(frozen=True)
class Ends:
    """What a run said of one inner value.

    Attributes:
        low, high: its smallest and largest element; infinity and -infinity when it is empty.
        count: how many elements it has.
        finite: True when every element is certainly finite; False asks for a closer look.
    """

    low: float
    high: float
    count: int
    finite: bool


def with_ends(model: onnx.ModelProto | LightModel, names: Sequence[str]) -> LightModel:
    """Return the model with nothing but the ends of some of its values as outputs.

    What only the old outputs needed is not computed any more, and no large value leaves the
    graph: memory is that of a plain run.
    """
    light = lighten(model)
    made = onnx.ModelProto()
    made.CopyFrom(light.model)
    graph = made.graph
    del graph.output[:]
    for index, name in enumerate(names):
        prefix = f"{_PREFIX}.{index}"
        real = f"{prefix}.float"
        graph.node.append(
            helper.make_node("Cast", [name], [real], f"{prefix}.Cast", to=onnx.TensorProto.FLOAT)
        )
        for operator in (*_ASKED, "Size"):
            result = f"{prefix}.{operator}"
            extra = {} if operator == "Size" else {"keepdims": 0}
            graph.node.append(helper.make_node(operator, [real], [result], result, **extra))
            graph.output.append(onnx.ValueInfoProto(name=result))
    return LightModel(made, light.weights)


def ends_from(results: Mapping[str, NDArray[np.generic]], names: Sequence[str]) -> dict[str, Ends]:
    """Return the ends of every value from a run of the model that `with_ends` made."""
    found = {}
    for index, name in enumerate(names):
        low, high, total, count = (
            float(results[f"{_PREFIX}.{index}.{operator}"]) for operator in (*_ASKED, "Size")
        )
        found[name] = Ends(low, high, int(count), bool(np.isfinite(total)))
    return found
