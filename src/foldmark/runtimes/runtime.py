"""The runtimes that a model can be run in, behind one protocol."""

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from foldmark.runtimes.onnxruntime import Session
from foldmark.runtimes.openvino import OpenVinoSession, openvino_version

__all__ = ["Runnable", "Runtime", "open_session", "runtime_name"]

Array = NDArray[np.generic]


class Runtime(Enum):
    """What executes a model."""

    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"


class Runnable(Protocol):
    """A model that is ready to run."""

    outputs: tuple[str, ...]

    def run(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Run once and return the named outputs, all when None."""
        ...


def open_session(path: Path, runtime: Runtime, threads: int | None = None) -> Runnable:
    """Return the model at a path, ready to run.

    Raises:
        MissingExtra: the runtime is not installed.
        NotSupported: the runtime refuses the model.
    """
    if runtime is Runtime.OPENVINO:
        return OpenVinoSession(path, threads=threads)
    return Session(path, threads=threads)


def runtime_name(runtime: Runtime) -> str:
    """Return name, version and device, as reports print them."""
    if runtime is Runtime.OPENVINO:
        return f"OpenVINO {openvino_version()}, CPU, floats in float32"
    return f"ONNX Runtime {onnxruntime.__version__}, CPU"
