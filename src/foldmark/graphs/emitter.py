"""Nodes written one after another into a growing piece of ONNX graph."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike, NDArray

__all__ = ["Attribute", "Emitter"]

Attribute: TypeAlias = int | float | str | Sequence[int] | Sequence[float] | onnx.TensorProto


class Emitter:
    """Appends nodes and constants under names of its own.

    Args:
        prefix: begins every name made here; must be unused in the graph it will join.

    Attributes:
        nodes: the nodes so far, in an order that can run.
        constants: name to array, shared when type, shape and bytes agree.
    """

    def __init__(self, prefix: str) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, NDArray[np.generic]] = {}
        self._prefix = prefix
        self._count = 0
        self._known: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def emit(
        self,
        operator: str,
        *inputs: str,
        name: str = "",
        domain: str = "",
        **attributes: Attribute,
    ) -> str:
        """Append a node of one output and return the output's name (`name` when given)."""
        output = name or self.fresh(operator)
        self.nodes.append(
            onnx.helper.make_node(
                operator, inputs, [output], name=output, domain=domain or None, **attributes
            )
        )
        return output

    def emit_many(
        self, operator: str, *inputs: str, outputs: int, **attributes: Attribute
    ) -> list[str]:
        """Append a node of several outputs and return their names."""
        names = [self.fresh(operator) for _ in range(outputs)]
        self.nodes.append(
            onnx.helper.make_node(operator, inputs, names, name=names[0], **attributes)
        )
        return names

    def fresh(self, hint: str) -> str:
        """Return a name that nothing has yet."""
        self._count += 1
        return f"{self._prefix}{hint}_{self._count}"

    def constant(self, value: ArrayLike, dtype: DTypeLike | None = None) -> str:
        """Return the name of a constant of this value."""
        array = np.asarray(value, dtype=dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = self.fresh("constant")
            self.constants[self._known[key]] = array
        return self._known[key]

    def integers(self, values: Sequence[int]) -> str:
        """Return the name of an int64 constant: a shape, axes, indices."""
        return self.constant(list(values), np.int64)

    def add(self, left: str, right: str) -> str:
        """Append left + right."""
        return self.emit("Add", left, right)

    def subtract(self, left: str, right: str) -> str:
        """Append left - right."""
        return self.emit("Sub", left, right)

    def multiply(self, left: str, right: str) -> str:
        """Append left * right."""
        return self.emit("Mul", left, right)

    def divide(self, left: str, right: str) -> str:
        """Append left / right."""
        return self.emit("Div", left, right)

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """Append a reshape to a known shape; one length may be -1."""
        # allowzero: a length of 0 is that length, as in an empty batch.
        return self.emit("Reshape", value, self.integers(shape), allowzero=int(0 in shape))

    def transpose(self, value: str, permutation: Sequence[int]) -> str:
        """Append a transposition; none when the permutation changes nothing."""
        if list(permutation) == sorted(permutation):
            return value
        return self.emit("Transpose", value, perm=list(permutation))

    def reduce_sum(self, value: str, axes: Sequence[int], *, keep: int = 0) -> str:
        """Append the sum over axes; `keep` = 1 leaves them as axes of length 1."""
        return self.emit("ReduceSum", value, self.integers(axes), keepdims=keep)

    def initializers(self) -> list[onnx.TensorProto]:
        """Return the constants as initializers."""
        return [onnx.numpy_helper.from_array(array, n) for n, array in self.constants.items()]
