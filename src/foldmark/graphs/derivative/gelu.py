"""Gelu written out in elementary operators, seen as one function again.

    y = x P,   P = (1 + erf z) / 2,   z = f x
    dx = g (P + z exp(-z^2) / sqrt(pi))

The same numbers in four passes over memory instead of five, and six instead of ten on the way back.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from foldmark.graphs.derivative.facts import Facts
from foldmark.graphs.derivative.tape import Tape
from foldmark.graphs.inlining import names_read

__all__ = ["Gelu", "find_gelus"]


@dataclass(frozen=True)
class Gelu:
    """One chain of nodes that computes Gelu.

    Attributes:
        x: what it takes.
        scaled: z.
        error: erf z.
        output: y.
        sum_index: the node that adds 1 to the error function.
        last_index: the node that makes the output.
    """

    x: str
    scaled: str
    error: str
    output: str
    sum_index: int
    last_index: int

    def shorten(self, tape: Tape) -> str:
        """Let the forward nodes compute P and x P, bit for bit what they did; return P."""
        half = tape.fresh("gelu")
        tape.replaced[self.sum_index] = onnx.helper.make_node(
            "HardSigmoid", [self.error], [half], name=half, alpha=0.5, beta=0.5
        )
        tape.replaced[self.last_index] = onnx.helper.make_node(
            "Mul", [self.x, half], [self.output], name=self.output
        )
        return half

    def gradient(self, tape: Tape, g: str) -> str:
        """Append the gradient with respect to x."""
        half = self.shorten(tape)
        bell = tape.emit("Exp", tape.multiply(self.scaled, self.scaled))
        slope = tape.divide(self.scaled, bell)  # where the bell is infinite, zero
        slope = tape.scale(slope, 1 / math.sqrt(math.pi), np.dtype(np.float32))
        return tape.multiply(g, tape.add(slope, half))


def find_gelus(nodes: Sequence[onnx.NodeProto], kept: set[str], facts: Facts) -> dict[int, Gelu]:
    """Return the chains of float32, by the index of their last node.

    kept   values that must stay what they are: outputs, and where a gradient is asked for
    """
    found = _Chains(nodes, kept, facts)
    gelus = [found.at(index) for index, node in enumerate(nodes) if node.op_type == "Erf"]
    return {gelu.last_index: gelu for gelu in gelus if gelu is not None}


class _Chains:
    def __init__(self, nodes: Sequence[onnx.NodeProto], kept: set[str], facts: Facts) -> None:
        self._nodes = nodes
        self._kept = kept
        self._facts = facts
        self._makers = {name: i for i, node in enumerate(nodes) for name in node.output}
        self._readers: dict[str, list[int]] = {}
        for i, node in enumerate(nodes):
            for name in names_read(node):
                self._readers.setdefault(name, []).append(i)

    def at(self, index: int) -> Gelu | None:
        """Return the Gelu around an Erf, None when it is something else."""
        erf = self._nodes[index]
        scaled, error = erf.input[0], erf.output[0]
        fact = self._facts.get(error)
        maker = self._makers.get(scaled)
        if fact is None or fact.dtype != np.float32 or maker is None:
            return None
        x = self._scaled(maker)
        plus = self._only_reader(error)
        if not x or plus is None or not self._is(plus, "Add", error, 1.0):
            return None
        one_more = self._nodes[plus].output[0]
        last = self._last(one_more, x)
        if last is None:
            return None
        output = self._nodes[last].output[0]
        same = self._facts.get(output)
        if same is None or same.shape != fact.shape or self._facts[x].shape != fact.shape:
            return None
        return Gelu(x, scaled, error, output, plus, last)

    def _scaled(self, maker: int) -> str:
        """Return x when the node is x times or through a constant."""
        node = self._nodes[maker]
        if node.op_type not in ("Div", "Mul") or len(node.input) != 2:
            return ""
        if self._number(node.input[1]) is not None:
            return node.input[0]
        if node.op_type == "Mul" and self._number(node.input[0]) is not None:
            return node.input[1]
        return ""

    def _last(self, one_more: str, x: str) -> int | None:
        """Return the node that makes x (1 + erf) / 2 in any order of its factors."""
        first = self._only_reader(one_more)
        if first is None or self._nodes[first].op_type != "Mul":
            return None
        product = self._nodes[first].output[0]
        second = self._only_reader(product)
        other = self._other(first, one_more)
        if other == x and second is not None and self._is(second, "Mul", product, 0.5):
            return second
        if self._number(other) == 0.5 and second is not None:
            is_last = self._nodes[second].op_type == "Mul" and self._other(second, product) == x
            return second if is_last else None
        maker = self._makers.get(other)
        if maker is not None and self._only_reader(other) == first:
            return first if self._is(maker, "Mul", x, 0.5) else None
        return None

    def _is(self, index: int, operator: str, value: str, number: float) -> bool:
        """Return True when the node joins the value and the number."""
        return (
            self._nodes[index].op_type == operator
            and value in self._nodes[index].input
            and self._number(self._other(index, value)) == number
        )

    def _other(self, index: int, value: str) -> str:
        inputs = self._nodes[index].input
        return inputs[1] if inputs[0] == value else inputs[0]

    def _number(self, name: str) -> float | None:
        fact = self._facts.get(name)
        if fact is None or fact.value is None or fact.value.size != 1 or name in self._makers:
            return None
        return float(fact.value.reshape(()))

    def _only_reader(self, name: str) -> int | None:
        readers = self._readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self._kept else None
