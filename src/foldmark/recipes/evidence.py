"""What the products of a model read, over all the data: the evidence that methods work from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.methods.hessian import Inputs, InputSums
from foldmark.methods.patches import PatchSums, Window
from foldmark.runtimes.batches import Data
from foldmark.runtimes.onnxruntime import Session
from foldmark.surgery.editor import attribute
from foldmark.surgery.products import Product

__all__ = ["Evidence", "observe_inputs", "observe_layers"]

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Evidence:
    """What layers read.

    Attributes:
        inputs: by tensor, of matrix products.
        windows: by node name, H (groups, n, n) of what a convolution's windows hold.
    """

    inputs: Mapping[str, Inputs]
    windows: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def without(self, columns: Mapping[str, NDArray[np.int64]]) -> "Evidence":
        """Return the evidence as if these columns of these tensors were always zero."""
        inputs = dict(self.inputs)
        for name in inputs.keys() & columns.keys():
            H = inputs[name].H.copy()
            H[columns[name]], H[:, columns[name]] = 0, 0
            inputs[name] = replace(inputs[name], H=H)
        return Evidence(inputs, self.windows)

    def moment(self, product: Product) -> NDArray[np.float64] | None:
        """Return H (groups, in, in) of a product's inputs, None where nothing is known."""
        if product.node.op_type in ("MatMul", "Gemm"):
            seen = self.inputs.get(product.node.input[product.activation])
            return None if seen is None else seen.H[None]
        return self.windows.get(product.name)


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
    for values in _runs(model, channels, data, batch_size):
        for name, axis in channels.items():
            sums[name].add(np.moveaxis(values[name], axis, -1))
    return {name: each.finish() for name, each in sums.items()}


def observe_layers(
    model: onnx.ModelProto, products: Iterable[Product], data: Data, batch_size: int
) -> Evidence:
    """Return the second moment of what every matrix product and two-dimensional Conv reads."""
    chosen = list(products)
    matrices = {p.node.input[0] for p in chosen if p.node.op_type in ("MatMul", "Gemm")}
    windows = {p.name: (p.node.input[0], w) for p in chosen if (w := _window(p)) is not None}
    sums = {name: InputSums(name) for name in matrices}
    moments = {name: PatchSums(source, window) for name, (source, window) in windows.items()}
    wanted = dict.fromkeys([*matrices, *(source for source, _ in windows.values())])
    for values in _runs(model, wanted, data, batch_size) if wanted else ():
        for name, each in sums.items():
            each.add(values[name])
        for name, (source, _) in windows.items():
            moments[name].add(values[source])
    return Evidence(
        {name: each.finish() for name, each in sums.items()},
        {name: each.finish() for name, each in moments.items()},
    )


def _runs(
    model: onnx.ModelProto, tensors: Iterable[str], data: Data, batch_size: int
) -> Iterable[dict[str, Floats]]:
    """Yield the tensors' values, batch by batch."""
    wanted = list(tensors)
    inputs = {value.name for value in model.graph.input}
    session = Session(model, taps=[name for name in wanted if name not in inputs])
    for batch in data.batches(batch_size):
        values = session.run(batch.feeds) | batch.feeds
        yield {name: values[name].astype(np.float32, copy=False) for name in wanted}


def _window(product: Product) -> Window | None:
    """Return the window of a Conv over two spatial axes with pads written out, else None."""
    node = product.node
    if node.op_type != "Conv" or len(product.shape) != 4:
        return None
    lists = {each.name: tuple(each.ints) for each in node.attribute if each.ints}
    if any(each.name == "auto_pad" and each.s not in (b"", b"NOTSET") for each in node.attribute):
        return None
    strides, dilations = (lists.get(name, (1, 1)) for name in ("strides", "dilations"))
    pads = lists.get("pads", (0, 0, 0, 0))
    return Window(
        (product.shape[2], product.shape[3]),
        (strides[0], strides[1]),
        (dilations[0], dilations[1]),
        (pads[0], pads[1], pads[2], pads[3]),
        int(attribute(node, "group", 1)),
    )
