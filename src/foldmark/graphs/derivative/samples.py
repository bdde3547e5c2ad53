"""Entries of stored tensors sample by sample, out of a batch.

The gradient of a weight is a sum over the samples of a batch, but its entry can be had of each
sample for one more product. With g the gradient of y = f(x, W), f linear in W,

    < dW, gradient of W > = < f(x, dW), g >

and the right side is a sum over the elements of y, whose first axis counts the samples. What has
no such axis (a transposed weight, a row of a table for all samples) is led on to where it meets
a value that has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from foldmark.errors import NotSupported
from foldmark.graphs.derivative.tape import Tape

__all__ = ["Apart", "Meetings"]

# What moves values about: the same done to the error.
_MOVEMENT = frozenset({"Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze"})
_MOVEMENT |= {"Transpose", "Unsqueeze"}


@dataclass(frozen=True)
class Apart:
    """What is to be told apart by samples.

    Attributes:
        sampled: names of the values whose first axis counts the samples.
        errors: input that takes a stored tensor's error -> the tensor that it is added to.
    """

    sampled: frozenset[str]
    errors: Mapping[str, str]


class Meetings:
    """The nodes at which errors of stored tensors meet values that have samples.

    Args:
        apart: what is to be told apart.
        nodes: of the forward graph.
        tape: where the errors' own nodes are written.

    Attributes:
        tape: where nodes are written.
        errors: input that takes an error -> the tensor that it is added to.
        parts: input that takes an error -> names of its parts, each of shape (samples,).

    Raises NotSupported when an error reaches a node that is not known to be linear in it.
    """

    def __init__(self, apart: Apart, nodes: Sequence[onnx.NodeProto], tape: Tape) -> None:
        self.tape = tape
        self.errors = apart.errors
        self._met: dict[int, list[tuple[str, int, str]]] = {}
        self.parts: dict[str, list[str]] = {error: [] for error in apart.errors}
        there: dict[str, list[tuple[str, str]]] = {}
        for error, value in apart.errors.items():
            there.setdefault(value, []).append((error, error))
        for index, node in enumerate(nodes):
            for slot, name in enumerate(node.input):
                for error, moved in there.get(name, ()):
                    if node.output[0] in apart.sampled:
                        self._met.setdefault(index, []).append((error, slot, moved))
                    else:
                        led = _linear(tape, node, slot, moved)
                        there.setdefault(node.output[0], []).append((error, led))
                    _check(node, slot)

    def add(self, index: int, node: onnx.NodeProto, gradient: str) -> None:
        """Append the parts of the errors that a node meets, given its output's gradient."""
        for error, slot, moved in self._met.get(index, ()):
            tape = self.tape
            product = tape.multiply(gradient, _linear(tape, node, slot, moved))
            axes = range(1, len(tape.facts[node.output[0]].shape))
            part = tape.reduce_sum(product, list(axes)) if axes else product
            self.parts[error].append(part)

    def totals(self) -> dict[str, str]:
        """Append the sums of the parts; errors that the result does not depend on have none."""
        totals = {}
        for error, parts in self.parts.items():
            if parts:
                totals[error] = parts[0]
                for more in parts[1:]:
                    totals[error] = self.tape.add(totals[error], more)
        return totals


def _check(node: onnx.NodeProto, slot: int) -> None:
    """Raise NotSupported for a node that is not known to be linear in an input."""
    product = {"MatMul": (0, 1), "FusedMatMul": (0, 1), "Gemm": (0, 1, 2), "Mul": (0, 1)}
    known = {
        **product,
        **dict.fromkeys(("Conv", "ConvTranspose"), (1, 2)),
        **dict.fromkeys(("Add", "Sub"), (0, 1)),
        **dict.fromkeys(_MOVEMENT, (0,)),
    }
    if slot not in known.get(node.op_type, ()):
        raise NotSupported(
            "samples can't be told apart where a stored tensor enters",
            where=f"node {node.name or node.output[0]!r}",
            got=node.op_type,
        )


def _linear(tape: Tape, node: onnx.NodeProto, slot: int, error: str) -> str:
    """Append what an error in an input makes of a node's output, or what broadcasts to it."""
    _check(node, slot)
    if node.op_type == "Add":
        return error
    if node.op_type == "Sub":
        return error if slot == 0 else tape.negate(error, tape.facts[node.output[0]].dtype)
    if node.op_type == "Gemm" and slot == 2:
        beta = next((a.f for a in node.attribute if a.name == "beta"), 1.0)
        return tape.scale(error, beta, tape.facts[node.output[0]].dtype)
    if node.op_type in ("Conv", "ConvTranspose") and slot == 2:
        rank = len(tape.facts[node.output[0]].shape)
        return tape.reshape(error, (1, -1, *[1] * (rank - 2)))
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[slot] = error
    if node.op_type in ("Conv", "ConvTranspose", "Gemm"):
        del copy.input[2:]
    copy.output[:] = [tape.fresh(node.op_type)]
    copy.name = copy.output[0]
    tape.nodes.append(copy)
    return copy.output[0]
