"""What each site is to the network: weight, bias, activation, key or value; of which layer."""

from dataclasses import dataclass

import onnx

from foldmark.graphs.labels import Labels
from foldmark.graphs.reading.movement import only_moves
from foldmark.graphs.sites import SiteKind

__all__ = ["Role", "Roles"]


@dataclass(frozen=True)
class Role:
    """What a value is to the network.

    Attributes:
        kind: weight, bias, activation, key or value.
        operator: type of the first operator that does more with it than move it.
        layer: module path of that operator, "" where names do not tell.
        place: position of the first reader in the graph, and among its inputs.
    """

    kind: SiteKind
    operator: str
    layer: str
    place: tuple[int, int]


class Roles:
    """Readers of every value of a graph, and the operands of its attention."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self._readers: dict[str, list[int]] = {}
        self._makers: dict[str, onnx.NodeProto] = {}
        self._keys: set[str] = set()
        self._values: set[str] = set()
        for place, node in enumerate(self.graph.node):
            for name in dict.fromkeys(node.input):
                self._readers.setdefault(name, []).append(place)
            for name in node.output:
                self._makers[name] = node
        self._dims = {t.name: tuple(t.dims) for t in self.graph.initializer}
        self._labels = Labels(self.graph.node, (t.name for t in self.graph.initializer))
        for node in self.graph.node:
            if node.op_type == "Softmax":
                self._keys |= self._second_operands(self._upstream(node.input[0]))
                self._values |= self._second_operands(self._downstream(node.output[0]))

    def of(self, value: str, *, is_weight: bool, parameter: str = "") -> Role:
        """Return the role of a value.

        Args:
            value: its name in the graph.
            is_weight: whether it is a constant.
            parameter: the name of its float original, where known.
        """
        reader = self._user(value)
        layer = self._labels.of(reader, parameter) if reader is not None else ""
        maker = self._makers.get(self._source(value))
        if not layer and maker is not None:
            layer = self._labels.of(maker)
        kind = self._kind(value, is_weight)
        operator = reader.op_type if reader is not None else "output"
        return Role(kind, operator, layer, self._place(value))

    def _place(self, value: str) -> tuple[int, int]:
        places = self._readers.get(value)
        if not places:
            return len(self.graph.node), 0
        return places[0], list(self.graph.node[places[0]].input).index(value)

    def _kind(self, value: str, is_weight: bool) -> SiteKind:
        if is_weight:
            return SiteKind.BIAS if self._is_bias(value) else SiteKind.WEIGHT
        if value in self._keys:
            return SiteKind.KEY
        return SiteKind.VALUE if value in self._values else SiteKind.ACTIVATION

    def _is_bias(self, value: str) -> bool:
        readers = [self.graph.node[place] for place in self._readers.get(value, [])]
        return bool(readers) and all(self._adds(node, value) for node in readers)

    def _adds(self, node: onnx.NodeProto, value: str) -> bool:
        """True when a node adds a constant along one axis to what a layer computed."""
        if node.op_type in _WITH_BIAS:
            return value in list(node.input)[2:3]
        if node.op_type != "Add":
            return False
        makers = (self._makers.get(self._source(name)) for name in node.input if name != value)
        return self._is_line(value) and any(m is not None and m.op_type in _LAYERS for m in makers)

    def _source(self, value: str) -> str:
        """Return the value that a site's Identity or a movement took it from."""
        for _ in range(_FAR):
            node = self._makers.get(value)
            if node is None or not (only_moves(node) or node.op_type in _PASSES):
                break
            value = node.input[0]
        return value

    def _is_line(self, value: str) -> bool:
        dims = self._dims.get(value, ())
        return sum(size > 1 for size in dims) <= 1

    def _user(self, value: str) -> onnx.NodeProto | None:
        """Return the first node that computes with a value, however it was moved before."""
        pending, seen = [value], {value}
        while pending:
            for place in self._readers.get(pending.pop(0), []):
                node = self.graph.node[place]
                if node.op_type in _ASKS_SHAPE:
                    continue
                if not (only_moves(node) or node.op_type in _PASSES):
                    return node
                pending += [name for name in node.output if name not in seen]
                seen.update(node.output)
        return None

    def _upstream(self, value: str) -> onnx.NodeProto | None:
        """Return the MatMul whose scores reach a Softmax."""
        for _ in range(_FAR):
            node = self._makers.get(value)
            if node is None or node.op_type == "MatMul":
                return node
            if not self._passes(node):
                return None
            places = [1] if node.op_type == "Where" else range(len(node.input))
            computed = [node.input[p] for p in places if self._makers.get(node.input[p])]
            if not computed:
                return None
            value = next((n for n in computed if self._leads_to_matmul(n)), computed[0])
        return None

    def _leads_to_matmul(self, value: str) -> bool:
        for _ in range(_FAR):
            node = self._makers.get(value)
            if node is None:
                return False
            if node.op_type == "MatMul":
                return True
            if not self._passes(node):
                return False
            value = node.input[0]
        return False

    def _downstream(self, value: str) -> onnx.NodeProto | None:
        """Return the MatMul that takes a Softmax's probabilities as first operand."""
        for _ in range(_FAR):
            readers = [self.graph.node[place] for place in self._readers.get(value, [])]
            node = next((n for n in readers if n.op_type == "MatMul"), None)
            if node is not None:
                return node if node.input[0] == value else None
            node = next((n for n in readers if self._passes(n)), None)
            if node is None:
                return None
            value = node.output[0]
        return None

    @staticmethod
    def _passes(node: onnx.NodeProto) -> bool:
        return only_moves(node) or node.op_type in _PASSES or node.op_type in _SCORE_STEPS

    def _second_operands(self, matmul: onnx.NodeProto | None) -> set[str]:
        """Return the values that a MatMul's second operand went through, its own name first."""
        found: set[str] = set()
        if matmul is None:
            return found
        value = matmul.input[1]
        for _ in range(_FAR):
            found.add(value)
            node = self._makers.get(value)
            if node is None or not self._moves_one(node):
                break
            value = node.input[0]
        return found

    def _moves_one(self, node: onnx.NodeProto) -> bool:
        """True for a movement, or a product with something that no node computes."""
        if only_moves(node) or node.op_type in _PASSES:
            return True
        return node.op_type in ("Mul", "Div") and node.input[1] not in self._makers


_LAYERS = frozenset({"Conv", "Gemm", "ConvTranspose", "MatMul"})
_WITH_BIAS = _LAYERS - {"MatMul"} | {
    "LayerNormalization",
    "BatchNormalization",
    "InstanceNormalization",
    "GroupNormalization",
}
_PASSES = frozenset({"Cast", "Dropout", "Identity"})
_SCORE_STEPS = frozenset({"Add", "Sub", "Mul", "Div"})
_ASKS_SHAPE = frozenset({"Shape", "Size"})
# Longest chain of nodes between a Softmax and its MatMul that is followed.
_FAR = 16
