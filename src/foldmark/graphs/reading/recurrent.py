"""DynamicQuantizeLSTM, as an LSTM on dequantized weights and a quantized input.

Inside, the runtime quantizes the hidden state anew at every step. That error is nowhere in the
graph; it is part of what the real kernel adds to the simulated model.
"""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.graphs.reading.arithmetic import format_name
from foldmark.graphs.reading.codes import add_weight, decode
from foldmark.graphs.reading.integer import quantize_at_run_time
from foldmark.graphs.reading.parameters import Parameters
from foldmark.graphs.reading.scales import check_scale
from foldmark.graphs.reading.workspace import Workspace
from foldmark.graphs.sites import Encoding

__all__ = ["dynamic_quantize_lstm"]


def dynamic_quantize_lstm(space: Workspace, node: onnx.NodeProto) -> None:
    """Read DynamicQuantizeLSTM: X, W, R, the LSTM's others, then scales and zero points.

    W           (directions, input, 4 hidden), R (directions, hidden, 4 hidden)
    scales      (directions,) or (directions, 4 hidden)
    """
    names = [*node.input, *[""] * 12][:12]
    x = quantize_at_run_time(space, names[0])
    inputs = [
        decode(space, x[0], Parameters(x[1], x[2])),
        _weight(space, node, 1, 8),
        _weight(space, node, 2, 10),
        *(space.value(name) if name else "" for name in names[3:8]),
    ]
    written = onnx.helper.make_node("LSTM", inputs, list(node.output), name=node.name)
    written.attribute.extend(node.attribute)
    space.write(written)


def _weight(space: Workspace, node: onnx.NodeProto, place: int, scale_place: int) -> str:
    codes = space.need(node, place).transpose(0, 2, 1)
    scale, zero = space.need(node, scale_place), space.need(node, scale_place + 1)
    check_scale(space, node.input[scale_place], scale)
    encoding = _encoding(codes, scale, zero)
    return add_weight(space, codes, encoding, names=(node.input[place],))


def _encoding(codes: NDArray[Any], scale: NDArray[Any], zero: NDArray[Any]) -> Encoding:
    """Return the encoding of codes (directions, 4 hidden, width)."""
    name, directions = format_name(codes.dtype), codes.shape[0]
    if scale.size == 1:
        return Encoding(name, None, None, scale.reshape(()), zero.reshape(()))
    if scale.size == directions:
        return Encoding(name, 0, None, scale.reshape(-1), zero.reshape(-1))
    if directions == 1:
        return Encoding(name, 1, None, scale.reshape(-1), zero.reshape(-1))
    shape = (*codes.shape[:2], 1)
    parts = [np.broadcast_to(p.reshape(p.shape[0], -1), codes.shape[:2]) for p in (scale, zero)]
    return Encoding(name, 2, codes.shape[2], *(part.reshape(shape) for part in parts))
