"""Models whose weights stay in their files: read, taken apart and run without loading them."""

from pathlib import Path

import numpy as np
import onnx
from tests.graphs.networks import Network, draw
from tests.graphs.proof import run

from foldmark.formats.onnx_file import read_mapped
from foldmark.formats.onnx_tensor import is_external
from foldmark.graphs.light import lighten
from foldmark.graphs.reading.read import read_quantized
from foldmark.runtimes.onnxruntime import Optimization, Session

X = {"x": draw(3, 64)}


def saved(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Save a model with its weights beside it; return it with the weights left there."""
    onnx.save(model, path, save_as_external_data=True, size_threshold=64)
    return read_mapped(path)


def networks() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    w, b = draw(64, 32), draw(32)
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("x", ["n", 64])
        each.output("y")
    x = net.pair("x", np.float32(0.03), np.uint8(128))
    step = np.float32(np.abs(w).max() / 127)
    stored = net.stored("w", np.rint(w / step).astype(np.int8), step, np.int8(0))
    for each, value, weight in ((net, x, stored), (plain, "x", plain.constant("w", w))):
        each.node("MatMul", [value, weight], "h")
        each.node("Add", ["h", each.constant("b", b)], "y")
    return net.model(), plain.model()


def test_weights_are_used_where_they_lie(tmp_path: Path) -> None:
    net, plain = networks()
    (tmp_path / "float").mkdir()
    saved_net, saved_plain = networks()
    quantized = saved(saved_net, tmp_path / "int8.onnx")
    original = saved(saved_plain, tmp_path / "float" / "float.onnx")
    graph = read_quantized(quantized, original)
    assert [site.name for site in graph.sites] == ["x", "w"]
    weight = next(t for t in graph.skeleton.graph.initializer if t.name == "w_dq")
    assert is_external(weight)
    for taken_apart, whole in ((graph.skeleton, plain), (graph.simulated, net)):
        got = Session(taken_apart, optimization=Optimization.OFF).run(X)["y"]
        np.testing.assert_allclose(got, run(whole, X)["y"], atol=1e-5)
    real = Session(graph.original, optimization=Optimization.OFF).run(X)["y"]
    np.testing.assert_array_equal(real, run(net, X)["y"])


def test_a_weight_above_two_gigabytes_is_mapped(tmp_path: Path) -> None:
    rows, columns = 1 << 15, (1 << 14) + 64
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(4 * rows * columns)
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[rows, columns])
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    net = Network()
    net.input("x", ["n", rows])
    net.constants.append(weight)
    net.node("MatMul", ["x", "w"], "y")
    net.output("y")
    path = tmp_path / "model.onnx"
    path.write_bytes(net.model().SerializeToString())
    light = lighten(read_mapped(path))
    assert light.weights["w"].nbytes > 1 << 31
    assert isinstance(light.weights["w"].base, np.memmap | np.ndarray)
    assert light.model.ByteSize() < 1 << 12
