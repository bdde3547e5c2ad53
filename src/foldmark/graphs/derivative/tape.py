"""What a rule sees: the node, the gradients of its outputs, and a place to write."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import NoDerivative
from foldmark.graphs.derivative.facts import Fact, Facts
from foldmark.graphs.emitter import Emitter

__all__ = ["Gradients", "Rule", "Step", "Tape"]

# What a rule returns: input slot -> name of the gradient with respect to that input.
Gradients = Mapping[int, str]


class Tape(Emitter):
    """The backward part of a graph while it is being written.

    Attributes:
        facts: type and shape of every value of the forward part.
        opset: version of the default operator set.
        replaced: forward nodes that a rule exchanged for a copy with more outputs.
    """

    def __init__(self, facts: Facts, opset: int) -> None:
        super().__init__("gradient/")
        self.facts = facts
        self.opset = opset
        self.replaced: dict[int, onnx.NodeProto] = {}

    def number(self, value: float, dtype: np.dtype[np.generic]) -> str:
        """Return the name of a scalar constant."""
        return self.constant(value, dtype)

    def scale(self, value: str, factor: float, dtype: np.dtype[np.generic]) -> str:
        """Append value * factor; nothing when the factor is 1."""
        return value if factor == 1 else self.multiply(value, self.number(factor, dtype))

    def negate(self, value: str, dtype: np.dtype[np.generic]) -> str:
        """Append -value, as a product: several times faster than Neg in ONNX Runtime."""
        return self.scale(value, -1, dtype)

    def sum_to(self, value: str, got: Sequence[int], want: Sequence[int]) -> str:
        """Append the sum over the axes along which `want` was broadcast to `got`."""
        got, want = tuple(got), tuple(want)
        if got == want:
            return value
        lead = len(got) - len(want)
        axes = [*range(lead)]
        axes += [lead + i for i, n in enumerate(want) if n == 1 and got[lead + i] != 1]
        if axes:
            value = self.reduce_sum(value, axes)
        kept = tuple(n for i, n in enumerate(got) if i not in axes)
        return value if kept == want else self.reshape(value, want)

    def zeros(self, shape: Sequence[int], dtype: np.dtype[np.generic]) -> str:
        """Append a tensor of zeros."""
        zero = onnx.numpy_helper.from_array(np.zeros(1, dtype))
        return self.emit("ConstantOfShape", self.integers(shape), value=zero)


@dataclass
class Step:
    """One node on the way back.

    Attributes:
        tape: where the backward nodes go.
        node: the forward node.
        index: its position among the forward nodes.
        gradients: per output, the name of the gradient that arrived, None where none did.
        wanted: per input, whether its gradient is asked for.
    """

    tape: Tape
    node: onnx.NodeProto
    index: int
    gradients: Sequence[str | None]
    wanted: Sequence[bool]
    attributes: dict[str, object] = field(init=False)

    def __post_init__(self) -> None:
        """Read the node's attributes once."""
        self.attributes = {a.name: onnx.helper.get_attribute_value(a) for a in self.node.attribute}

    @property
    def gradient(self) -> str:
        """The gradient of the node's first output, which must have arrived."""
        if self.gradients[0] is None:
            raise self.refused("only a secondary output is used")
        return self.gradients[0]

    def has(self, slot: int) -> bool:
        """Return True when the input is given."""
        return slot < len(self.node.input) and self.node.input[slot] != ""

    def wants(self, slot: int) -> bool:
        """Return True when the input is given and its gradient asked for."""
        return slot < len(self.wanted) and self.wanted[slot]

    def input(self, slot: int = 0) -> str:
        """Return the name of an input."""
        return self.node.input[slot]

    def output(self, slot: int = 0) -> str:
        """Return the name of an output."""
        return self.node.output[slot]

    def fact(self, name: str) -> Fact:
        """Return what is known of a value."""
        if name not in self.tape.facts:
            raise self.refused(f"nothing is known of its value {name!r}")
        return self.tape.facts[name]

    def shape(self, slot: int = 0) -> tuple[int, ...]:
        """Return the shape of an input."""
        return self.fact(self.input(slot)).shape

    def output_shape(self, slot: int = 0) -> tuple[int, ...]:
        """Return the shape of an output."""
        return self.fact(self.output(slot)).shape

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The element type of the first output."""
        return self.fact(self.output()).dtype

    def number(self, value: float) -> str:
        """Return the name of a scalar constant of the node's type."""
        return self.tape.number(value, self.dtype)

    def scale(self, value: str, factor: float) -> str:
        """Append value * factor."""
        return self.tape.scale(value, factor, self.dtype)

    def negate(self, value: str) -> str:
        """Append -value."""
        return self.tape.negate(value, self.dtype)

    def parameter(self, slot: int) -> NDArray[np.generic] | None:
        """Return the value of an integer input, None when it isn't given."""
        if not self.has(slot):
            return None
        value = self.fact(self.input(slot)).value
        if value is None:
            raise self.refused(f"input {slot} is not known beforehand")
        return value

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        value = self.attributes.get(name, default)
        assert isinstance(value, int)
        return value

    def real(self, name: str, default: float) -> float:
        """Return a float attribute."""
        value = self.attributes.get(name, default)
        assert isinstance(value, float | int)
        return float(value)

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def integers(self, name: str) -> list[int] | None:
        """Return a list attribute, None when it isn't given."""
        value = self.attributes.get(name)
        return None if value is None else [int(n) for n in value]  # type: ignore[attr-defined]

    def axis(self, default: int) -> int:
        """Return the attribute `axis`, counted from the front of the first input."""
        return self.integer("axis", default) % max(len(self.shape()), 1)

    def with_output(self, slot: int, hint: str) -> str:
        """Return the name of an optional output of the forward node, adding it when absent."""
        node = self.tape.replaced.get(self.index, self.node)
        if slot < len(node.output) and node.output[slot]:
            return node.output[slot]
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        while len(copy.output) <= slot:
            copy.output.append("")
        copy.output[slot] = self.tape.fresh(hint)
        self.tape.replaced[self.index] = copy
        return copy.output[slot]

    def refused(self, why: str) -> NoDerivative:
        """Return the error that names this node."""
        return NoDerivative(
            f"{self.node.op_type} has no derivative here: {why}",
            where=f"node {self.node.name or self.node.output[0]!r}",
            todo="switch sites off one at a time instead",
        )


Rule = Callable[[Step], Gradients]
