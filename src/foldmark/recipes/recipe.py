"""A recipe: which operators get which codes, how their ranges are chosen, by which methods."""

import math
import re
from dataclasses import dataclass, field
from enum import Enum

from foldmark.calibrate.observers import Observer
from foldmark.errors import InvalidRecipe
from foldmark.methods.outliers import THRESHOLD
from foldmark.surgery.activations import ActivationCodes
from foldmark.surgery.choice import Choice

__all__ = ["Form", "MethodName", "Mode", "Override", "Recipe", "TensorCodes", "TensorRange"]


class Mode(Enum):
    """What is quantized, and when ranges are known."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    WEIGHT_ONLY = "weight-only"
    FLOAT16 = "float16"


class Form(Enum):
    """How a static graph is written."""

    QDQ = "qdq"
    QOPERATOR = "qoperator"


class MethodName(Enum):
    """What is done beyond rounding to nearest."""

    BIAS_CORRECTION = "bias-correction"
    MSE_CLIPPING = "mse-clipping"
    GPTQ = "gptq"
    ADAROUND = "adaround"
    SMOOTHQUANT = "smoothquant"
    HADAMARD = "hadamard"
    AWQ = "awq"
    OUTLIER_SPLIT = "outlier-split"


class Rounding(Enum):
    """How single weights get their codes, where a rule of the recipe says so."""

    NEAREST = "nearest"
    MSE_CLIPPING = "mse-clipping"
    GPTQ = "gptq"
    ADAROUND = "adaround"


# Which modes a method makes sense in.
_METHOD_MODES = {
    MethodName.BIAS_CORRECTION: (Mode.STATIC, Mode.DYNAMIC),
    MethodName.MSE_CLIPPING: (Mode.STATIC, Mode.DYNAMIC),
    MethodName.GPTQ: (Mode.STATIC, Mode.DYNAMIC, Mode.WEIGHT_ONLY),
    MethodName.ADAROUND: (Mode.STATIC, Mode.DYNAMIC, Mode.WEIGHT_ONLY),
    MethodName.SMOOTHQUANT: (Mode.STATIC, Mode.DYNAMIC),
    MethodName.HADAMARD: (Mode.STATIC, Mode.DYNAMIC, Mode.WEIGHT_ONLY),
    MethodName.AWQ: (Mode.WEIGHT_ONLY,),
    MethodName.OUTLIER_SPLIT: (Mode.DYNAMIC,),
}
_EXCLUSIVE = (
    (MethodName.GPTQ, MethodName.ADAROUND, "both choose the codes"),
    (
        MethodName.BIAS_CORRECTION,
        MethodName.OUTLIER_SPLIT,
        "don't go together: the columns in float shift no mean",
    ),
)
_DEFAULT_OPERATORS = (
    *("MatMul", "Gemm", "Conv", "ConvTranspose", "Gather"),
    *("Attention", "LSTM", "GRU", "EmbedLayerNormalization"),
)


@dataclass(frozen=True)
class Override:
    """What holds for the nodes that a pattern names.

    Attributes:
        match: regular expression, searched in the node's name.
        keep_float: the node is left alone.
        per_channel: True or False to settle the granularity, None for the recipe's.
        rule: name in the catalogue of the weight's rule, "" for the recipe's.
        rounding: how the weight gets its codes, None for the recipe's methods.
    """

    match: str
    keep_float: bool = False
    per_channel: bool | None = None
    rule: str = ""
    rounding: Rounding | None = None


@dataclass(frozen=True)
class TensorRange:
    """The range of one activation, settled by the recipe instead of by data.

    Attributes:
        tensor: the activation's name.
        low: the smallest number that gets a code, at most 0.
        high: the largest, at least 0.
    """

    tensor: str
    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse a range without zero, without extent or without end."""
        if not (-math.inf < self.low <= 0 <= self.high < math.inf and self.low < self.high):
            raise InvalidRecipe(
                "a range holds zero and has two ends",
                where=f"tensor {self.tensor!r}",
                got=f"{self.low:g} to {self.high:g}",
            )


