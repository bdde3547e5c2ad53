"""Large tensors made while a model is read, kept in temporary files instead of in memory."""

import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

__all__ = ["KEPT_BYTES", "Kept"]

KEPT_BYTES: Final = 1 << 26
"""Bytes from which a tensor is written to a file."""


class Kept:
    """Makes TensorProtos; those of large arrays point at files that live as long as this does."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0

    def tensor(self, array: NDArray[Any], name: str) -> onnx.TensorProto:
        """Return the array as a tensor; `onnx_tensor.tensor_array` maps a large one."""
        if array.nbytes < KEPT_BYTES or array.dtype not in (np.float32, np.float64):
            return numpy_helper.from_array(array, name)
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(
                prefix="foldmark-", ignore_cleanup_errors=True
            )
        path = Path(self._folder.name) / f"{self._count}.bin"
        self._count += 1
        np.ascontiguousarray(array).tofile(path)
        tensor = onnx.TensorProto(
            name=name,
            dims=array.shape,
            data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype),
            data_location=onnx.TensorProto.EXTERNAL,
        )
        for key, value in (("location", path), ("offset", 0), ("length", array.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor
