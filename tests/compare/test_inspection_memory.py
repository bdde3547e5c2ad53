"""What `foldmark inspect` holds does not grow with a tensor's rows, tiles or stretches."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file
from tests.compare.test_inspection import watch_short_pieces
from tests.formats.seeds import seed_files, write_files

from foldmark.compare import survey as survey_module
from foldmark.compare.inspection import inspect_artefact, inspect_tensor
from foldmark.errors import HostileFile, NotSupported
from foldmark.formats import coreml_file, flatbuffer, gguf_file, openvino_file, tflite_file
from foldmark.formats.opening import open_artefact
from foldmark.formats.stored import StoredTensor

RNG = np.random.default_rng(20269)


def stored(arrays: dict[str, np.ndarray], path: Path) -> StoredTensor:
    """Save arrays that make one weight, and open it."""
    save_file(arrays, path)
    (tensor,) = open_artefact(path).tensors
    return tensor


def tiles(path: Path) -> StoredTensor:
    arrays = {
        "l.weight": RNG.integers(-127, 128, (40, 2048)).astype(np.int8),
        "l.weight_scale": RNG.uniform(0.5, 1, (3, 16)).astype(np.float32),
    }
    tensor = stored(arrays, path)
    assert tensor.layout.granularity(tensor.shape) == "tiles of 16 x 128"
    return tensor


def wide_gptq(path: Path) -> StoredTensor:
    arrays = {
        "l.qweight": RNG.integers(-(2**31), 2**31, (64, 256)).astype(np.int32),
        "l.qzeros": RNG.integers(-(2**31), 2**31, (2, 32)).astype(np.int32),
        "l.scales": RNG.uniform(0.5, 1, (2, 256)).astype(np.float16),
    }
    return stored(arrays, path)


def wide_awq(path: Path) -> StoredTensor:
    arrays = {
        "l.qweight": RNG.integers(-(2**31), 2**31, (256, 32)).astype(np.int32),
        "l.qzeros": RNG.integers(-(2**31), 2**31, (2, 32)).astype(np.int32),
        "l.scales": RNG.uniform(0.5, 1, (2, 256)).astype(np.float16),
    }
    return stored(arrays, path)


def gptq_in_activation_order(path: Path) -> StoredTensor:
    arrays = {
        "l.qweight": RNG.integers(-(2**31), 2**31, (64, 24)).astype(np.int32),
        "l.qzeros": RNG.integers(-(2**31), 2**31, (4, 3)).astype(np.int32),
        "l.scales": RNG.uniform(0.5, 1, (4, 24)).astype(np.float16),
        "l.g_idx": RNG.permutation(np.arange(512) // 128).astype(np.int32),
    }
    return stored(arrays, path)


@pytest.mark.parametrize("make", [wide_gptq, wide_awq, gptq_in_activation_order])
def test_the_setter_by_its_definition(
    make: Callable[[Path], StoredTensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest element of the block with the largest scale, in however many pieces."""
    tensor = make(tmp_path / "m.safetensors")
    values = tensor.load()
    assert values.scale is not None
    row, group = np.unravel_index(np.argmax(values.scale), values.scale.shape)
    groups = np.arange(tensor.shape[1]) // (tensor.layout.block or (1, 1))[1]
    inside = (groups if values.group is None else values.group) == group
    numbers = np.where(inside, np.abs(values.dequantize()[row]), -1)
    for pieces in (False, True):
        if pieces:
            watch_short_pieces(monkeypatch)
        setter = inspect_tensor(tensor).setter
        assert setter is not None
        assert setter.index[0] == row
        assert inside[setter.index[1]]
        assert abs(setter.value) == numbers.max()
        assert values.codes[setter.index] == setter.code


