"""Changes so small that single precision shows: said, and not chased by ever more nodes."""

import numpy as np
import onnx
from tests.graphs.networks import Network, draw

import foldmark


def products(bits: int | None) -> onnx.ModelProto:
    """Return two products with a Tanh between, their tensors stored in so many bits."""
    net = Network(21)
    x = net.input("x", ["n", 16])
    for i, width in enumerate((32, 8)):
        w = draw(16 if i == 0 else 32, width, seed=i) / 4
        weight = net.constant(f"w{i}", w) if bits is None else ""
        if bits is not None:
            form = np.dtype(f"int{bits}")
            most = np.iinfo(form).max
            step = np.float32(np.abs(w).max() / most)
            weight = net.stored(f"w{i}", np.rint(w / step).astype(form), step)
            x = net.pair(x, np.float32(4 / most), form.type(0))
        x = net.node("MatMul", [x, weight], f"h{i}")
        if i == 0:
            x = net.node("Tanh", [x], "t")
    net.output(x, shape=["n", 8])
    return net.model()


def test_single_precision_is_named_where_it_shows() -> None:
    shown = []
    for seed in range(6):
        report = foldmark.explain(
            products(None), products(16), {"x": draw(1, 16, seed=seed)}, metric="mse", cures=False
        )
        left = abs(report.closure.relative_error)
        assert left < 1e-2
        assert report.cost.nodes <= 16
        told = any("single precision" in note for note in report.notes)
        assert told == (left > 1e-4)
        shown.append(told)
    assert any(shown)


def test_it_is_not_named_where_codes_are_coarse() -> None:
    report = foldmark.explain(
        products(None), products(8), {"x": draw(4, 16, seed=7)}, metric="mse", cures=False
    )
    assert abs(report.closure.relative_error) <= 1e-4
    assert report.notes == ()
