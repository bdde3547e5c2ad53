"""The nouns of a quantized graph: a site, its encoding, and the graph taken apart."""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.formats.onnx_kept import Kept

__all__ = [
    "NO_FLOAT_MODEL",
    "Encoding",
    "OddScale",
    "QuantizedGraph",
    "Site",
    "SiteKind",
    "UnmatchedWeight",
]


NO_FLOAT_MODEL = "no float model was given"
"""Why weights are unmatched where there is nothing to match them with."""


class SiteKind(Enum):
    """What a site quantizes."""

    WEIGHT = "weight"
    ACTIVATION = "activation"
    BIAS = "bias"
    KEY = "key"
    VALUE = "value"


@dataclass(frozen=True)
class Encoding:
    """How a site's tensor is stored.

    Attributes:
        number_format: "int8", "uint4", "float8e4m3fn", "float16", ...
        axis: the axis that scale runs along, None for one scale per tensor.
        block_size: elements of `axis` that share a scale, None for per tensor or per axis.
        scale: float array, per tensor (), per axis (n,), per block (the tensor's rank);
            None when it is chosen at run time or the format has none (float16).
        zero_point: integer array of scale's shape; None when absent or chosen at run time.
    """

    number_format: str
    axis: int | None = None
    block_size: int | None = None
    scale: NDArray[np.floating] | None = None
    zero_point: NDArray[np.integer] | None = None

    @property
    def is_dynamic(self) -> bool:
        """True when the scale is chosen at run time from the data."""
        return self.scale is None and not self.number_format.startswith(("float16", "bfloat16"))


@dataclass(frozen=True)
class Site:
    """A place where the quantized model replaces a float tensor by a representable one.

    The error that a site adds is `delta = after - before`, both seen in the quantized run.

    Attributes:
        name: unique and readable; the tensor's name in the float model where it is known.
        kind: weight, activation, bias, key or value.
        operator: type of the operator that consumes the tensor ("MatMul").
        layer: module path recovered from node and weight names
            ("encoder/layer.3/output/dense"), "" when the graph does not let us recover it.
        tensor: name of the value in `QuantizedGraph.skeleton` to which delta is added; an
            initializer for weights and biases.
        before: value in `QuantizedGraph.simulated` holding the float tensor as the quantized
            run sees it; for weights and biases the name of the initializer in `skeleton`.
        after: value in `QuantizedGraph.simulated` holding it quantized and dequantized; an
            initializer for weights and biases.
        encoding: number format and granularity.
        codes: the stored codes of a weight or bias, in the tensor's layout in the skeleton,
            None for activations.
        maker: type of the operator that makes the tensor, "" for weights and inputs.
    """

    name: str
    kind: SiteKind
    operator: str
    layer: str
    tensor: str
    before: str
    after: str
    encoding: Encoding
    codes: NDArray[np.generic] | None = None
    maker: str = ""


@dataclass(frozen=True)
class UnmatchedWeight:
    """A quantized weight with no float counterpart; its error counts into `graph`.

    Attributes:
        name: the weight's name in the quantized model.
        shape: its shape.
        reason: why no float tensor was accepted ("no float tensor of this shape").
        layer: module path of what reads it, "" when the graph does not let us recover it.
        operator: type of the operator that reads it, "" when not known.
    """

    name: str
    shape: tuple[int, ...]
    reason: str
    layer: str = ""
    operator: str = ""


@dataclass(frozen=True)
class OddScale:
    """A scale of the quantized model that is no normal positive number.

    Attributes:
        name: of the tensor that holds it.
        index: of the first such element.
        value: of that element.
        count: how many such elements there are.
        smallest: the smallest normal number of the scale's type.
    """

    name: str
    index: tuple[int, ...]
    value: float
    count: int
    smallest: float

    def __str__(self) -> str:
        """Return which scale it is, its value and what follows from that, in one sentence."""
        if self.value == 0:
            told = "0, so that all its codes stand for 0"
        elif self.value < 0:
            told = f"{self.value:.4g}, below 0, so that larger values get smaller codes"
        else:
            told = (
                f"{self.value:.4g}, below the smallest normal number of its type "
                f"({self.smallest:.3g}), where digits are lost and a runtime may read 0"
            )
        place = f" at {list(self.index)}" if self.index else ""
        others = self.count - 1
        are = "element is" if others == 1 else "elements are"
        more = f"; {others} more {are} like that" if others else ""
        return f"Scale {self.name!r}{place} is {told}{more}."


@dataclass(frozen=True)
class QuantizedGraph:
    """A quantized model taken apart.

    Attributes:
        original: the model as given, for the runtime's real kernels; outputs that are codes
            are dequantized.
        simulated: the same arithmetic with every operator on integers written as
            DequantizeLinear, float operator, QuantizeLinear; inputs and outputs unchanged.
            Run it with graph optimizations off.
        skeleton: `simulated` with the quantization taken out and the float weights put back;
            inputs and outputs unchanged. Adding every site's delta to its `tensor` gives the
            simulated model again.
        sites: every site, in graph order.
        unmatched: weights whose float original was not found; the skeleton holds their
            dequantized values.
        odd_scales: scales of the quantized model that are no normal positive numbers.
        parted: where the layers of the two models part, "" where they don't.
        files: large tensors of the two graphs lie in these, which go when the graphs do.
    """

    original: onnx.ModelProto
    simulated: onnx.ModelProto
    skeleton: onnx.ModelProto
    sites: tuple[Site, ...]
    unmatched: tuple[UnmatchedWeight, ...]
    odd_scales: tuple[OddScale, ...] = ()
    parted: str = ""
    files: Kept = field(default_factory=Kept, repr=False, compare=False)

    @property
    def is_dynamic(self) -> bool:
        """True when a scale is chosen at run time: what one sample gives depends on its batch."""
        return any(site.encoding.is_dynamic for site in self.sites)