def long_nf4(path: Path, block: int = 64) -> StoredTensor:
    state = json.dumps({"shape": [1, 8192], "blocksize": block, "quant_type": "nf4"}).encode()
    arrays = {
        "l.weight": RNG.integers(0, 256, (4096, 1)).astype(np.uint8),
        "l.weight.absmax": RNG.uniform(0.1, 0.2, 8192 // block).astype(np.float32),
        "l.weight.quant_map": np.linspace(-1, 1, 16, dtype=np.float32),
        "l.weight.quant_state.bitsandbytes__nf4": np.frombuffer(state, np.uint8),
    }
    return stored(arrays, path)


def long_nf4_in_one_block(path: Path) -> StoredTensor:
    return long_nf4(path, 8192)


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (tiles, 2048),  # one row of a tile's sixteen
        (wide_gptq, 256),  # the words of eight inputs, of a group's 256
        (wide_awq, 300),  # some of a group's 128 rows of words
        (long_nf4, 300),
        (long_nf4_in_one_block, 300),
    ],
)
def test_blocks_longer_than_memory_are_read_in_parts(
    make: Callable[[Path], StoredTensor],
    most: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensor = make(tmp_path / "m.safetensors")
    whole = inspect_tensor(tensor)
    asked = watch_short_pieces(monkeypatch)
    in_parts = inspect_tensor(tensor)
    assert 0 < max(asked) <= most
    assert (in_parts.codes, in_parts.scales) == (whole.codes, whole.scales)
    assert in_parts.setter == whole.setter
    assert in_parts.warnings == whole.warnings
    assert in_parts.tensor is tensor


def test_parts_of_tiles_show_the_traces_of_whole_tiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tile's largest code is in its last row, which no first part of a tile holds."""
    codes = RNG.integers(-100, 101, (32, 2048)).astype(np.int8)
    codes[15::16, ::128] = 127
    scale = RNG.uniform(0.5, 1, (2, 16)).astype(np.float32)
    save_file({"l.weight": codes, "l.weight_scale": scale}, tmp_path / "m.safetensors")
    (tensor,) = open_artefact(tmp_path / "m.safetensors").tensors
    whole = inspect_tensor(tensor)
    watch_short_pieces(monkeypatch)
    in_parts = inspect_tensor(tensor)
    assert whole.traces is not None
    assert in_parts.traces is not None
    assert "every block reaches 127" in in_parts.traces.range_rule
    assert in_parts.traces.range_rule == whole.traces.range_rule


@pytest.mark.parametrize("limit", ["elements", "scales"])
def test_what_can_be_read_in_large_parts_only_costs_one_line(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = tiles(tmp_path / "m.safetensors")
    watch_short_pieces(monkeypatch)
    if limit == "elements":
        monkeypatch.setattr(survey_module, "_MOST_AT_ONCE", 2047)
    else:
        monkeypatch.setattr(survey_module, "_LONGEST", 15)
    said = r"m.safetensors: 'l.weight'.*got 2048 elements and 16 scales in its smallest part"
    with pytest.raises(NotSupported, match=said):
        inspect_tensor(tensor)


@pytest.mark.parametrize(
    ("place", "most", "expected"),
    [
        (np.s_[7], 1 << 20, ["row 7"]),
        (np.s_[7], 10, []),
        (np.s_[:, 5], 1 << 20, ["column 5"]),
        (np.s_[:, 5], 10, ["column 5"]),
    ],
)
def test_columns_are_compared_however_many_rows(
    place: object,
    most: int,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes = RNG.integers(-3, 4, (400, 8)).astype(np.int8)
    codes[place] = 100
    monkeypatch.setattr(survey_module, "_MOST_ROWS", most)
    path = tmp_path / "m.safetensors"
    save_file({"l.weight": codes, "l.weight_scale": np.ones(1, np.float32)}, path)
    (report,) = inspect_artefact(open_artefact(path)).reports
    said = [" ".join(w.split()[:2]) for w in report.warnings if "sets the scale" in w]
    assert said == expected


def test_stretches_are_summed_up_as_they_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 64 stretches knows the largest code of a million columns: four megabytes."""
    path = tmp_path / "m.safetensors"
    codes = np.ones((64, 1 << 20), np.int8)
    save_file({"l.weight": codes, "l.weight_scale": np.ones(1, np.float32)}, path)
    del codes
    monkeypatch.setattr(survey_module, "_STRETCH", 1 << 20)
    artefact = open_artefact(path)
    tracemalloc.start()
    inspect_artefact(artefact)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


def test_packed_zero_points_are_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, columns = 64, 512
    codes = RNG.integers(0, 256, (rows, columns // 16, 8)).astype(np.uint8)
    zeros = RNG.integers(0, 256, rows * columns // 32).astype(np.uint8)
    scales = RNG.uniform(0.5, 1, rows * columns // 16).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits", ["x", "b", "s", "z"], ["y"], domain="com.microsoft",
        K=columns, N=rows, bits=4, block_size=16,
    )  # fmt: skip
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy"]
    stored = [numpy_helper.from_array(a, n) for a, n in ((codes, "b"), (scales, "s"), (zeros, "z"))]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), tmp_path / "m.onnx")
    asked = watch_short_pieces(monkeypatch, elements=512)
    (tensor,) = open_artefact(tmp_path / "m.onnx").tensors
    nibbles = np.stack([zeros & 15, zeros >> 4], axis=-1).reshape(rows, -1)
    for first in range(0, rows, 2):
        assert np.array_equal(tensor.rows(first, first + 2).zero_point, nibbles[first : first + 2])
    assert 0 < max(asked) <= 512


def gguf(*pairs: tuple[bytes, bytes]) -> bytes:
    def text(content: bytes) -> bytes:
        return len(content).to_bytes(8, "little") + content

    head = b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + len(pairs).to_bytes(8, "little")
    kind = (8).to_bytes(4, "little")
    return head + b"".join(text(key) + kind + text(value) for key, value in pairs) + bytes(64)


def test_long_texts_of_gguf_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf((b"long", b"v" * (1 << 20)), (b"short", b"value")))
    assert open_artefact(path).metadata == {"long": f"[{1 << 20} bytes]", "short": "value"}


def test_a_gguf_key_longer_than_the_format_has_it(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf((b"k" * (1 << 16), b"value")))
    with pytest.raises(HostileFile, match="key is too long; got 65536 bytes"):
        open_artefact(tmp_path / "m.gguf")


def test_more_texts_than_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf(*((b"%d" % i, b"v" * 1000) for i in range(100))))
    assert len(open_artefact(tmp_path / "m.gguf").metadata) == 100
    monkeypatch.setattr(gguf_file, "_LONGEST_HEADER", 50_000)
    with pytest.raises(NotSupported, match="held in memory"):
        open_artefact(tmp_path / "m.gguf")


def test_a_long_description_of_core_ml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("coremltools")
    path = write_files(tmp_path, seed_files("Core ML"))
    monkeypatch.setattr(coreml_file, "_LONGEST_MODEL", 100)
    with pytest.raises(NotSupported, match=r"model.mlmodel: .*at most 100, for it is held"):
        open_artefact(path)


def test_more_buffers_than_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_files(tmp_path, seed_files("TFLite"))
    assert open_artefact(path).tensors
    monkeypatch.setattr(tflite_file, "_MOST_BUFFERS", 1)
    with pytest.raises(NotSupported, match="so many buffers"):
        open_artefact(path)


def test_long_texts_of_tflite_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_files(tmp_path, seed_files("TFLite"))
    whole = open_artefact(path).tensors[0].name
    monkeypatch.setattr(flatbuffer, "_LONGEST_TEXT", len(whole) - 1)
    assert open_artefact(path).tensors[0].name == f"[{len(whole)} bytes]"


@pytest.mark.parametrize("item", [b"[],", b'"ab",', b"300,", b"{},"])
def test_a_header_of_many_small_parts(item: bytes, tmp_path: Path) -> None:
    """Each would be an object: the header's length says little about the memory that it takes."""
    header = b'{"a":[' + item * 2_000_000 + b"0]}"
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    tracemalloc.start()
    with pytest.raises(HostileFile, match="more parts than an honest one"):
        open_artefact(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(header)


def test_more_tensors_of_gguf_than_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_files(tmp_path, seed_files("GGUF"))
    count = len(open_artefact(path).tensors)
    monkeypatch.setattr(gguf_file, "_MOST_TENSORS", count - 1)
    with pytest.raises(NotSupported, match=f"so many tensors; got {count}"):
        open_artefact(path)


def test_more_layers_than_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_files(tmp_path, seed_files("OpenVINO IR"))
    monkeypatch.setattr(openvino_file, "_MOST_ELEMENTS", 8 + 7)  # its layers and edges
    assert open_artefact(path).tensors
    monkeypatch.setattr(openvino_file, "_MOST_ELEMENTS", 8 + 6)
    with pytest.raises(NotSupported, match="so many layers and edges"):
        open_artefact(path)
