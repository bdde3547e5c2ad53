"""Which operators the runtime computes otherwise than the model says, fused or on codes."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from foldmark.errors import FoldmarkError
from foldmark.graphs.labels import Labels
from foldmark.graphs.reading.outputs import with_float_outputs
from foldmark.graphs.reading.read import read_quantized
from foldmark.graphs.sites import QuantizedGraph
from foldmark.runtimes.onnxruntime import Optimization, Session

__all__ = ["KernelDifference", "kernel_differences"]

_KEPT = 3
# One step may be another rounding of the same sum: told only where nothing is further off.
_STEPS = 1
_RELATIVE = 1e-3

_Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class KernelDifference:
    """An operator that comes out otherwise when the runtime fuses it or computes it on codes.

    Attributes:
        operator: its type.
        node: its name, or that of its first output.
        steps: largest difference of its output codes; None where it gives floats.
        relative: largest difference over the largest value.
        layer: its module path, "" when the graph does not let us recover it.
    """

    operator: str
    node: str
    steps: int | None
    relative: float
    layer: str = ""

    def __str__(self) -> str:
        """Return the finding in a few words."""
        if self.steps is None:
            much = f"{self.relative:.0%}"
        else:
            much = f"{self.steps} step" if self.steps == 1 else f"{self.steps} steps"
        place = f" of {self.layer}" if self.layer and self.layer not in self.node else ""
        return f"{self.operator} {self.node!r}{place} comes out up to {much} off"


def kernel_differences(model: onnx.ModelProto, feeds: _Arrays) -> tuple[KernelDifference, ...]:
    """Run each quantized operator by itself, as written and as the runtime has it.

    An operator between QDQ pairs is run as written and as optimized; one on codes in simulation
    and on its own kernel.

    model   the quantized model, without control flow
    feeds   one batch

    The largest differences come first; three at most.
    """
    pieces = [*_pieces(model.graph), *_pieces_on_codes(model.graph)]
    if not pieces:
        return ()
    fed = {value.name for value in model.graph.input}
    taps = dict.fromkeys(name for piece in pieces for name in piece.inputs if name not in fed)
    session = Session(model, taps=list(taps), optimization=Optimization.OFF)
    values = {**feeds, **session.run(feeds)}
    found = [each for piece in pieces if (each := _compare(model, piece, values)) is not None]
    far = [each for each in found if each.steps is None or each.steps > _STEPS]
    found = sorted(far or found, key=lambda each: -each.relative)[:_KEPT]
    labels = Labels(model.graph.node, [tensor.name for tensor in model.graph.initializer])
    outputs = {node.name or node.output[0]: node.output[0] for node in model.graph.node}
    return tuple(replace(each, layer=labels.around(outputs[each.node])) for each in found)


@dataclass(frozen=True)
class _Piece:
    """An operator with the nodes around it that say what its codes mean."""

    core: onnx.NodeProto
    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    is_on_codes: bool


def _pieces(graph: onnx.GraphProto) -> Iterable[_Piece]:
    """Return each operator with the DequantizeLinear before and the QuantizeLinear after it."""
    makers, readers = _makers(graph), _readers(graph)
    constants = {tensor.name for tensor in graph.initializer}
    for core in graph.node:
        before = [makers[n] for n in core.input if n in makers and _is(makers[n], "Dequantize")]
        if not before or core.op_type.endswith("QuantizeLinear"):
            continue
        after = [r for n in core.output for r in readers.get(n, ()) if _is(r, "Quantize")]
        yield _piece(before, core, after, constants, is_on_codes=False)


def _pieces_on_codes(graph: onnx.GraphProto) -> Iterable[_Piece]:
    """Return each operator on codes with the QuantizeLinear before, the DequantizeLinear after."""
    makers, readers = _makers(graph), _readers(graph)
    constants = {tensor.name for tensor in graph.initializer}
    for core in graph.node:
        before = [makers[n] for n in core.input if n in makers and _is(makers[n], "Quantize")]
        after = [r for n in core.output for r in readers.get(n, ()) if _is(r, "Dequantize")]
        named = core.op_type.startswith("QLinear") or core.op_type == "QGemm"
        if core.op_type.endswith("QuantizeLinear") or not (before or after or named):
            continue
        yield _piece(before, core, after, constants, is_on_codes=True)


def _piece(
    before: Iterable[onnx.NodeProto],
    core: onnx.NodeProto,
    after: Iterable[onnx.NodeProto],
    constants: Container[str],
    *,
    is_on_codes: bool,
) -> _Piece:
    nodes = [*{node.output[0]: node for node in before}.values(), core, *after]
    made = {name for node in nodes for name in node.output}
    inputs = dict.fromkeys(
        name
        for node in nodes
        for name in node.input
        if name and name not in made and name not in constants
    )
    outputs = [node.output[0] for node in after] or [name for name in core.output if name]
    return _Piece(core, tuple(nodes), tuple(inputs), tuple(outputs), is_on_codes)


def _makers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    return {name: node for node in graph.node for name in node.output}


def _readers(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    return readers


def _is(node: onnx.NodeProto, what: str) -> bool:
    return node.op_type == f"{what}Linear"


def _compare(model: onnx.ModelProto, piece: _Piece, values: _Arrays) -> KernelDifference | None:
    feeds = {name: values[name] for name in piece.inputs if name in values}
    if len(feeds) < len(piece.inputs):
        return None
    alone = _alone(model, piece, feeds)
    scales: dict[str, float] = {}
    try:
        if piece.is_on_codes:
            read = read_quantized(alone, None)
            scales = _scales(read)
            written = Session(read.simulated, optimization=Optimization.OFF).run(feeds)
            fused = Session(with_float_outputs(alone)).run(feeds)
        else:
            written = Session(alone, optimization=Optimization.OFF).run(feeds)
            fused = Session(alone).run(feeds)
    except FoldmarkError:
        return None  # what does not run by itself can't be compared by itself
    steps, relative = 0, 0.0
    for name, array in written.items():
        apart = np.abs(fused[name].astype(np.float64) - array.astype(np.float64)).max(initial=0.0)
        size = float(np.abs(array.astype(np.float64)).max(initial=0.0)) or 1.0
        relative = max(relative, float(apart) / size)
        steps = max(steps, round(float(apart) / scales.get(name, 1.0)))
    in_codes = all(name in scales or a.dtype.kind in "iu" for name, a in written.items())
    if steps == 0 if in_codes else relative <= _RELATIVE:
        return None
    core = piece.core
    return KernelDifference(
        core.op_type, core.name or core.output[0], steps if in_codes else None, relative
    )


def _scales(graph: QuantizedGraph) -> dict[str, float]:
    """Return the largest step of every output that is quantized with a known scale."""
    return {
        site.after: float(np.max(site.encoding.scale))
        for site in graph.sites
        if site.encoding.scale is not None
    }


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
