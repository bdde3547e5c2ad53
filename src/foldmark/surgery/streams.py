"""Channels that only linear operators touch: where a rotation can be put in and taken out.

A stream is a set of tensors that hold the same channels, from the products that write them to
the products that read them. With R orthogonal, writers get W R and readers R^T W, and every
tensor between holds x R instead of x. What stands between must not look at single channels:
additions, normalizations over all channels, operators that move tokens about.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import onnx

from foldmark.surgery.editor import Editor, array_of, attribute, consumers, node_name

__all__ = ["Blocked", "Norm", "NormKind", "Place", "Stream", "Touched", "find_streams"]

Shapes = Mapping[str, tuple[int, ...]]


class Blocked(Exception):
    """Why a stream can't be rotated."""


@dataclass(frozen=True)
class Place:
    """Where a tensor holds the channels.

    Attributes:
        axis: counted from the front.
        repeat: how many times the channels follow each other on it (heads, merged).
    """

    axis: int
    repeat: int = 1


class NormKind(Enum):
    """What a normalization does to a token before its own scale and shift."""

    MEAN_AND_ROOT = "LayerNormalization"
    ROOT = "RMSNormalization"


_NORMS = {
    "LayerNormalization": NormKind.MEAN_AND_ROOT,
    "RMSNormalization": NormKind.ROOT,
    "SimplifiedLayerNormalization": NormKind.ROOT,
}


@dataclass(frozen=True)
class Touched:
    """A constant that a rotation changes.

    Attributes:
        node: who reads it.
        index: which input it is.
        place: the channels' place in it.
    """

    node: onnx.NodeProto
    index: int
    place: Place


@dataclass(frozen=True)
class Norm:
    """A normalization inside a stream.

    Attributes:
        node: it.
        readers: the constants that its result meets; its scale and shift go into them.
    """

    node: onnx.NodeProto
    kind: NormKind
    readers: tuple[Touched, ...]


@dataclass
class Stream:
    """Channels that can be rotated.

    Attributes:
        size: how many.
        places: the tensors.
        touched: the constants to rotate.
        norms: the normalizations in it.
        written, read: products at its ends.
    """

    size: int
    places: dict[str, Place] = field(default_factory=dict)
    touched: dict[tuple[int, int], Touched] = field(default_factory=dict)
    norms: list[Norm] = field(default_factory=list)
    written: int = 0
    read: int = 0


def find_streams(editor: Editor, shapes: Shapes) -> tuple[list[Stream], dict[str, str]]:
    """Return the streams of the outer graph, and of each that can't be rotated the reason.

    Args:
        editor: the model.
        shapes: of every float tensor in it, in one run.
    """
    streams: list[Stream] = []
    blocked: dict[str, str] = {}
    seen: set[str] = set()
    for tensor, place, size in _seeds(editor, shapes):
        if tensor in seen or size < 2:
            continue
        seen.add(tensor)
        try:
            found = _Walk(editor, shapes, size).follow(tensor, place)
        except Blocked as reason:
            blocked[tensor] = str(reason)
            continue
        if found.written and found.read and not any(_overlap(found, each) for each in streams):
            seen |= set(found.places)
            streams.append(found)
    behind = {norm.node.output[0] for stream in streams for norm in stream.norms}
    return streams, {tensor: why for tensor, why in blocked.items() if tensor not in behind}


def _overlap(one: Stream, other: Stream) -> bool:
    return bool(one.places.keys() & other.places.keys())


