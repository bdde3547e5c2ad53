"""What `foldmark inspect` says, on files whose contents are known."""

import json
from pathlib import Path

import gguf
import numpy as np
import onnx
import pytest
from numpy.typing import DTypeLike
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file
from tests.formats.seeds import seed_files, write_files

from foldmark.cli.main import run
from foldmark.compare import extremes as extremes_module
from foldmark.compare import records as records_module
from foldmark.compare import survey as survey_module
from foldmark.compare import tally as tally_module
from foldmark.compare import traces as traces_module
from foldmark.compare.inspection import (
    Inspection,
    TensorReport,
    inspect_artefact,
    inspect_tensor,
)
from foldmark.compare.tally import tally
from foldmark.formats import stored as stored_module
from foldmark.formats.opening import open_artefact
from foldmark.formats.source import FileBytes
from foldmark.formats.stored import StoredTensor
from foldmark.formats.values import Array, PackedCodes

RNG = np.random.default_rng(20268)


def inspected(path: Path, arrays: dict[str, np.ndarray]) -> Inspection:
    save_file(arrays, path)
    return inspect_artefact(open_artefact(path))


def quantized(path: Path, codes: np.ndarray, scale: np.ndarray) -> TensorReport:
    (report,) = inspected(path, {"l.weight": codes, "l.weight_scale": scale}).reports
    return report


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "m.safetensors"


def test_codes_in_use(file: Path) -> None:
    codes = np.resize(np.array([-5, 0, 0, 0, 7], np.int8), (40, 50))
    report = quantized(file, codes, np.ones((40, 1), np.float32))
    assert report.codes is not None
    assert (report.codes.used, report.codes.possible) == (3, 256)
    assert (report.codes.lowest, report.codes.highest) == (-5, 7)
    codes[3, 4] = -128
    report = quantized(file, codes, np.ones((40, 1), np.float32))
    assert report.codes is not None
    assert (report.codes.lowest, report.codes.middle) == (-128, (-5, 7))


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (3, 0.0, "1 of 40 scales is zero"),
        (4, np.inf, "infinite"),
        (5, np.nan, "NaN"),
        (6, 1e-7, "subnormal in float16"),
        (7, -0.5, "negative"),
        (0, 1.0, ""),
    ],
)
def test_scales_that_are_none(file: Path, place: int, value: float, words: str) -> None:
    codes = RNG.integers(-127, 128, (40, 64)).astype(np.int8)
    scale = np.ones((40, 1), np.float16)
    scale[place] = value
    warnings = quantized(file, codes, scale).warnings
    assert len(warnings) == bool(words)
    assert not words or words in warnings[0]


def test_the_setter_is_found(file: Path) -> None:
    codes = RNG.integers(-100, 100, (40, 64)).astype(np.int8)
    codes[17, 33] = -127
    scale = np.full((40, 1), 0.01, np.float32)
    scale[17] = 0.02
    setter = quantized(file, codes, scale).setter
    assert setter is not None
    assert (setter.index, setter.code) == ((17, 33), -127)
    assert setter.value == pytest.approx(-2.54)
    setter = quantized(file, codes, np.array([0.5], np.float32)).setter
    assert setter is not None
    assert setter.index == (17, 33)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_channel_that_rules_its_tensor(file: Path, axis: int) -> None:
    codes = RNG.integers(-6, 7, (40, 64)).astype(np.int8)
    codes[(17, slice(None)) if axis == 0 else (slice(None), 17)] = 127
    warnings = quantized(file, codes, np.array([0.5], np.float32)).warnings
    name = ("row", "column")[axis]
    assert any(f"{name} 17 alone sets the scale" in warning for warning in warnings)
    assert not any("alone" in w for w in quantized(file, codes, np.ones((40, 1), "f4")).warnings)


def test_a_tensor_twice(file: Path) -> None:
    array = RNG.normal(size=(64, 64)).astype(np.float32)
    other = array.copy()
    other[40, 7] += 1
    inspection = inspected(file, {"a": array, "b": array.copy(), "c": other})
    assert inspection.warnings == ("'b' holds the same bytes as 'a'",)


