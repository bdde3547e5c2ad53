"""ONNX Runtime: sessions from files or graphs, any inner value tapped, errors said in one line."""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from foldmark.errors import (
    DataMismatch,
    FileUnreadable,
    FoldmarkError,
    FormatNotRecognised,
    NotSupported,
    OperatorNotSupported,
)
from foldmark.formats.onnx_external import IN_MEMORY
from foldmark.formats.onnx_tensor import byte_count
from foldmark.graphs.light import LightModel, lighten, with_outputs, without_unread

__all__ = [
    "EXACT_SUMS",
    "Input",
    "Optimization",
    "Session",
    "Weights",
    "available_threads",
    "session_source",
]

Array = NDArray[np.generic]

EXACT_SUMS = "session.x64quantprecision"
"""Entry of a session's configuration: "1" keeps pairs of products from saturating on x86.

Int8 weights become uint8 for it, whose kernels add in 32 bits. ONNX Runtime (1.32) opens no model
with DynamicQuantizeLSTM, with one weight of two products, or with int8 activations then.
"""

# Weights of a model on whose operators threads don't wait by spinning.
_LITTLE = 1_000_000


class Optimization(Enum):
    """How far ONNX Runtime may rewrite the graph before it runs."""

    OFF = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    BASIC = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    EXTENDED = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    ALL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL


class Weights(Enum):
    """Where matrix products find their weights."""

    PACKED = "copied into the layout that a kernel likes: fastest"
    SHARED = "read where they lie: no second copy in memory"

    @classmethod
    def of(cls, model: onnx.ModelProto | LightModel) -> "Weights":
        """Return SHARED for a model whose copy would take a gigabyte, else PACKED."""
        graph = model.model.graph if isinstance(model, LightModel) else model.graph
        return cls.SHARED if sum(map(byte_count, graph.initializer)) > IN_MEMORY else cls.PACKED


@dataclass(frozen=True)
class Input:
    """One input of a model.

    Attributes:
        name: its name.
        dtype: the numpy type it takes, None for types numpy has not (strings, sequences).
        shape: per axis a length, or None where any length goes; None when the rank is free.
    """

    name: str
    dtype: np.dtype[np.generic] | None
    shape: tuple[int | None, ...] | None


