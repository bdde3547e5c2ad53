"""What the products of a model read, over all the data: the evidence that methods work from."""

from collections.abc import Iterable

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.methods.hessian import Inputs, InputSums
from foldmark.runtimes.batches import Data
from foldmark.runtimes.onnxruntime import Session
from foldmark.surgery.products import Product

__all__ = ["observe_inputs"]


def observe_inputs(
    model: onnx.ModelProto, products: Iterable[Product], data: Data, batch_size: int
) -> dict[str, Inputs]:
    """Return what was seen of every tensor that the products read, channels last.

    One pass, a batch at a time; memory does not grow with the number of batches.
    """
    channels = {
        p.node.input[p.activation]: 1 if p.node.op_type.startswith("Conv") else -1 for p in products
    }
    sums = {name: InputSums(name) for name in channels}
    inputs = {value.name for value in model.graph.input}
    session = Session(model, taps=[name for name in channels if name not in inputs])
    for batch in data.batches(batch_size):
        values = session.run(batch.feeds) | batch.feeds
        for name, axis in channels.items():
            array: NDArray[np.floating] = values[name].astype(np.float32, copy=False)
            sums[name].add(np.moveaxis(array, axis, -1))
    return {name: each.finish() for name, each in sums.items()}
