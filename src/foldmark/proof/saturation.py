"""Pairs of u8 x s8 products that would saturate on a processor without VNNI, counted exactly.

VPMADDUBSW multiplies unsigned by signed bytes and adds each two neighbouring products into a
16-bit integer with saturation. 2 * 255 * 127 = 64770 does not fit 32767, so such a pair is cut
short; VNNI adds into 32 bits and has no such limit. The neighbours are those along the sum, in
the order of the kernel: k for a MatMul, (row, column, channel) of the window for a convolution.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numba
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from foldmark.runtimes.batches import Data
from foldmark.runtimes.onnxruntime import Optimization, Session
from foldmark.runtimes.profile import Execution

__all__ = ["Saturation", "count_saturated_pairs", "saturations"]

_ROWS = 64  # rows of activations examined per operator and batch
_LOW, _HIGH = -32768, 32767


@dataclass(frozen=True)
class Saturation:
    """Saturating pairs of one operator.

    Attributes:
        node: its name in the rewritten graph.
        saturated: pairs that would saturate.
        examined: pairs looked at.
        worst: largest error of one sum of pairs, in units of the int32 accumulator.
    """

    node: str
    saturated: int
    examined: int
    worst: int


@numba.njit(cache=True, nogil=True)
def count_saturated_pairs(
    activations: NDArray[np.uint8], weights: NDArray[np.int8]
) -> tuple[int, int]:
    """Count pairs that VPMADDUBSW would saturate.

    activations  (m, k)  uint8
    weights      (n, k)  int8, one row per output
    ->           (pairs with a[2i] w[2i] + a[2i+1] w[2i+1] outside int16,
                  largest |error| of one of the m n sums)
    """
    count, worst = 0, 0
    rows, inner = activations.shape
    for row in range(rows):
        for column in range(weights.shape[0]):
            error = 0
            for k in range(0, inner - 1, 2):
                pair = int(activations[row, k]) * int(weights[column, k]) + int(
                    activations[row, k + 1]
                ) * int(weights[column, k + 1])
                if pair > _HIGH:
                    count += 1
                    error += _HIGH - pair
                elif pair < _LOW:
                    count += 1
                    error += _LOW - pair
            worst = max(worst, abs(error))
    return count, worst


@dataclass(frozen=True)
class _Product:
    """An integer product: where its activation codes are, and its weights as rows."""

    node: onnx.NodeProto
    tap: str
    codes: NDArray[np.int8]  # (n, k) or (out, in/group, *window)
    is_convolution: bool


def saturations(execution: Execution, data: Data, batch_size: int) -> tuple[Saturation, ...]:
    """Count the saturating pairs of every u8 x s8 operator on the first batch of the data.

    Args:
        execution: the model as ONNX Runtime rewrote it, optimized no further than EXTENDED.
        data: samples.
        batch_size: samples of the batch; of each operator 64 rows of activations, evenly
            spread, are examined.
    """
    products = list(_products(execution.graph))
    if not products:
        return ()
    session = Session(
        execution.graph,
        taps=list(dict.fromkeys(each.tap for each in products)),
        optimization=Optimization.OFF,
    )
    batch = next(iter(data.batches(batch_size)))
    taps = session.run(batch.feeds)
    return tuple(_counted(each, taps[each.tap]) for each in products)


# operator -> index of activation, index of weight.
_OPERANDS = {
    "QLinearMatMul": (0, 3), "QGemm": (0, 3), "QLinearConv": (0, 3), "MatMulInteger": (0, 1),
    "MatMulIntegerToFloat": (0, 1), "DynamicQuantizeMatMul": (0, 1), "ConvInteger": (0, 1),
}  # fmt: skip


def _products(model: onnx.ModelProto) -> Iterator[_Product]:
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type not in _OPERANDS:
            continue
        activation, weight = (node.input[i] for i in _OPERANDS[node.op_type])
        tensor = stored.get(weight)
        if tensor is None or tensor.data_type != TensorProto.INT8:
            continue
        codes = numpy_helper.to_array(tensor)
        convolution = node.op_type in {"QLinearConv", "ConvInteger"}
        if convolution and codes.shape[1] == 1:
            continue  # depthwise: one channel a window, computed without byte pairs
        if not convolution:
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            codes = codes if transposed else np.swapaxes(codes, -1, -2)
            codes = codes.reshape(-1, codes.shape[-1])
        yield _Product(node, activation, codes, convolution)


def _counted(product: _Product, tapped: NDArray[np.generic]) -> Saturation:
    activations = _unsigned(tapped)
    if product.is_convolution:
        rows, weights = _windows(product, activations)
    else:
        rows = activations.reshape(-1, activations.shape[-1])
        weights = product.codes
    if len(rows) > _ROWS:
        rows = rows[np.linspace(0, len(rows) - 1, _ROWS).astype(int)]
    count, worst = count_saturated_pairs(np.ascontiguousarray(rows), np.ascontiguousarray(weights))
    examined = len(rows) * len(weights) * (weights.shape[1] // 2)
    return Saturation(product.node.name, int(count), examined, int(worst))


def _unsigned(tapped: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return the codes as the instruction reads them: unsigned.

    Signed activations are moved up by 128, as the kernels do; float ones are quantized as
    DynamicQuantizeLinear does.
    """
    if tapped.dtype == np.uint8:
        return tapped.view(np.uint8)
    if tapped.dtype == np.int8:
        return (tapped.view(np.uint8) ^ np.uint8(0x80)).astype(np.uint8)
    real = tapped.astype(np.float32)
    low, high = min(np.float32(0), real.min()), max(np.float32(0), real.max())
    if high == low:
        return np.zeros(real.shape, np.uint8)
    scale = np.float32(high - low) / np.float32(255)
    zero = np.rint(np.clip(-low / scale, 0, 255))
    return np.clip(np.rint(real / scale) + zero, 0, 255).astype(np.uint8)


def _windows(
    product: _Product, activations: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.int8]]:
    """Return windows and filters as rows (kernel position, channel) of the first group.

    activations  (batch, channels, *space) -> (windows, window * channels)
    Windows at the border, which read padding, are left out.
    """
    attributes = {a.name: a for a in product.node.attribute}
    filters = product.codes
    groups = attributes["group"].i if "group" in attributes else 1
    space = filters.shape[2:]
    dilations = (
        tuple(attributes["dilations"].ints) if "dilations" in attributes else (1,) * len(space)
    )
    reach = tuple((n - 1) * d + 1 for n, d in zip(space, dilations, strict=True))
    inside = activations[:, : filters.shape[1]]
    if any(have < need for have, need in zip(inside.shape[2:], reach, strict=True)):
        return np.zeros((0, filters[0].size), np.uint8), filters.reshape(len(filters), -1)
    views = np.lib.stride_tricks.sliding_window_view(inside, reach, tuple(range(2, inside.ndim)))
    places = views.reshape(*views.shape[: inside.ndim], *reach)
    spots = np.indices(places.shape[2 : inside.ndim]).reshape(len(space), -1).T
    chosen = spots[np.linspace(0, len(spots) - 1, min(_ROWS, len(spots))).astype(int)]
    thinned = (slice(None), slice(None), *(slice(None, None, d) for d in dilations))
    rows = [
        np.moveaxis(places[(slice(None), slice(None), *spot)][thinned], 1, -1).reshape(
            len(inside), -1
        )
        for spot in chosen
    ]
    first = filters[: len(filters) // groups]
    return np.concatenate(rows), np.moveaxis(first, 1, -1).reshape(len(first), -1)