def test_floats_that_are_no_numbers(file: Path) -> None:
    array = np.ones((8, 8), np.float16)
    array[1, 2], array[3, 4] = np.nan, -np.inf
    (report,) = inspected(file, {"a": array}).reports
    assert report.warnings == ("2 numbers are NaN or infinite",)


WEIGHTS = RNG.normal(0, 0.1, (64, 256)).astype(np.float32)
ABSMAX = np.abs(WEIGHTS).max(1, keepdims=True)
LOW, HIGH = WEIGHTS.min(1, keepdims=True), WEIGHTS.max(1, keepdims=True)
SIGNED = np.where(-LOW >= HIGH, -LOW, -HIGH)


@pytest.mark.parametrize(
    ("scale", "clip", "words"),
    [
        (ABSMAX / 127, (-128, 127), "absmax / 127"),
        (ABSMAX / 127.5, (-128, 127), "absmax / 127.5"),
        (ABSMAX / 128, (-128, 127), "absmax / 127.5 or / 128"),
        (SIGNED / 128, (-128, 127), "signed extreme over -128"),
        (ABSMAX * 0.9 / 127, (-90, 90), "not each block's own absmax"),
    ],
)
def test_traces_of_the_range_rule(
    file: Path, scale: np.ndarray, clip: tuple[int, int], words: str
) -> None:
    codes = np.clip(np.rint(WEIGHTS / scale), *clip).astype(np.int8)
    traces = quantized(file, codes, scale.astype(np.float32)).traces
    assert traces is not None
    assert traces.range_rule.endswith(words) or words in traces.range_rule
    assert traces.blocks == 64


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (np.exp2(np.arange(64) % 5 - 9), "power of two"),
        (ABSMAX.astype(np.float16) / np.float16(127), "float16 number"),
        ((ABSMAX.view(np.uint32) >> 16 << 16).view(np.float32) / np.float32(127), "were bfloat16"),
        (ABSMAX / np.float32(127), ""),
    ],
)
def test_traces_of_the_scale(file: Path, scale: np.ndarray, words: str) -> None:
    codes = np.clip(np.rint(WEIGHTS / scale.reshape(64, 1)), -127, 127).astype(np.int8)
    traces = quantized(file, codes, scale.astype(np.float32).reshape(64, 1)).traces
    assert traces is not None
    assert words in traces.scale_grid
    assert bool(words) == bool(traces.scale_grid)


BLOCK_TYPES = (
    "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
    "IQ4_XS", "MXFP4", "TQ1_0", "TQ2_0",
)  # fmt: skip


