"""Numbers in lists of an ONNX model, read in place, are what the onnx package makes of them."""

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import DTypeLike
from onnx import TensorProto, helper, numpy_helper

from foldmark.compare.inspection import inspect_artefact
from foldmark.errors import HostileFile, NotSupported
from foldmark.formats import onnx_activations as onnx_activations_module
from foldmark.formats import onnx_mapped as onnx_mapped_module
from foldmark.formats.opening import open_artefact
from foldmark.formats.source import FileBytes
from foldmark.formats.stored import Artefact
from foldmark.formats.values import Array

COUNT = 70_000  # none in less than a byte, and lists below 64 KiB stay in the model
KINDS = (
    *("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "BOOL"),
    *("FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4", "FLOAT4E2M1"),
)


def listed(kind: str, count: int = COUNT) -> onnx.TensorProto:
    """Return a tensor of random bit patterns in a list, its ends and its zeros among them."""
    number = getattr(TensorProto, kind)
    tensor = TensorProto(name="w", data_type=number, dims=[count])
    held = getattr(tensor, helper.tensor_dtype_to_field(number))
    draw = np.random.default_rng(0)
    bits = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "BOOL": 1}.get(kind)
    bits = bits or 8 * helper.tensor_dtype_to_np_dtype(number).itemsize
    if bits == 4:
        count, bits = -(-count // 2), 8
    signed = kind.startswith("INT") and kind != "INT4"
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    dtype = np.int64 if signed else np.uint64
    # of every width, so that numbers of one byte to ten lie across all boundaries
    numbers = draw.integers(low, high, count, dtype) >> draw.integers(0, bits, count).astype(dtype)
    numbers[:3] = low, high - 1, 0
    held.extend(numbers.tolist())
    return tensor


def written(path: Path, *tensors: onnx.TensorProto) -> Artefact:
    graph = helper.make_graph([], "g", [], [], list(tensors))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return open_artefact(path)


def bits_of(array: Array) -> bytes:
    """Return an array's bytes, a field of less than a byte in a byte of its own."""
    if array.dtype.name in ("int4", "uint4"):
        return array.astype(np.int8).tobytes()
    return array.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_lists_against_the_onnx_package(kind: str, tmp_path: Path) -> None:
    tensor = listed(kind)
    expected = numpy_helper.to_array(tensor)
    (stored,) = written(tmp_path / "m.onnx", tensor).tensors
    assert bits_of(stored.load().codes) == bits_of(expected)
    for first, last in ((0, 1), (1, 2), (7, 7), (4999, 5003), (COUNT - 1, COUNT), (3, COUNT - 3)):
        assert bits_of(stored.rows(first, last).codes) == bits_of(expected[first:last])


def test_an_even_walk_over_a_list_is_the_list(tmp_path: Path) -> None:
    """Every place of the list is once the first that is read: none is where a block begins."""
    tensor = listed("INT32", 30_000)
    expected = numpy_helper.to_array(tensor)
    (stored,) = written(tmp_path / "m.onnx", tensor).tensors
    for step in (1, 997):
        parts = [stored.rows(at, min(at + step, 30_000)).codes for at in range(0, 30_000, step)]
        assert np.array_equal(np.concatenate(parts), expected)


def quantized(path: Path, listing: bool) -> Artefact:
    """Write int8 rows with a scale each, and halves: in lists, or as raw bytes."""
    codes, halves = listed("INT8"), listed("FLOAT16")
    codes.dims[:] = [COUNT // 100, 100]
    scale = numpy_helper.from_array(np.linspace(1, 2, COUNT // 100, dtype=np.float32), "s")
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["y"], axis=0)]
    halves.name = "h"
    stored = [codes, halves, scale]
    if not listing:
        stored = [numpy_helper.from_array(numpy_helper.to_array(t), t.name) for t in stored]
    graph = helper.make_graph(nodes, "g", [], [], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return open_artefact(path)


def test_lists_say_what_raw_bytes_say(tmp_path: Path) -> None:
    found = []
    for listing in (True, False):
        artefact = quantized(tmp_path / "m.onnx", listing)
        inspection = inspect_artefact(artefact)
        assert sum(inspection.account.values()) == artefact.size
        found.append(
            [(r.tensor.name, r.codes, r.scales, r.setter, r.traces, r.warnings)
             for r in inspection.reports]
        )  # fmt: skip
    assert found[0] == found[1]
    assert any("NaN or infinite" in warning for *_, words in found[0] for warning in words)


def test_a_list_costs_little_memory(tmp_path: Path) -> None:
    """Less than the numbers take as their list, let alone as Python's or protobuf's."""
    tensor = TensorProto(name="w", data_type=TensorProto.INT64, dims=[8_000_000])
    tensor.int64_data.extend(np.zeros(8_000_000, np.int64))
    path = tmp_path / "m.onnx"
    written(path, tensor).close()
    del tensor
    tracemalloc.start()
    inspect_artefact(open_artefact(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000


@pytest.mark.parametrize("count", [COUNT - 1, COUNT + 1])
def test_a_list_of_another_length(count: int, tmp_path: Path) -> None:
    tensor = listed("INT32")
    tensor.dims[:] = [count]
    with pytest.raises(HostileFile, match=f"a list of {COUNT} numbers; expected {count}"):
        written(tmp_path / "m.onnx", tensor)


def test_a_number_without_an_end(tmp_path: Path) -> None:
    """Twenty bytes that all say that another follows, then one that ends the number."""
    content, path = b"\x01" * COUNT, tmp_path / "m.onnx"
    tensor = TensorProto(name="w", data_type=TensorProto.INT32, dims=[COUNT - 20])
    tensor.int32_data.extend([1] * COUNT)
    onnx.save(helper.make_model(helper.make_graph([], "g", [], [], [tensor])), path)
    data = path.read_bytes()
    assert data.count(content) == 1
    path.write_bytes(data.replace(content, b"\x80" * 20 + content[20:]))
    (stored,) = open_artefact(path).tensors
    with pytest.raises(HostileFile, match="more than ten bytes"):
        stored.load()


def test_no_file_names_a_list_of_its_own(tmp_path: Path) -> None:
    """What the reader writes for itself is cleared from a file that says it."""
    tensor = TensorProto(name="w", data_type=TensorProto.INT8, dims=[64])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "d"), ("length", "64"), ("listed", "listed")):
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "d").write_bytes(bytes(range(64)))
    with pytest.warns(UserWarning, match="unknown keys"):
        (stored,) = written(tmp_path / "m.onnx", tensor).tensors
    assert stored.load().codes.tolist() == list(range(64))


def test_long_texts_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], doc_string="d" * (1 << 17))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], doc_string="g" * (1 << 17))
    model = helper.make_model(graph, doc_string="m" * (1 << 17))
    helper.set_model_props(model, {"long": "v" * (1 << 20), "short": "value"})
    onnx.save(model, tmp_path / "m.onnx")
    monkeypatch.setattr(onnx_mapped_module, "_MOST_LEFT", 4000)
    metadata = open_artefact(tmp_path / "m.onnx").metadata
    assert (metadata["long"], metadata["short"]) == (f"[{1 << 20} bytes]", "value")