@dataclass(frozen=True)
class TensorCodes:
    """The codes of one activation, where they differ from the recipe's.

    Those of 16 bits cover the whole range that was seen, whatever the observer: clipping would
    make steps finer that are fine already.

    Attributes:
        tensor: the activation's name.
        codes: what it gets.
    """

    tensor: str
    codes: ActivationCodes


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a quantization, as one value.

    Attributes:
        name: how reports call it.
        mode: static, dynamic, weight-only or float16.
        form: of a static graph.
        operators: operator types to quantize.
        include: patterns of node names, one of which must match; all when empty.
        exclude: patterns of node names to leave in float.
        weight_bits: 8, or 4 in blocks.
        per_channel: one weight scale per output channel.
        symmetric: weights in blocks without stored zero point.
        block_size: of weight-only codes.
        integer_compute: weight-only kernels multiply in int8 rather than in float.
        rule: "onnxruntime", or a name of `foldmark rules` for weights of 8 bits.
        activations: codes of static activations.
        observer: how their ranges are chosen.
        methods: beyond rounding to nearest, in this order.
        outlier_threshold: columns of activations that reach it stay in float (outlier-split).
        overrides: what holds for single nodes.
        ranges: static activations whose range is settled here.
        codes: static activations with codes of their own.
    """

    name: str = "static"
    mode: Mode = Mode.STATIC
    form: Form = Form.QDQ
    operators: tuple[str, ...] = _DEFAULT_OPERATORS
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    weight_bits: int = 8
    per_channel: bool = True
    symmetric: bool = True
    block_size: int = 32
    integer_compute: bool = True
    rule: str = "onnxruntime"
    activations: ActivationCodes = ActivationCodes.UINT8
    observer: Observer = field(default_factory=Observer)
    methods: tuple[MethodName, ...] = ()
    outlier_threshold: float = THRESHOLD
    overrides: tuple[Override, ...] = ()
    ranges: tuple[TensorRange, ...] = ()
    codes: tuple[TensorCodes, ...] = ()

    def __post_init__(self) -> None:
        """Check that the parts go together."""
        for method in self.methods:
            if self.mode not in _METHOD_MODES[method]:
                modes = ", ".join(mode.value for mode in _METHOD_MODES[method])
                raise InvalidRecipe(
                    f"{method.value} has no place in {self.mode.value} quantization",
                    where=f"recipe {self.name!r}",
                    expected=f"mode {modes}",
                )
        clipped = any(each.rounding is Rounding.MSE_CLIPPING for each in self.overrides)
        if clipped and self.mode is Mode.WEIGHT_ONLY:
            raise InvalidRecipe(
                "mse-clipping has no place in weight-only quantization",
                where=f"recipe {self.name!r}",
            )
        for one, other, why in _EXCLUSIVE:
            if {one, other} <= set(self.methods):
                raise InvalidRecipe(
                    f"{one.value} and {other.value} {why}",
                    where=f"recipe {self.name!r}",
                    expected="one of them",
                )
        if self.weight_bits not in (4, 8):
            raise InvalidRecipe("weights have 4 or 8 bits", got=str(self.weight_bits))
        if self.weight_bits == 4 and self.mode is not Mode.WEIGHT_ONLY:
            raise InvalidRecipe(
                f"no integer kernel takes 4-bit weights in {self.mode.value} quantization",
                where=f"recipe {self.name!r}",
                expected="mode weight-only",
            )
        if self.form is Form.QOPERATOR and self.mode is not Mode.STATIC:
            raise InvalidRecipe("only static quantization has the QOperator form")
        if self.codes and self.mode is not Mode.STATIC:
            raise InvalidRecipe(
                f"no activation has codes of its own in {self.mode.value} quantization",
                where=f"tensor {self.codes[0].tensor!r}",
                expected="mode static",
            )
        for pattern in (*self.include, *self.exclude, *(each.match for each in self.overrides)):
            try:
                re.compile(pattern)
            except re.error as error:
                raise InvalidRecipe(
                    "not a regular expression", where=f"pattern {pattern!r}", got=str(error)
                ) from None

    def choice(self) -> Choice:
        """Return which operators get codes, those out that a rule keeps in float."""
        kept = (each.match for each in self.overrides if each.keep_float)
        return Choice(self.operators, self.include, (*self.exclude, *kept))
