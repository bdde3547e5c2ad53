"""OpenVINO as a second runtime: sessions, and the layers that it really executed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import FileUnreadable, FoldmarkError, MissingExtra, NotSupported
from foldmark.runtimes.onnxruntime import available_threads

__all__ = ["Layer", "OpenVinoSession", "executed_layers", "openvino_version"]

Array = NDArray[np.generic]
_WARM_UPS = 3


@dataclass(frozen=True)
class Layer:
    """One layer of OpenVINO's executed graph.

    Attributes:
        name: its name there.
        operator: its type ("FullyConnected", "Convolution", "FakeQuantize", ...).
        primitive: the kernel with the precision it computes in ("brgemm_avx512_amx_I8").
        precision: the precision that it reads ("u8", "f32").
        seconds: mean time of a run; 0 for what is done when the model loads.
        origins: names of the model's nodes that it stands for.
        sources: names of the layers it reads.
        input_shapes: shapes of what it reads.
        output_shapes: shapes of what it gives.
    """

    name: str
    operator: str
    primitive: str
    precision: str
    seconds: float
    origins: tuple[str, ...]
    sources: tuple[str, ...]
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]


class OpenVinoSession:
    """A model ready to run on the CPU in OpenVINO, floats held to float32.

    Args:
        path: the model; its external data is found beside it.
        threads: threads of one operator; all that the process may use when None.
        counters: whether every layer is timed.

    Raises:
        MissingExtra: openvino is not installed.
        FileUnreadable: no file there.
        NotSupported: OpenVINO refuses the model.
    """

    def __init__(
        self, path: str | Path, *, threads: int | None = None, counters: bool = False
    ) -> None:
        openvino = _openvino()
        if not Path(path).is_file():
            raise FileUnreadable("no such file", where=str(path))
        settings = {
            "INFERENCE_NUM_THREADS": threads or available_threads(),
            "PERFORMANCE_HINT": "LATENCY",
            # On processors with bfloat16 it would otherwise round every float to eight bits.
            "INFERENCE_PRECISION_HINT": "f32",
            "PERF_COUNT": counters,
        }
        try:
            core = openvino.Core()
            self._compiled = core.compile_model(core.read_model(str(path)), "CPU", settings)
            self._request = self._compiled.create_infer_request()
        except Exception as error:
            raise _refusal(error, str(path)) from error
        self.outputs = tuple(_name(port) for port in self._compiled.outputs)
        self._inputs = {name for port in self._compiled.inputs for name in port.get_names()}

    def run(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Run once and return copies of the named outputs, all when None.

        Raises NotSupported when OpenVINO can't run it on these arrays.
        """
        # An input that the model never reads is dropped when it is compiled.
        given = {
            name: np.asarray(a, order="C") for name, a in feeds.items() if name in self._inputs
        }
        try:
            self._request.infer(given, share_inputs=True)
            found = {
                name: np.array(self._request.get_tensor(port).data)
                for port in self._compiled.outputs
                for name in port.get_names()
            }
        except Exception as error:
            raise _refusal(error, "the model") from error
        wanted = self.outputs if outputs is None else outputs
        return {name: found[name] for name in wanted}

    def layers(self) -> tuple[Layer, ...]:
        """Return the executed graph, its times averaged over all runs so far."""
        return tuple(_layer(node) for node in self._compiled.get_runtime_model().get_ordered_ops())


def executed_layers(
    path: str | Path, feeds: Mapping[str, Array], *, threads: int | None = None, runs: int = 10
) -> tuple[Layer, ...]:
    """Run a model with every layer timed and return what was executed.

    Args:
        path: the model.
        feeds: array per input.
        threads: threads of one operator, all when None.
        runs: runs that are averaged, after the first few.
    """
    session = OpenVinoSession(path, threads=threads, counters=True)
    for _ in range(_WARM_UPS):
        session.run(feeds)
    early = {each.name: each.seconds * _WARM_UPS for each in session.layers()}
    for _ in range(runs):
        session.run(feeds)
    # Its times are means over all runs, also the first ones, which make the kernels.
    return tuple(
        replace(each, seconds=max(0.0, each.seconds * (runs + _WARM_UPS) - early[each.name]) / runs)
        for each in session.layers()
    )


def openvino_version() -> str:
    """Return its version without the build's number."""
    return str(_openvino().__version__).partition("-")[0]


def _openvino() -> Any:
    try:
        import openvino  # noqa: PLC0415  (an extra, imported where it is used)
    except ImportError:
        raise MissingExtra(
            "openvino is not installed", todo="pip install 'foldmark[openvino]'"
        ) from None
    return openvino


def _name(port: Any) -> str:
    return str(min(port.get_names()))


def _layer(node: Any) -> Layer:
    told = node.get_rt_info()

    def read(key: str) -> str:
        if key not in told:
            return ""
        value = told[key]
        return str(getattr(value, "value", value))

    spent = read("execTimeMcs")
    return Layer(
        node.get_friendly_name(),
        read("layerType"),
        read("primitiveType"),
        read("runtimePrecision"),
        float(spent) / 1e6 if spent.isdecimal() else 0.0,
        tuple(filter(None, read("originalLayersNames").split(","))),
        tuple(port.get_source_output().get_node().get_friendly_name() for port in node.inputs()),
        tuple(_shape(port) for port in node.inputs()),
        tuple(_shape(port) for port in node.outputs()),
    )


def _shape(port: Any) -> tuple[int, ...]:
    """Return a shape, 0 for an axis that is not known."""
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return ()
    return tuple(0 if axis.is_dynamic else int(axis.get_length()) for axis in shape)


def _refusal(error: Exception, where: str) -> FoldmarkError:
    """Return OpenVINO's exception as one line: the last thing it says, without its own paths."""
    if isinstance(error, FoldmarkError):
        return error
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Exception from", "Check '"))]
    said = (telling or lines or [type(error).__name__])[-1].removeprefix("-- ")
    return NotSupported(f"OpenVINO refuses: {said}", where=where)
