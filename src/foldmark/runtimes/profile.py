"""What ONNX Runtime really executed: the rewritten graph and the time of each of its nodes."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx.external_data_helper import load_external_data_for_tensor

from foldmark.errors import NotSupported
from foldmark.formats.onnx_tensor import external_entries, is_external
from foldmark.formats.onnx_writer import fits_inside
from foldmark.runtimes.onnxruntime import Optimization, available_threads, session_source

__all__ = ["Execution", "NodeRun", "all_graphs", "all_nodes", "execute", "named_nodes"]

_CONTROL_FLOW = {"If", "Loop", "Scan"}
_SUFFIX = "_kernel_time"
_CODES = {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}


@dataclass(frozen=True)
class NodeRun:
    """One executed node.

    Attributes:
        name: its name in the rewritten graph.
        operator: its type.
        provider: the execution provider that ran it.
        seconds: mean time of a run; a control-flow node's own body is not counted in it.
        input_shapes: shapes of the inputs the profiler saw (packed weights are missing).
        output_shapes: shapes of the outputs.
    """

    name: str
    operator: str
    provider: str
    seconds: float
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Execution:
    """A model as ONNX Runtime runs it.

    Attributes:
        graph: the rewritten model; every node has a name of its own.
        nodes: what was executed, in order of first execution.
        seconds: mean time of a whole run under the profiler.
    """

    graph: onnx.ModelProto
    nodes: tuple[NodeRun, ...]
    seconds: float


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and every graph inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from all_graphs(attribute.g)
            for inner in attribute.graphs:
                yield from all_graphs(inner)


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of the model, those of subgraphs included."""
    for graph in all_graphs(model.graph):
        yield from graph.node


def named_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a unique name on every node; the argument itself when it has them."""
    names = [node.name for node in all_nodes(model)]
    if all(names) and len(set(names)) == len(names):
        return model
    named = onnx.ModelProto()
    named.CopyFrom(model)
    taken: set[str] = set(names)
    seen: set[str] = set()
    for index, node in enumerate(all_nodes(named)):
        if not node.name or node.name in seen:
            fresh = f"{node.name or node.op_type}_{index}"
            while fresh in taken:
                fresh += "_"
            node.name = fresh
            taken.add(fresh)
        seen.add(node.name)
    return named


def execute(
    model: onnx.ModelProto,
    feeds: Mapping[str, NDArray[np.generic]],
    *,
    folder: Path | None = None,
    optimization: Optimization = Optimization.ALL,
    threads: int | None = None,
    runs: int = 5,
) -> Execution:
    """Run a model under ONNX Runtime's profiler and return what was executed.

    Args:
        model: the model; nodes without a name are given one.
        feeds: array per input.
        folder: where its external data lies, None for a model without.
        optimization: how far the graph may be rewritten.
        threads: threads of one operator, all when None.
        runs: runs that are averaged, after one that is not.

    Raises NotSupported when ONNX Runtime refuses the model or can't run it.
    """
    with tempfile.TemporaryDirectory(prefix="foldmark-") as scratch:
        rewritten = Path(scratch) / "rewritten.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = optimization.value
        options.intra_op_num_threads = threads or available_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(scratch) / "profile")
        options.optimized_model_filepath = str(rewritten)
        if folder is not None:
            options.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", str(folder.resolve())
            )
        source, weights = _source(named_nodes(model), options)
        try:
            session = onnxruntime.InferenceSession(
                source, options, providers=["CPUExecutionProvider"]
            )
            for _ in range(runs + 1):
                session.run(None, dict(feeds))
            events = json.loads(Path(session.end_profiling()).read_text())
        except Exception as error:
            if not type(error).__module__.startswith("onnxruntime"):
                raise
            raise NotSupported(
                f"ONNX Runtime can't run it: {' '.join(str(error).split())}", where="the model"
            ) from error
        graph = _with_names_of_their_own(_read_rewritten(rewritten))
        del weights
    return Execution(graph, *_read(events, runs))


def _source(
    model: onnx.ModelProto, options: onnxruntime.SessionOptions
) -> tuple[str | bytes, list[onnxruntime.OrtValue]]:
    """Return what InferenceSession takes, and the weights that it reads where they lie.

    A model of which a file can't hold all weights is rewritten with its weights apart as well.
    """
    left_in_files = any(
        Path(external_entries(tensor).get("location", "")).is_absolute()
        for tensor in model.graph.initializer
        if is_external(tensor)
    )
    if not left_in_files and fits_inside(model):
        return model.SerializeToString(), []
    for key, value in (("file_name", "rewritten.weights"), ("min_size_in_bytes", "1024")):
        options.add_session_config_entry(
            f"session.optimized_model_external_initializers_{key}", value
        )
    return session_source(model, (), options)


def _read_rewritten(path: Path) -> onnx.ModelProto:
    """Read what ONNX Runtime wrote; of weights that lie apart the codes alone have values.

    Large floats tell by their shape all that is asked of them.
    """
    model = onnx.load(path, load_external_data=False)
    for graph in all_graphs(model.graph):
        for tensor in graph.initializer:
            if is_external(tensor) and tensor.data_type in _CODES:
                load_external_data_for_tensor(tensor, str(path.parent))
                tensor.ClearField("data_location")
                del tensor.external_data[:]
    return model


def _with_names_of_their_own(model: onnx.ModelProto) -> onnx.ModelProto:
    """Rename values that bodies of control flow share by name: rewriting makes some alike.

    ONNX Runtime would refuse to load what it wrote.
    """
    taken: set[str] = set()
    for graph in all_graphs(model.graph):
        renamed: dict[str, str] = {}
        for node in graph.node:
            for index, name in enumerate(node.output):
                if name in taken:
                    fresh = f"{name}_{len(taken)}"
                    renamed[name] = node.output[index] = fresh
                    taken.add(fresh)
                elif name:
                    taken.add(name)
        if renamed:
            _rename(graph, renamed)
    return model


def _rename(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    """Give values their new names wherever the graph and the bodies in it read them."""
    for inner in all_graphs(graph):
        for node in inner.node:
            for index, name in enumerate(node.input):
                node.input[index] = renamed.get(name, name)
    for value in graph.output:
        value.name = renamed.get(value.name, value.name)


def _read(events: list[dict[str, Any]], runs: int) -> tuple[tuple[NodeRun, ...], float]:
    """Return the nodes' mean times and the run's, from the profiler's events."""
    whole = sorted((e["ts"], e["dur"]) for e in events if e.get("name") == "model_run")
    start = whole[-runs][0]
    found: dict[str, NodeRun] = {}
    for event in events:
        if event.get("cat") != "Node" or not str(event["name"]).endswith(_SUFFIX):
            continue
        arguments = event["args"]
        if event["ts"] < start or arguments["op_name"] in _CONTROL_FLOW:
            continue
        name = str(event["name"]).removesuffix(_SUFFIX)
        before = found[name].seconds if name in found else 0.0
        found[name] = NodeRun(
            name,
            arguments["op_name"],
            arguments["provider"],
            before + float(event["dur"]) / 1e6 / runs,
            _shapes(arguments["input_type_shape"]),
            _shapes(arguments["output_type_shape"]),
        )
    seconds = sum(duration for _, duration in whole[-runs:]) / 1e6 / runs
    return tuple(found.values()), seconds


def _shapes(described: list[dict[str, list[int]]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(shape) for entry in described for shape in entry.values())