def _seeds(editor: Editor, shapes: Shapes) -> Iterator[tuple[str, Place, int]]:
    """Yield where channels begin to be asked about: values of attention, norms, inputs."""
    root = editor.root
    for node in root.graph.node:
        if node.op_type == "MatMul" and all(root.find(name) is None for name in node.input):
            shape = shapes.get(node.input[1], ())
            if len(shape) > 2:
                yield node.input[1], Place(len(shape) - 1), shape[-1]
    for node in root.graph.node:
        if node.op_type in _NORMS and node.input[0] in shapes:
            shape = shapes[node.input[0]]
            yield node.input[0], Place(len(shape) - 1), shape[-1]
    for node in root.graph.node:
        if node.op_type in ("MatMul", "Gemm") and root.find(node.input[1]) is not None:
            shape = shapes.get(node.input[0], ())
            if len(shape) > 1:
                yield node.input[0], Place(len(shape) - 1), shape[-1]


class _Walk:
    """One stream, followed from a tensor to its ends."""

    def __init__(self, editor: Editor, shapes: Shapes, size: int) -> None:
        graph = editor.root.graph
        self.find = editor.root.find
        self.shapes = shapes
        self.stream = Stream(size)
        self.makers = {name: node for node in graph.node for name in node.output}
        self.readers = consumers(graph)
        self.outputs = {value.name for value in graph.output}
        self.inputs = {value.name for value in graph.input}
        self.wanted: list[str] = []

    def follow(self, tensor: str, place: Place) -> Stream:
        """Return the stream that a tensor belongs to. Raises Blocked."""
        self.join(tensor, place)
        while self.wanted:
            name = self.wanted.pop()
            at = self.stream.places[name]
            if name in self.outputs:
                raise Blocked(f"{name} is an output of the model")
            maker = self.makers.get(name)
            if maker is None:
                raise Blocked(f"{name} is an input of the model")
            self.made(maker, name, at)
            for reader in self.readers[name]:
                self.read(reader, name, at)
        return self.stream

    def join(self, tensor: str, place: Place) -> None:
        """Take a tensor into the stream."""
        shape = self.shapes.get(tensor)
        if shape is None or place.axis >= len(shape):
            raise Blocked(f"the shape of {tensor} is not known")
        if shape[place.axis] != place.repeat * self.stream.size:
            raise Blocked(f"{tensor} has {shape[place.axis]} channels where others meet it")
        known = self.stream.places.get(tensor)
        if known is not None and known != place:
            raise Blocked(f"{tensor} holds the channels in two places")
        if known is None:
            self.stream.places[tensor] = place
            self.wanted.append(tensor)

    def touch(self, node: onnx.NodeProto, index: int, place: Place) -> Touched:
        """Note a constant that is rotated."""
        found = self.find(node.input[index])
        assert found is not None
        if place.axis >= len(found[1].dims) or (
            found[1].dims[place.axis] != place.repeat * self.stream.size
        ):
            raise Blocked(f"{node_name(node)} meets all channels with one number")
        made = Touched(node, index, place)
        self.stream.touched[id(node), index] = made
        return made

    def made(self, node: onnx.NodeProto, name: str, at: Place) -> None:
        """Go on from a tensor to what makes it."""
        last = at.axis == len(self.shapes[name]) - 1
        match node.op_type:
            case "MatMul" if last and self.find(node.input[1]) is not None:
                self.touch(node, 1, Place(len(self.dims(node, 1)) - 1, at.repeat))
                self.stream.written += 1
            case "Gemm" if last and self.find(node.input[1]) is not None:
                self.touch(node, 1, Place(0 if attribute(node, "transB", 0) else 1, at.repeat))
                self.shift(node, at)
                self.stream.written += 1
            case "Conv" if at.axis == 1 and attribute(node, "group", 1) == 1:
                if self.find(node.input[1]) is None:
                    raise Blocked(f"the weight of {node_name(node)} is computed")
                self.touch(node, 1, Place(0, at.repeat))
                self.shift(node, at)
                self.stream.written += 1
            case "Gather" if self.find(node.input[0]) is not None and last:
                self.touch(node, 0, Place(len(self.dims(node, 0)) - 1, at.repeat))
                self.stream.written += 1
            case kind if kind in _NORMS:
                raise Blocked(
                    f"the scale of {kind} reaches more than products, such as the residual "
                    "of a network that normalizes after adding"
                )
            case _:
                self.through(node, name, at)

    def shift(self, node: onnx.NodeProto, at: Place) -> None:
        """Note the constant that a product adds."""
        if len(node.input) < 3 or not node.input[2]:
            return
        if self.find(node.input[2]) is None:
            raise Blocked(f"{node_name(node)} adds something computed")
        self.touch(node, 2, Place(len(self.dims(node, 2)) - 1, at.repeat))

    def read(self, node: onnx.NodeProto, name: str, at: Place) -> None:
        """Go on from a tensor to one that reads it."""
        if node.op_type in ("Shape", "Size"):
            return
        touched = self.reader(node, name, at)
        if touched is not None:
            self.stream.read += 1
        elif node.op_type in _NORMS and node.input[0] == name:
            self.norm(node, at)
        else:
            self.through(node, name, at)

    def reader(self, node: onnx.NodeProto, name: str, at: Place) -> Touched | None:
        """Return the weight that a tensor's channels meet, None when the node is no product."""
        last = at.axis == len(self.shapes[name]) - 1
        if node.op_type not in ("MatMul", "Gemm", "Conv") or node.input[0] != name:
            return None
        if list(node.input).count(name) > 1 or self.find(node.input[1]) is None:
            return None
        match node.op_type:
            case "MatMul" if last and len(self.dims(node, 1)) == 2:
                return self.touch(node, 1, Place(0, at.repeat))
            case "Gemm" if last and not attribute(node, "transA", 0):
                return self.touch(
                    node, 1, Place(1 if attribute(node, "transB", 0) else 0, at.repeat)
                )
            case "Conv" if at.axis == 1 and attribute(node, "group", 1) == 1:
                return self.touch(node, 1, Place(1, at.repeat))
        return None

    def norm(self, node: onnx.NodeProto, at: Place) -> None:
        """Take a normalization in, whose scale and shift the readers of its result can hold."""
        rank = len(self.shapes[node.input[0]])
        axis = int(attribute(node, "axis", -1)) % rank
        if axis != rank - 1 or at != Place(axis):
            raise Blocked(f"{node_name(node)} normalizes over other axes than the channels")
        if any(name and self.readers[name] for name in node.output[1:]):
            raise Blocked(f"the mean or root of {node_name(node)} is read")
        if any(self.find(name) is None for name in node.input[1:] if name):
            raise Blocked(f"the scale of {node_name(node)} is computed")
        shifted = len(node.input) > 2 and bool(node.input[2])
        readers = list(self.behind(node.output[0], at, shifted))
        self.stream.norms.append(Norm(node, _NORMS[node.op_type], tuple(readers)))
        self.stream.read += len(readers)

    def behind(self, name: str, at: Place, shifted: bool) -> Iterator[Touched]:
        """Yield the weights that a normalization's result meets; nothing else may read it."""
        if name in self.outputs:
            raise Blocked(f"{name} is an output of the model")
        for node in self.readers[name]:
            if node.op_type in ("Shape", "Size"):
                continue
            touched = self.reader(node, name, at)
            if touched is not None:
                if node.op_type == "Conv" and shifted:
                    raise Blocked(f"{node_name(node)} pads what is shifted")
                yield touched
            elif node.op_type in _MOVING and node.input[0] == name:
                for other, place in self.same(node, name, at):
                    yield from self.behind(other, place, shifted)
            elif node.op_type in ("Add", "Sub") or node.op_type in _NORMS:
                raise Blocked(
                    "the scale of a normalization reaches the residual: the network normalizes "
                    "after adding"
                )
            else:
                raise Blocked(f"{node.op_type} reads single channels")

    def through(self, node: onnx.NodeProto, name: str, at: Place) -> None:
        """Take in the other tensors of a node that leaves channels alone."""
        for other, place in self.same(node, name, at):
            index = next((i for i, n in enumerate(node.input) if n == other), None)
            if index is not None and self.find(other) is not None:
                self.touch(node, index, place)
            else:
                self.join(other, place)

    def same(  # noqa: PLR0911, PLR0912  (a table)
        self, node: onnx.NodeProto, name: str, at: Place
    ) -> list[tuple[str, Place]]:
        """Return the node's other tensors that hold the same channels, and where."""
        made = node.output[0]
        rank = len(self.shapes.get(made, ()))
        if any(each.HasField("g") for each in node.attribute):
            raise Blocked(f"{node.op_type} holds graphs of its own")
        if any(n not in self.shapes and self.find(n) is None for n in (node.input[0], made)):
            raise Blocked(f"{node.op_type} makes something other than float32 values")
        match node.op_type:
            case "Add" | "Sub" | "Sum":
                return self._aligned(node, name, at)
            case "Mul" | "Div":
                return self._scaled(node, name, at)
            case "Identity" | "Dropout":
                return _pair(node, name, at)
            case "Transpose":
                perm = next((list(a.ints) for a in node.attribute if a.name == "perm"), None)
                perm = list(range(rank))[::-1] if perm is None else perm
                axis = perm.index(at.axis) if name == node.input[0] else perm[at.axis]
                return [(made if name == node.input[0] else node.input[0], Place(axis, at.repeat))]
            case "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze":
                other = made if name == node.input[0] else node.input[0]
                return [(other, self._reshaped(self.shapes[name], self.shapes[other], at))]
            case "MatMul":
                if name == node.input[0] and name != node.input[1]:
                    raise Blocked("two activations are multiplied over these channels")
                if name == node.input[1]:
                    if at.axis != len(self.shapes[name]) - 1:
                        raise Blocked("two activations are multiplied over these channels")
                    return [(made, Place(rank - 1, at.repeat))]
                if at.axis != rank - 1:
                    raise Blocked("a product of two activations mixes these channels")
                right = len(self.shapes[node.input[1]]) - 1
                return [(node.input[1], Place(right, at.repeat))]
            case "Slice" | "Gather" | "Concat" | "Split" | "Expand" | "ReduceMean" | "ReduceSum":
                return self._over_tokens(node, name, at)
        raise Blocked(f"{node.op_type} treats single channels")

    def dims(self, node: onnx.NodeProto, index: int) -> tuple[int, ...]:
        """Return a constant input's shape."""
        found = self.find(node.input[index])
        assert found is not None
        return tuple(found[1].dims)

    def _shape(self, name: str) -> tuple[int, ...]:
        found = self.find(name)
        return tuple(found[1].dims) if found is not None else self.shapes.get(name, ())

    def _aligned(self, node: onnx.NodeProto, name: str, at: Place) -> list[tuple[str, Place]]:
        behind = at.axis - len(self.shapes[name])
        found = []
        for other in (*node.input, node.output[0]):
            if other == name:
                continue
            shape = self._shape(other)
            if len(shape) + behind < 0 or shape[behind] != self.shapes[name][at.axis]:
                raise Blocked(f"{node_name(node)} adds one number to all channels")
            found.append((other, Place(len(shape) + behind, at.repeat)))
        return found

    def _scaled(self, node: onnx.NodeProto, name: str, at: Place) -> list[tuple[str, Place]]:
        behind = at.axis - len(self.shapes[name])

        def whole(other: str) -> bool:
            shape = self._shape(other)
            return len(shape) + behind >= 0 and shape[behind] != 1

        carrying = [other for other in node.input if whole(other)]
        if len(carrying) != 1 or (node.op_type == "Div" and carrying[0] != node.input[0]):
            raise Blocked(f"{node.op_type} treats single channels (a gate or an activation)")
        return [
            (other, Place(len(self._shape(other)) + behind, at.repeat))
            for other in (carrying[0], node.output[0])
            if other != name
        ]

    def _reshaped(self, old: tuple[int, ...], new: tuple[int, ...], at: Place) -> Place:
        size = self.stream.size
        if at.axis == len(old) - 1:
            # The channels lie side by side in memory, and still do.
            if not new or new[-1] % size:
                raise Blocked("a Reshape cuts the channels apart")
            return Place(len(new) - 1, new[-1] // size)
        before = int(np.prod(old[: at.axis]))
        for axis, length in enumerate(new):
            if length == old[at.axis] and int(np.prod(new[:axis])) == before:
                return Place(axis, at.repeat)
        raise Blocked("a Reshape cuts the channels apart")

    def _over_tokens(self, node: onnx.NodeProto, name: str, at: Place) -> list[tuple[str, Place]]:
        """Operators that choose, join or average along other axes than the channels'."""
        source, made = node.input[0], node.output[0]
        whole = self._shape(source)
        rank = len(whole)
        axes = self._axes(node, rank)
        if node.op_type == "Expand":
            behind = at.axis - len(self.shapes[name])
            others = [other for other in (source, made) if other != name]
            if any(self._shape(o)[behind] != self.shapes[name][at.axis] for o in others):
                raise Blocked(f"{node_name(node)} gives all channels one number")
            return [(o, Place(len(self._shape(o)) + behind, at.repeat)) for o in others]
        if node.op_type == "Concat":
            if at.axis in axes:
                raise Blocked(f"{node_name(node)} joins other channels to these")
            return [(o, at) for o in (*node.input, made) if o != name]
        if node.op_type == "Split":
            if at.axis in axes:
                raise Blocked(f"{node_name(node)} cuts the channels apart")
            return [(o, at) for o in (source, *node.output) if o and o != name]
        dropped = self._dropped(node, axes)
        inside = at.axis if name == source else self._lifted(at.axis, dropped)
        if inside in axes:
            raise Blocked(f"{node.op_type} works along the channels")
        if name == source:
            return [(made, Place(at.axis - sum(a < at.axis for a in dropped), at.repeat))]
        return [(source, Place(inside, at.repeat))]

    def _lifted(self, axis: int, dropped: Sequence[int]) -> int:
        for each in sorted(dropped):
            axis += each <= axis
        return axis

    def _dropped(self, node: onnx.NodeProto, axes: set[int]) -> list[int]:
        """Return the axes that the result has not."""
        if node.op_type == "Gather":
            return list(axes) if self._gathered(node) < 0 else []
        reduces = node.op_type.startswith("Reduce") and not attribute(node, "keepdims", 1)
        return sorted(axes) if reduces else []

    def _gathered(self, node: onnx.NodeProto) -> int:
        """Return how many axes a Gather adds: -1 for one index, 0 for a list of them."""
        return len(self._shape(node.output[0])) - len(self._shape(node.input[0]))

    def _axes(self, node: onnx.NodeProto, rank: int) -> set[int]:
        """Return the axes that a node works along. Raises Blocked when they are computed."""
        if node.op_type in ("Gather", "Concat", "Split"):
            if node.op_type == "Gather" and self._gathered(node) > 0:
                raise Blocked("a Gather takes several tokens at once")
            return {int(attribute(node, "axis", 0)) % rank}
        if node.op_type == "Expand":
            return set()
        listed = next((list(a.ints) for a in node.attribute if a.name == "axes"), None)
        index = 3 if node.op_type == "Slice" else 1
        if listed is None:
            found = self.find(node.input[index]) if len(node.input) > index else None
            if found is None:
                raise Blocked(f"the axes of {node_name(node)} are not written out")
            listed = [int(a) for a in np.asarray(array_of(found[1])).ravel()]
        return {a % rank for a in listed}


_MOVING = {
    *("Identity", "Dropout", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze"),
    *("Slice", "Gather", "ReduceMean"),
}


def _pair(node: onnx.NodeProto, name: str, at: Place) -> list[tuple[str, Place]]:
    other = node.output[0] if name == node.input[0] else node.input[0]
    return [(other, at)]
