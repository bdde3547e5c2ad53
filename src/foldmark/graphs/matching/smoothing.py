"""Weights whose input channels were rescaled, the inverse put into the activations before.

Smoothing moves a factor s of each channel from the activation into the weight: x / s by a Mul
before the layer, or in the gain of the normalization there, and s W in the layer. The network
is the same; the float original of the weight is s W.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.formats.onnx_tensor import tensor_array
from foldmark.graphs.matching.float_weights import FloatWeights
from foldmark.graphs.matching.likeness import distance

__all__ = ["factors_into_activations", "rescaled"]

Array = NDArray[Any]

# Error from which a weight is worth a second look: more than eight bits leave behind.
_SUSPECT = 0.02


def factors_into_activations(
    known: FloatWeights, constants: Mapping[str, onnx.TensorProto]
) -> list[Array]:
    """Return what the quantized model multiplies channels with and the float model does not.

    Args:
        known: the float model's constants.
        constants: the quantized model's, those of weight sites left out.

    Returns:
        Vectors, one factor a channel; a gain that changed gives the ratio of new to old.
    """
    return list(_factors(known, constants))


def _factors(known: FloatWeights, constants: Mapping[str, onnx.TensorProto]) -> Iterator[Array]:
    for name, tensor in constants.items():
        is_line = sum(size > 1 for size in tensor.dims) == 1
        if not is_line or tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        new = tensor_array(tensor).reshape(-1).astype(np.float64)
        old = np.ones_like(new)
        if name in known.tensors:
            old = known.array(name).reshape(-1).astype(np.float64)
        if old.shape == new.shape and np.all(old != 0) and np.all(new / old > 0):
            ratio = new / old
            if np.ptp(ratio) > 1e-3 * np.max(np.abs(ratio)):
                yield ratio


def rescaled(original: Array, values: Array, factors: list[Array]) -> Array | None:
    """Return the float original with its input channels rescaled, None when none was.

    The factor that fits must leave less than half of the error that stands without it.
    """
    before = distance(original, values)
    if original.ndim < 2 or before < _SUSPECT:
        return None
    best, error = None, before / 2
    for factor in factors:
        for axis in (0, 1):
            if original.shape[axis] != len(factor):
                continue
            wide = factor.reshape([-1 if i == axis else 1 for i in range(original.ndim)])
            for candidate in (original / wide, original * wide):
                if (apart := distance(candidate, values)) < error:
                    best, error = candidate.astype(original.dtype), apart
    return best
