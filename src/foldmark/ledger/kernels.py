"""Which operators the runtime computes otherwise than the model says, once it has fused them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from foldmark.errors import FoldmarkError
from foldmark.runtimes.onnxruntime import Optimization, Session

__all__ = ["KernelDifference", "kernel_differences"]

_KEPT = 3
# One step is what another rounding of the same sum may give; more is another sum.
_STEPS = 1
_RELATIVE = 1e-3

_Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class KernelDifference:
    """An operator that comes out otherwise when the runtime optimizes.

    Attributes:
        operator: its type.
        node: its name, or that of its first output.
        steps: largest difference of its output codes; None where it gives floats.
        relative: largest difference over the largest value.
    """

    operator: str
    node: str
    steps: int | None
    relative: float

    def __str__(self) -> str:
        """Return the finding in a few words."""
        much = f"up to {self.relative:.0%}" if self.steps is None else f"up to {self.steps} steps"
        return f"{self.operator} {self.node!r} comes out {much} off"


def kernel_differences(model: onnx.ModelProto, feeds: _Arrays) -> tuple[KernelDifference, ...]:
    """Run each operator between its QDQ pairs as written and as optimized; return what differs.

    model   the quantized model, without control flow
    feeds   one batch

    The largest differences come first; three at most.
    """
    pieces = list(_pieces(model.graph))
    if not pieces:
        return ()
    fed = {value.name for value in model.graph.input}
    taps = dict.fromkeys(name for piece in pieces for name in piece.inputs if name not in fed)
    session = Session(model, taps=list(taps), optimization=Optimization.OFF)
    values = {**feeds, **session.run(feeds)}
    found = [each for piece in pieces if (each := _compare(model, piece, values)) is not None]
    found.sort(key=lambda each: -each.relative)
    return tuple(found[:_KEPT])


@dataclass(frozen=True)
class _Piece:
    """An operator with the DequantizeLinear before and the QuantizeLinear after it."""

    core: onnx.NodeProto
    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def _pieces(graph: onnx.GraphProto) -> Iterable[_Piece]:
    makers = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    constants = {tensor.name for tensor in graph.initializer}
    for core in graph.node:
        before = [makers[n] for n in core.input if n in makers and _is(makers[n], "Dequantize")]
        if not before or core.op_type.endswith("QuantizeLinear"):
            continue
        after = [r for n in core.output for r in readers.get(n, ()) if _is(r, "Quantize")]
        nodes = [*{node.output[0]: node for node in before}.values(), core, *after]
        made = {name for node in nodes for name in node.output}
        inputs = dict.fromkeys(
            name
            for node in nodes
            for name in node.input
            if name and name not in made and name not in constants
        )
        outputs = [node.output[0] for node in after] or [name for name in core.output if name]
        yield _Piece(core, tuple(nodes), tuple(inputs), tuple(outputs))


def _is(node: onnx.NodeProto, what: str) -> bool:
    return node.op_type == f"{what}Linear"


def _compare(model: onnx.ModelProto, piece: _Piece, values: _Arrays) -> KernelDifference | None:
    feeds = {name: values[name] for name in piece.inputs if name in values}
    if len(feeds) < len(piece.inputs):
        return None
    alone = _alone(model, piece, feeds)
    try:
        written = Session(alone, optimization=Optimization.OFF).run(feeds)
        fused = Session(alone).run(feeds)
    except FoldmarkError:
        return None  # what does not run by itself can't be compared by itself
    steps, relative = 0, 0.0
    for name, array in written.items():
        apart = np.abs(fused[name].astype(np.float64) - array.astype(np.float64)).max(initial=0.0)
        size = float(np.abs(array.astype(np.float64)).max(initial=0.0)) or 1.0
        relative = max(relative, float(apart) / size)
        steps = max(steps, int(apart) if array.dtype.kind in "iu" else 0)
    in_codes = all(array.dtype.kind in "iu" for array in written.values())
    if steps <= _STEPS if in_codes else relative <= _RELATIVE:
        return None
    core = piece.core
    return KernelDifference(
        core.op_type, core.name or core.output[0], steps if in_codes else None, relative
    )


def _alone(model: onnx.ModelProto, piece: _Piece, feeds: _Arrays) -> onnx.ModelProto:
    read = {name for node in piece.nodes for name in node.input}
    graph = helper.make_graph(
        list(piece.nodes),
        "piece",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in piece.outputs],
        [tensor for tensor in model.graph.initializer if tensor.name in read],
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