def many_nodes() -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], [f"y{i}"]) for i in range(300)]
    return helper.make_model(helper.make_graph(nodes, "g", [], []))


def many_strings() -> onnx.ModelProto:
    tensor = helper.make_tensor("t", TensorProto.STRING, [300], [b"word"] * 300)
    return helper.make_model(helper.make_graph([], "g", [], [], [tensor]))


@pytest.mark.parametrize("make", [many_nodes, many_strings])
def test_a_structure_that_is_too_large_costs_one_line(
    make: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(make(), tmp_path / "m.onnx")  # type: ignore[operator]
    assert open_artefact(tmp_path / "m.onnx").format_name == "ONNX"
    monkeypatch.setattr(onnx_mapped_module, "_MOST_LEFT", 1000)
    with pytest.raises(NotSupported, match="large without its weights"):
        open_artefact(tmp_path / "m.onnx")


def test_no_read_asks_for_a_whole_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    read = FileBytes.array

    def array(self: FileBytes, dtype: DTypeLike, offset: int, count: int, what: str) -> Array:
        asked.append(count * np.dtype(dtype).itemsize)
        return read(self, dtype, offset, count, what)

    monkeypatch.setattr(FileBytes, "array", array)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT16, dims=[4_000_000])
    tensor.int32_data.extend(np.full(4_000_000, 300))
    inspect_artefact(written(tmp_path / "m.onnx", tensor))
    assert max(asked) <= 1 << 22


def test_scales_of_activations_in_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale = TensorProto(name="s", data_type=TensorProto.FLOAT16, dims=[COUNT])
    scale.int32_data.extend([0x3C00] * (COUNT - 1) + [0x7C00])
    node = helper.make_node("QuantizeLinear", ["x", "s"], ["y"])
    graph = helper.make_graph([node], "g", [], [], [scale])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    artefact = open_artefact(tmp_path / "m.onnx")
    assert any("its scale is infinite" in warning for warning in artefact.warnings)
    (activation,) = artefact.activations
    assert activation.scale is not None
    assert activation.scale[[0, -1]].tolist() == [1, np.inf]
    monkeypatch.setattr(onnx_activations_module, "_MOST_SCALES", COUNT - 1)
    with pytest.raises(NotSupported, match=f"so many scales; got {COUNT}"):
        open_artefact(tmp_path / "m.onnx")
