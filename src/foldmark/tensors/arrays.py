"""Arrays from anywhere as numpy arrays, without importing where they come from."""

import sys
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from foldmark.errors import DataMismatch

__all__ = ["as_array"]


def as_array(array: Any) -> NDArray[Any]:
    """Return a numpy array of the numbers of `array`, sharing its memory where that is possible.

    Takes numpy arrays, PyTorch tensors of any device (bfloat16 too), and whatever offers
    `__array__` or `__dlpack__`. Raises DataMismatch for anything else.
    """
    torch = sys.modules.get("torch")  # whoever holds a tensor has imported it
    if torch is not None and isinstance(array, torch.Tensor):
        return _from_torch(array, torch)
    if hasattr(array, "__array__"):
        return np.asarray(array)
    if hasattr(array, "__dlpack__"):
        return np.from_dlpack(array)
    raise DataMismatch(
        "not an array",
        got=type(array).__name__,
        expected="a numpy array, a tensor, or an object with __array__ or __dlpack__",
    )


def _from_torch(tensor: Any, torch: Any) -> NDArray[Any]:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        bits: NDArray[Any] = tensor.view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    found: NDArray[Any] = tensor.numpy()
    return found