def random_gguf(path: Path, kind: str, rows: int, columns: int = 512) -> StoredTensor:
    """Write random blocks, which hold every scale there is: NaN, infinite, zero, subnormal."""
    number = gguf.GGMLQuantizationType[kind]
    elements, nbytes = gguf.GGML_QUANT_SIZES[number]
    raw = RNG.integers(0, 256, (rows, columns // elements * nbytes), dtype=np.uint8)
    raw[0, : nbytes * 2] = 0
    writer = gguf.GGUFWriter(path, "t")
    writer.add_tensor("w", raw, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return open_artefact(path).tensors[0]


@pytest.mark.parametrize("kind", BLOCK_TYPES)
@pytest.mark.parametrize("compiled", [False, True])
def test_counting_in_the_bytes_is_counting_codes(
    kind: str, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally_module, "_COMPILE_FROM", 0 if compiled else 1 << 40)
    values = random_gguf(tmp_path / "m.gguf", kind, 5).load()
    counts = np.zeros(256, np.int64)
    tally(values, counts)
    expected = np.bincount(values.codes.view(np.uint8).reshape(-1), minlength=256)
    np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize("kind", [kind for kind in BLOCK_TYPES if kind != "TQ1_0"])
@pytest.mark.parametrize("shape", [(9, 512), (1, 4608)])
def test_records_tell_what_values_tell(
    kind: str, shape: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass over raw blocks, which large tensors take, says what the plain one says."""
    tensor = random_gguf(tmp_path / "m.gguf", kind, *shape)
    monkeypatch.setattr(records_module, "_COMPILE_FROM", 0)
    monkeypatch.setattr(records_module, "_PIECE_BYTES", 1000)
    reports = []
    with np.errstate(all="ignore"):
        for small in (0, 1 << 40):
            monkeypatch.setattr(survey_module, "_SMALL", small)
            reports.append(inspect_tensor(tensor))
            monkeypatch.setattr(records_module, "_COMPILE_FROM", 1 << 40)
        scale = tensor.load().scale
    assert scale is not None
    one, other = reports
    assert (one.codes, one.scales, one.setter) == (other.codes, other.scales, other.setter)
    assert (one.traces, one.warnings) == (other.traces, other.warnings)
    assert one.scales is not None
    magnitude = np.abs(scale)
    assert one.scales.zero == np.count_nonzero(magnitude == 0)
    assert one.scales.nan == np.count_nonzero(np.isnan(magnitude))
    assert one.scales.infinite == np.count_nonzero(np.isinf(magnitude))
    assert one.scales.negative == np.count_nonzero(scale < 0)
    usable = magnitude[np.isfinite(magnitude) & (magnitude > 0)]
    assert (one.scales.smallest, one.scales.largest) == (usable.min(), usable.max())
    assert one.setter is not None
    # the setter is the largest element of the block with the largest scale
    with np.errstate(all="ignore"):
        numbers = np.abs(tensor.load().dequantize()).reshape(-1, tensor.layout.block[-1])
    block = int(np.argmax(np.where(np.isfinite(magnitude), magnitude, -1)))
    if np.isfinite(numbers[block]).all():
        assert abs(one.setter.value) == numbers[block].max()
        flat = np.ravel_multi_index(one.setter.index, tensor.shape)
        assert flat // tensor.layout.block[-1] == block


def test_large_tensors_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tensors are summed up while they are read; a byte between the samples tells."""
    monkeypatch.setattr(survey_module, "_SMALL", 0)
    monkeypatch.setattr(records_module, "_PIECE_BYTES", 1000)
    raw = RNG.integers(0, 256, (64, 16 * 34), dtype=np.uint8)
    other = raw.copy()
    other[20, 7] ^= 1
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "t")
    for name, content in (("a", raw), ("b", other), ("c", raw)):
        writer.add_tensor(name, content, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    inspection = inspect_artefact(open_artefact(tmp_path / "m.gguf"))
    assert inspection.warnings == ("'c' holds the same bytes as 'a'",)


@pytest.mark.parametrize("scale_shape", [(1, 64), (40, 1), (1,), (40, 8)])
@pytest.mark.parametrize("stretch", [1 << 24, 500, 1])
def test_pieces_do_not_change_the_report(
    file: Path, scale_shape: tuple[int, ...], stretch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = RNG.integers(-127, 128, (40, 64)).astype(np.int8)
    codes[33, 5] = -128
    scale = RNG.random(scale_shape).astype(np.float32) + 0.1
    whole = quantized(file, codes, scale)
    monkeypatch.setattr(survey_module, "_PIECE", 128)
    monkeypatch.setattr(survey_module, "_STRETCH", stretch)
    monkeypatch.setattr(traces_module, "_SAMPLE", 128)
    in_pieces = inspect_tensor(whole.tensor)
    assert (in_pieces.codes, in_pieces.scales) == (whole.codes, whole.scales)
    assert (in_pieces.setter, in_pieces.warnings) == (whole.setter, whole.warnings)
    if scale_shape[0] == 1:  # blocks that reach over all pieces are seen whole
        assert in_pieces.traces == whole.traces
    # the setter against the definition: the largest element of the block of the largest scale
    full = scale.reshape(scale_shape if len(scale_shape) == 2 else (1, 1))
    of_element = [
        np.repeat(np.arange(n), m // n) for n, m in zip(full.shape, (40, 64), strict=True)
    ]
    at = np.unravel_index(int(full.argmax()), full.shape)
    belongs = np.outer(of_element[0] == at[0], of_element[1] == at[1])
    magnitude = np.where(belongs, np.abs(codes.astype(int)), -1)
    assert whole.setter is not None
    assert magnitude[whole.setter.index] == magnitude.max()


@pytest.mark.parametrize("stretch", [1 << 24, 500])
def test_a_row_that_rules_is_found_in_whatever_stretch(
    file: Path, stretch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = RNG.integers(-3, 4, (40, 64)).astype(np.int8)
    codes[33] = 120
    monkeypatch.setattr(survey_module, "_STRETCH", stretch)
    warnings = quantized(file, codes, np.ones(1, np.float32)).warnings
    assert any(warning.startswith("row 33 alone sets the scale") for warning in warnings)


def watch_short_pieces(monkeypatch: pytest.MonkeyPatch, elements: int = 300) -> list[int]:
    """Inspect in short pieces from here on; return the list of how many items each read asks."""
    asked: list[int] = []
    read, fill = FileBytes.array, FileBytes.fill

    def array(self: FileBytes, dtype: DTypeLike, offset: int, count: int, what: str) -> Array:
        asked.append(count)
        return read(self, dtype, offset, count, what)

    def filled(self: FileBytes, buffer: Array, offset: int, what: str) -> None:
        asked.append(buffer.size)
        fill(self, buffer, offset, what)

    monkeypatch.setattr(FileBytes, "array", array)
    monkeypatch.setattr(FileBytes, "fill", filled)
    for module, name, size in (
        (survey_module, "_PIECE", elements),
        (survey_module, "_RAW_PIECE", elements),
        (survey_module, "_STRETCH", 3 * elements),
        (survey_module, "_LONGEST", 2 * elements),
        (records_module, "_PIECE_BYTES", elements),
        (traces_module, "_SAMPLE", elements),
        (extremes_module, "_PIECE", elements),
        (stored_module, "_LONGEST_STEP", elements),
    ):
        monkeypatch.setattr(module, name, size)
    return asked


@pytest.mark.parametrize("kind", BLOCK_TYPES)
@pytest.mark.parametrize("shape", [(1, 8192), (8, 1024), (1, 256)])
@pytest.mark.parametrize("small", [0, 1 << 40])
def test_rows_of_blocks_are_read_in_pieces(
    kind: str, shape: tuple[int, int], small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = random_gguf(tmp_path / "m.gguf", kind, *shape)
    with np.errstate(all="ignore"):
        whole = inspect_tensor(tensor)
        monkeypatch.setattr(survey_module, "_SMALL", small)
        asked = watch_short_pieces(monkeypatch)
        in_pieces = inspect_tensor(tensor)
    if kind == "TQ1_0" or small == 0:  # others are taken as records from a megabyte on
        assert 0 < max(asked) <= 320  # bytes: 300 codes of eight bits, their scales among them
    assert (in_pieces.codes, in_pieces.scales) == (whole.codes, whole.scales)
    assert in_pieces.warnings == whole.warnings
    assert repr(in_pieces.setter) == repr(whole.setter)  # a NaN is not equal to itself
    assert in_pieces.tensor is tensor


def test_weights_in_constant_nodes_are_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They say what the same weights say as initializers, and no read asks for them whole."""
    codes = numpy_helper.from_array(RNG.integers(-127, 128, (1, 4096)).astype(np.int8), "codes")
    scale = numpy_helper.from_array(np.float32(0.25), "scale")
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "scale"], ["w"]),
        helper.make_node("Add", ["x", "w"], ["y"]),
    ]
    constants = [helper.make_node("Constant", [], [t.name], value=t) for t in (codes, scale)]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy"]
    opset = [helper.make_opsetid("", 17)]
    reports = []
    asked = watch_short_pieces(monkeypatch)
    for way, (before, stored) in {"c": (constants, []), "i": ([], [codes, scale])}.items():
        graph = helper.make_graph([*before, *nodes], "g", ends[:1], ends[1:], stored)
        onnx.save(helper.make_model(graph, opset_imports=opset), tmp_path / f"{way}.onnx")
        asked.clear()
        (report,) = inspect_artefact(open_artefact(tmp_path / f"{way}.onnx")).reports
        assert max(asked) <= 300
        assert sum(asked) >= 4096  # all of them in the file, nothing held
        (span, *_) = report.tensor.spans
        assert span.source.read(span.offset, span.nbytes, "codes") == codes.raw_data
        reports.append((report.codes, report.scales, report.setter, report.traces))
    assert reports[0] == reports[1]


def test_long_rows_of_core_ml_are_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row of 128 codes of two bits with a table, and one of 64 nibbles in blocks of eight."""
    from coremltools.proto import Model_pb2

    files = seed_files("Core ML")
    name = next(iter(files))
    model = Model_pb2.Model.FromString(files[name])
    block = model.mlProgram.functions["main"].block_specializations["CoreML9"]
    shapes = {"data": (1, 64), "scale": (1, 8), "offset": (1, 8), "indices": (1, 128)}
    for operation in block.operations:
        for key, stated in operation.inputs.items():
            axes = stated.arguments[0].value.type.tensorType.dimensions
            for axis, size in zip(axes, shapes.get(key, ()), strict=key in shapes):
                axis.constant.size = size
    files[name] = model.SerializeToString()
    artefact = open_artefact(write_files(tmp_path, files))
    whole = inspect_artefact(artefact)
    asked = watch_short_pieces(monkeypatch, elements=8)
    in_pieces = inspect_artefact(artefact)
    assert [report.tensor.shape for report in whole.reports] == [(1, 64), (1, 128), (16,)]
    assert 0 < max(asked) <= 8
    for one, other in zip(in_pieces.reports, whole.reports, strict=True):
        assert (one.codes, one.scales, one.warnings) == (other.codes, other.scales, other.warnings)
        assert one.setter == other.setter
        assert one.tensor is other.tensor


@pytest.mark.parametrize(
    ("shape", "scale_shape"),
    [
        ((1, 4096), (1, 1)),  # one row
        ((2, 4096), (2, 1)),  # two, each longer than a piece
        ((1, 4096), (1, 64)),  # groups in one row
        ((3, 64, 64), (3, 1, 1)),  # experts
        ((3, 64, 64), (3, 64, 1)),  # rows of experts
        ((4, 1024), (1,)),  # one scale for all
    ],
)
def test_rows_longer_than_memory_are_read_in_pieces(
    file: Path,
    shape: tuple[int, ...],
    scale_shape: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes = RNG.integers(-127, 128, shape).astype(np.int8)
    scale = RNG.random(scale_shape).astype(np.float32) + 0.1
    whole = quantized(file, codes, scale)
    asked = watch_short_pieces(monkeypatch)
    in_pieces = inspect_tensor(whole.tensor)
    assert 0 < max(asked) <= 300
    assert (in_pieces.codes, in_pieces.scales) == (whole.codes, whole.scales)
    assert in_pieces.tensor.shape == shape
    assert in_pieces.setter is not None
    assert whole.setter is not None
    assert abs(in_pieces.setter.value) == abs(whole.setter.value)
    assert in_pieces.setter.code == codes[in_pieces.setter.index]
    assert abs(codes[in_pieces.setter.index]) == abs(codes[whole.setter.index])


@pytest.mark.parametrize(
    "name", ["GPTQ", "AWQ", "compressed-tensors", "bitsandbytes", "OpenVINO IR"]
)
def test_codes_are_counted_in_their_words(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting packed bytes, as large tensors are counted, gives what unpacked codes give."""
    monkeypatch.setattr(tally_module, "_COMPILE_FROM", 0)
    artefact = open_artefact(write_files(tmp_path, seed_files(name)))
    seen = 0
    for tensor in artefact.tensors:
        if not tensor.layout.is_quantized:
            continue
        values, counts = tensor.load(), np.zeros(256, np.int64)
        tally(values, counts)
        codes = np.ascontiguousarray(values.codes).view(np.uint8).reshape(-1)
        np.testing.assert_array_equal(counts, np.bincount(codes, minlength=256))
        seen += isinstance(values.stored, PackedCodes)
    assert seen


def test_scales_of_columns_that_are_no_neighbours_are_counted_once(tmp_path: Path) -> None:
    columns, outputs, groups = 128, 8, 4
    arrays = {
        "l.qweight": RNG.integers(0, 1 << 31, (columns // 8, outputs)).astype(np.int32),
        "l.qzeros": np.full((groups, 1), 0x77777777, np.int32),
        "l.scales": RNG.random((groups, outputs)).astype(np.float16),
        "l.g_idx": RNG.permutation(np.arange(columns) % groups).astype(np.int32),
    }
    save_file(arrays, tmp_path / "m.safetensors")
    (tensor,) = open_artefact(tmp_path / "m.safetensors").tensors
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey_module, "_PIECE", 64)
        report = inspect_tensor(tensor)
    assert report.scales is not None
    assert report.scales.count == groups * outputs


@pytest.mark.parametrize(
    ("scale", "words"),
    [(0, "zero"), (-0.5, "negative"), (np.nan, "NaN"), (np.inf, "infinite"), (1e-40, "subnormal")],
)
@pytest.mark.parametrize("operator", ["QuantizeLinear", "DequantizeLinear"])
def test_scales_of_activations(
    scale: float, words: str, operator: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A model whose activations are scaled by nothing that is a scale; no weight in it."""
    kinds = (TensorProto.FLOAT, TensorProto.INT8)
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "s"], ["y"], name="n")],
        "g",
        [helper.make_tensor_value_info("x", kinds[operator == "DequantizeLinear"], [4])],
        [helper.make_tensor_value_info("y", kinds[operator == "QuantizeLinear"], [4])],
        [numpy_helper.from_array(np.float32(scale), "s")],
    )
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    inspection = inspect_artefact(open_artefact(tmp_path / "m.onnx"))
    assert f"{operator} 'n': its scale is {words}" in " ".join(inspection.warnings)
    assert run(["inspect", str(tmp_path / "m.onnx")]) == 0
    assert words in capfd.readouterr().out


def test_schemes_are_wrapped_and_not_cut(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_files(tmp_path, seed_files("compressed-tensors"))
    assert run(["inspect", str(path)]) == 0
    out = capfd.readouterr().out
    assert "compressed-tensors nvfp4-pack-quantized" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_one_block_is_not_called_every_block(file: Path) -> None:
    codes = RNG.integers(-126, 127, (16, 16)).astype(np.int8)
    codes[3, 4] = 127
    one = quantized(file, codes, np.ones(1, np.float32))
    assert one.traces is not None
    assert one.traces.sentence() == (
        "its codes reach 127 or -127, none -128: absmax / 127; its scale is a power of two: a "
        "fixed-point grid"
    )


def test_the_command(file: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    inspected(file, {"l.weight": np.ones((4, 6), np.int8), "l.weight_scale": np.ones((4, 1), "f4")})
    assert run(["inspect", str(file), "--json", "-"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["schema"] == "foldmark.inspect/1"
    assert sum(document["account"].values()) == document["bytes"] == file.stat().st_size
    (tensor,) = document["tensors"]
    assert tensor["granularity"] == "per axis 0"
    assert run(["inspect", str(file)]) == 0
    out = capfd.readouterr().out
    assert out.startswith("m.safetensors (safetensors, ")
    assert max(map(len, out.splitlines())) <= 80


def test_a_link_says_what_its_target_says(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(20275)
    codes = numpy_helper.from_array(draw.integers(-127, 128, (96, 64)).astype(np.int8), "codes")
    scale = numpy_helper.from_array(draw.random(64).astype(np.float32), "scale")
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "scale"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", None]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [codes, scale])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    (tmp_path / "there").mkdir()
    onnx.save(model, tmp_path / "there" / "m.onnx")
    (tmp_path / "m.onnx").symlink_to(tmp_path / "there" / "m.onnx")
    said, read = [], []
    for path in (tmp_path / "there" / "m.onnx", tmp_path / "m.onnx"):
        assert run(["inspect", str(path), "--json", "-"]) == 0
        document = json.loads(capfd.readouterr().out)
        assert document.pop("file") == str(path)
        said.append(document)
        (tensor,) = [t for t in open_artefact(path).tensors if t.layout.is_quantized]
        assert all(span.source.path.resolve() == path.resolve() for span in tensor.spans)
        read.append(([span.offset for span in tensor.spans], tensor.load().dequantize().tobytes()))
    assert said[0] == said[1]
    assert read[0] == read[1]