def available_threads() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Session:
    """A model ready to run on the CPU.

    Args:
        model: a path, a ModelProto or a LightModel. Weights of the last two are not copied
            more than once, and may exceed the 2 GB that a protobuf can hold.
        taps: inner values to return beside the model's outputs.
        optimization: how far the graph may be rewritten.
        threads: threads of one operator; all that the process may use when None.
        weights: whether each session packs a copy of them.
        title: what messages call the model.

    Raises:
        FileUnreadable, FormatNotRecognised: no model at the path.
        OperatorNotSupported: ONNX Runtime has no kernel; names the operator and the node.
        NotSupported: ONNX Runtime refuses the graph for another reason.
    """

    def __init__(
        self,
        model: str | Path | onnx.ModelProto | LightModel,
        *,
        taps: Sequence[str] = (),
        optimization: Optimization = Optimization.ALL,
        threads: int | None = None,
        weights: Weights = Weights.PACKED,
        title: str = "the model",
    ) -> None:
        self._title = title
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = optimization.value
        options.intra_op_num_threads = threads or available_threads()
        options.inter_op_num_threads = 1
        # In the order of the nodes: a value that only a tap reads is read at once, and freed.
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        # A plan of the memory would be laid out beside what the first run took.
        options.enable_mem_pattern = False
        options.log_severity_level = 4  # faults arrive as exceptions; nothing is printed twice
        if weights is Weights.SHARED:
            options.add_session_config_entry("session.disable_prepacking", "1")
        # Several sessions live side by side: an idle one must not keep a processor spinning.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if _weighs_little(model):
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # ONNX Runtime reads weights kept apart where they lie, as long as the session lives.
        source, self._weights = session_source(model, taps, options)
        with _said_plainly(title):
            self._session = onnxruntime.InferenceSession(
                source, options, providers=["CPUExecutionProvider"]
            )
        self.inputs = tuple(_input(argument) for argument in self._session.get_inputs())
        self.outputs = tuple(argument.name for argument in self._session.get_outputs())

    def run(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Run once and return the named outputs (all when None), without copying them.

        Raises DataMismatch for a feed that is missing, unknown, or of the wrong rank, length or
        dtype; NotSupported when a kernel fails, naming the node.
        """
        self._check(feeds)
        values = _values(feeds)
        wanted = list(self.outputs if outputs is None else outputs)
        with _said_plainly(self._title):
            results = self._session.run_with_ort_values(wanted, values)
        return {name: value.numpy() for name, value in zip(wanted, results, strict=True)}

    def run_into(self, feeds: Mapping[str, Array], results: Mapping[str, Array]) -> None:
        """Run once and write the named outputs into the arrays given, of their shape and dtype.

        A result may lie in the memory of a feed when every element of it depends on that feed's
        element in the same place alone.
        """
        self._check(feeds)
        binding = self._session.io_binding()
        values = _values(feeds)
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        targets = {name: onnxruntime.OrtValue.ortvalue_from_numpy(a) for name, a in results.items()}
        for name, target in targets.items():
            binding.bind_ortvalue_output(name, target)
        with _said_plainly(self._title):
            self._session.run_with_iobinding(binding)

    def _check(self, feeds: Mapping[str, Array]) -> None:
        expected = {argument.name: argument for argument in self.inputs}
        names = ", ".join(expected)
        for name in feeds:
            if name not in expected:
                raise DataMismatch(
                    "the model has no such input", where=f"input {name!r}", expected=names
                )
        for name, argument in expected.items():
            if name not in feeds:
                got = ", ".join(feeds) or "nothing"
                raise DataMismatch("input is missing", where=f"input {name!r}", got=got)
            _check_feed(argument, feeds[name])


def _weighs_little(model: str | Path | onnx.ModelProto | LightModel) -> bool:
    """Return True for a model whose operators end before a thread that spins is of any use."""
    if isinstance(model, str | Path):
        return False
    inner, apart = (model.model, model.weights) if isinstance(model, LightModel) else (model, {})
    stored = sum(math.prod(tensor.dims) for tensor in inner.graph.initializer)
    return stored + sum(array.size for array in apart.values()) < _LITTLE


def _values(feeds: Mapping[str, Array]) -> dict[str, onnxruntime.OrtValue]:
    """Return feeds as the runtime takes them: arrays in C order, scalars as arrays of rank 0."""
    return {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))
        for name, array in feeds.items()
    }


def _check_feed(argument: Input, array: Array) -> None:
    """Raise DataMismatch unless the array fits the input."""
    where = f"input {argument.name!r}"
    if argument.dtype is not None and array.dtype != argument.dtype:
        raise DataMismatch(
            "wrong dtype", where=where, got=str(array.dtype), expected=str(argument.dtype)
        )
    if argument.shape is None:
        return
    fits = array.ndim == len(argument.shape) and all(
        want in (None, got) for want, got in zip(argument.shape, array.shape, strict=True)
    )
    if not fits:
        expected = "(" + ", ".join("any" if n is None else str(n) for n in argument.shape) + ")"
        raise DataMismatch("wrong shape", where=where, got=str(array.shape), expected=expected)


def _input(argument: onnxruntime.NodeArg) -> Input:
    """Read ONNX Runtime's description of an input."""
    found = re.fullmatch(r"tensor\((\w+)\)", argument.type)
    dtype = None
    if found:
        spelled = {"float": "float32", "double": "float64"}.get(found[1], found[1])
        try:
            dtype = np.dtype(spelled)
        except TypeError:
            dtype = None
    shape = None
    if argument.shape:  # ONNX Runtime shows a free rank and a scalar alike, as no axes
        shape = tuple(n if isinstance(n, int) and n >= 0 else None for n in argument.shape)
    return Input(argument.name, dtype, shape)


def session_source(
    model: str | Path | onnx.ModelProto | LightModel,
    taps: Sequence[str],
    options: onnxruntime.SessionOptions,
) -> tuple[str | bytes, list[onnxruntime.OrtValue]]:
    """Return what InferenceSession takes, and the weights handed over in `options`."""
    if isinstance(model, str | Path):
        path = Path(model)
        if not path.is_file():
            raise FileUnreadable("no such file", where=str(model))
        if not taps:
            return str(path), []
        # The weights' files are found by the path's folder, never read here.
        folder = str(path.resolve().parent)
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", folder
        )
        try:
            graph = onnx.load(path, load_external_data=False)
        except Exception as error:
            raise FormatNotRecognised("not an ONNX model", where=str(model)) from error
        return with_outputs(LightModel(graph, {}), taps).model.SerializeToString(), []
    # ONNX Runtime drops unread weights, and then complains that they are not there to be given.
    light = without_unread(with_outputs(lighten(model), taps))
    arrays = [np.ascontiguousarray(weight) for weight in light.weights.values()]
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays]
    if values:
        # For the optimizer, which may read them; by itself the session would keep copies.
        options.add_external_initializers(list(light.weights), values)
        for name, value in zip(light.weights, values, strict=True):
            options.add_initializer(name, value)
    return light.model.SerializeToString(), values


_NO_KERNEL = re.compile(
    r"Could not find an implementation for (?P<operator>\S+) node with name '(?P<node>.*?)'"
)
_NO_OPERATOR = re.compile(
    r"In Node, \(\"(?P<node>.*?)\", (?P<operator>\w+),.*No Op registered", re.DOTALL
)
_IN_NODE = re.compile(
    r"running (?P<operator>\w+) node\. Name:'(?P<node>.*?)' Status Message: (?P<why>.*)", re.DOTALL
)
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
# "/onnxruntime_src/.../graph.cc:1617 void onnxruntime::Graph::Load(const std::map<int, int>&) "
_SOURCE = re.compile(r"/onnxruntime_src/\S+:\d+ [^()]*\((?:[^()]|\([^()]*\))*\) (?:const )?")


@contextmanager
def _said_plainly(where: str) -> Iterator[None]:
    """Turn ONNX Runtime's exceptions into errors of the tree."""
    try:
        yield
    except FoldmarkError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        raise _translated(error, where) from error


def _translated(error: Exception, where: str) -> FoldmarkError:
    """Return the error of the tree that says what ONNX Runtime said."""
    text = str(error)
    for pattern in (_NO_KERNEL, _NO_OPERATOR):
        if found := pattern.search(text):
            return OperatorNotSupported(
                f"ONNX Runtime has no CPU kernel for {found['operator']}",
                where=f"node {found['node']!r}",
            )
    if found := _IN_NODE.search(text):
        why = _SOURCE.sub("", found["why"].splitlines()[-1]).strip()
        return NotSupported(
            f"{found['operator']} failed in ONNX Runtime: {why}",
            where=f"node {found['node']!r}" if found["node"] else f"a node without name of {where}",
        )
    if type(error).__name__ in {"InvalidProtobuf", "NoModel"}:
        return FormatNotRecognised("not an ONNX model", where=where)
    plain = _SOURCE.sub("", " ".join(_PREFIX.sub("", text).split()))
    return NotSupported(f"ONNX Runtime refuses: {plain}", where=where)
