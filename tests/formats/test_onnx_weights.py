"""Quantized weights of ONNX models against what ONNX Runtime makes of them."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import DTypeLike
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization as ort_quantization
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from foldmark.compare.inspection import inspect_artefact
from foldmark.errors import FormatNotRecognised, HostileFile
from foldmark.formats.onnx_weights import read_onnx
from foldmark.formats.source import FileBytes
from foldmark.formats.stored import Artefact, StoredTensor
from foldmark.formats.values import Array

SEED = 20263
ROWS, COLUMNS = 96, 40


def weight() -> np.ndarray:
    return np.random.default_rng(SEED).normal(0, 0.1, (ROWS, COLUMNS)).astype(np.float32)


def model_of(
    nodes: list[onnx.NodeProto], tensors: dict[str, np.ndarray], inputs: tuple[int, ...] = (1, ROWS)
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(inputs))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.fixture
def float_model(tmp_path: Path) -> Path:
    path = tmp_path / "float.onnx"
    onnx.save(model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weight()}), path)
    return path


def only(artefact: Artefact) -> StoredTensor:
    (tensor,) = [t for t in artefact.tensors if t.layout.is_quantized]
    stored = sum(t.nbytes for t in artefact.tensors)
    assert artefact.header_bytes > 0
    assert artefact.header_bytes + stored == artefact.size
    return tensor


def in_pieces(tensor: StoredTensor) -> np.ndarray:
    pieces = [values.dequantize() for _, values in tensor.pieces(300)]
    assert len(pieces) > 1
    whole = tensor.load().dequantize()
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    return whole


def weight_by_running(path: Path) -> np.ndarray:
    """Feed the identity: a float MatMul then gives the weight that the runtime sees."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.eye(ROWS, dtype=np.float32)})[0]


@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamic(float_model: Path, per_channel: bool) -> None:
    path = float_model.with_name("dynamic.onnx")
    ort_quantization.quantize_dynamic(float_model, path, per_channel=per_channel)
    tensor = only(read_onnx(path))
    assert tensor.layout.packing == "MatMulInteger"
    assert tensor.layout.granularity(tensor.shape) == (
        "per axis 1" if per_channel else "per tensor"
    )
    error = np.abs(in_pieces(tensor) - weight())
    assert error.max() <= tensor.load().scale.max() * 0.501


class Samples(ort_quantization.CalibrationDataReader):
    def __init__(self) -> None:
        rng = np.random.default_rng(SEED)
        self.left = [{"x": rng.normal(size=(1, ROWS)).astype(np.float32)} for _ in range(2)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


@pytest.mark.parametrize("style", ["QDQ", "QOperator"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
def test_static(float_model: Path, style: str, per_channel: bool, kind: str) -> None:
    path = float_model.with_name("static.onnx")
    ort_quantization.quantize_static(
        float_model,
        path,
        Samples(),
        quant_format=ort_quantization.QuantFormat[style],
        per_channel=per_channel,
        activation_type=ort_quantization.QuantType[kind],
        weight_type=ort_quantization.QuantType[kind],
    )
    tensor = only(read_onnx(path))
    initializers = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    assert tensor.layout.packing == ("QDQ" if style == "QDQ" else "QLinearMatMul")

    def part(suffix: str) -> np.ndarray:
        return next(a for n, a in initializers.items() if n[0] == "w" and n.endswith(suffix))

    codes, scale, zero = part("quantized"), part("scale"), part("zero_point")
    expected = (codes.astype(np.int32) - zero).astype(np.float32) * scale
    np.testing.assert_array_equal(in_pieces(tensor), expected)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_matmul_nbits(float_model: Path, symmetric: bool, bits: int) -> None:
    quantizer = MatMulNBitsQuantizer(
        onnx.load(float_model), bits=bits, block_size=32, is_symmetric=symmetric, accuracy_level=1
    )
    quantizer.process()
    path = float_model.with_name("nbits.onnx")
    quantizer.model.save_model_to_file(str(path))
    tensor = only(read_onnx(path))
    assert tensor.layout.packing == "MatMulNBits"
    assert tensor.shape == (COLUMNS, ROWS)
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = ROWS
    onnx.save(model, path)
    np.testing.assert_allclose(in_pieces(tensor).T, weight_by_running(path), rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("scale_shape", "axis", "block", "dtype"),
    [
        ((), 1, 0, np.int8),
        ((COLUMNS,), 1, 0, np.int8),
        ((ROWS,), 0, 0, np.uint8),
        ((ROWS // 32, COLUMNS), 0, 32, np.int8),
        ((ROWS, COLUMNS // 8), 1, 8, np.uint8),
        ((COLUMNS,), -1, 0, np.int16),
    ],
)
def test_dequantize_linear(
    tmp_path: Path, scale_shape: tuple[int, ...], axis: int, block: int, dtype: type
) -> None:
    rng = np.random.default_rng(SEED)
    info = np.iinfo(dtype)
    arrays = {
        "q": rng.integers(info.min, info.max, (ROWS, COLUMNS), dtype=dtype),
        "s": rng.uniform(0.01, 0.1, scale_shape).astype(np.float32),
        "z": rng.integers(-3 if info.min else 0, 3, scale_shape).astype(dtype),
    }
    attributes = {"axis": axis} | ({"block_size": block} if block else {})
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], **attributes),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, arrays, (ROWS, ROWS)), path)
    tensor = only(read_onnx(path))
    np.testing.assert_array_equal(in_pieces(tensor), weight_by_running(path))
    spans = [span for span in tensor.spans if span.nbytes == arrays["q"].nbytes]
    assert spans[0].source.read(spans[0].offset, spans[0].nbytes, "") == arrays["q"].tobytes()


@pytest.mark.parametrize("form", ["plain", "subtracted"])
def test_arithmetic_written_out(tmp_path: Path, form: str) -> None:
    arrays = {
        "q": np.random.default_rng(SEED).integers(0, 255, (ROWS, COLUMNS), dtype=np.uint8),
        "s": np.full((1, COLUMNS), 0.125, np.float32),
        "z": np.float32(128),
    }
    nodes = [
        helper.make_node("Cast", ["q"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["f", "z"], ["d"]),
        helper.make_node("Mul", ["f" if form == "plain" else "d", "s"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    if form == "plain":
        del nodes[1]
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, arrays, (ROWS, ROWS)), path)
    np.testing.assert_array_equal(in_pieces(only(read_onnx(path))), weight_by_running(path))


def test_four_bit_initializers(tmp_path: Path) -> None:
    codes = np.random.default_rng(SEED).integers(-8, 8, (ROWS, COLUMNS))
    packed = helper.make_tensor("q", TensorProto.INT4, codes.shape, codes.reshape(-1))
    model = model_of(
        [
            helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=0, block_size=32),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        {"s": np.full((ROWS // 32, COLUMNS), 0.25, np.float32)},
    )
    model.graph.initializer.append(packed)
    onnx.save(model, tmp_path / "m.onnx")
    tensor = only(read_onnx(tmp_path / "m.onnx"))
    np.testing.assert_array_equal(in_pieces(tensor), codes * np.float32(0.25))
    assert tensor.layout.number_format == "int4"


def test_external_data_is_read_in_place(tmp_path: Path) -> None:
    arrays = {"q": np.ones((ROWS, COLUMNS), np.int8), "s": np.float32(0.5)}
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    path = tmp_path / "m.onnx"
    onnx.save(
        model_of(nodes, arrays),
        path,
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    artefact = read_onnx(path)
    tensor = only(artefact)
    assert {file.path.name for file in artefact.files} == {"m.onnx", "m.data"}
    assert tensor.spans[0].source.path.name == "m.data"
    np.testing.assert_array_equal(in_pieces(tensor), arrays["q"] * arrays["s"])


@pytest.mark.parametrize("scale_shape", [(3,), (ROWS, COLUMNS), (2, 2)])
def test_a_scale_that_does_not_fit(tmp_path: Path, scale_shape: tuple[int, ...]) -> None:
    arrays = {"q": np.ones((ROWS, COLUMNS), np.int8), "s": np.ones(scale_shape, np.float32)}
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    onnx.save(model_of(nodes, arrays), tmp_path / "m.onnx")
    with pytest.raises(HostileFile, match="does not fit"):
        read_onnx(tmp_path / "m.onnx")


@pytest.mark.parametrize("beside", [False, True])
def test_weights_are_read_in_their_file_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, beside: bool
) -> None:
    codes = np.random.default_rng(3).integers(-127, 128, (4096, 64)).astype(np.int8)
    scale = np.random.default_rng(4).random(64).astype(np.float32)
    model = model_of(
        [
            helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=1),
            helper.make_node("MatMul", ["x", "d"], ["y"]),
        ],
        {"w": codes, "s": scale},
        (1, 4096),
    )
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=beside, location="m.data", size_threshold=0)
    artefact = read_onnx(path)
    (tensor,) = artefact.tensors
    reads = []
    read = FileBytes.array

    def watched(self: FileBytes, dtype: DTypeLike, offset: int, count: int, what: str) -> Array:
        reads.append((self.path.name, count))
        return read(self, dtype, offset, count, what)

    monkeypatch.setattr(FileBytes, "array", watched)
    pieces = [values.codes for _, values in tensor.pieces(1000)]
    np.testing.assert_array_equal(np.concatenate(pieces), codes)
    assert {name for name, _ in reads} == {"m.data" if beside else "m.onnx"}
    assert max(count for _, count in reads) <= 1000
    content = tensor.spans[0].source.path.read_bytes()
    for span, array in zip(tensor.spans, (codes, scale), strict=True):
        assert content[span.offset : span.offset + span.nbytes] == array.tobytes()


@pytest.mark.parametrize("field", ["op_type", "input", "name", "initializer"])
def test_names_that_are_no_text_are_refused(tmp_path: Path, field: str) -> None:
    nodes = [helper.make_node("DequantizeLinear", ["wwww", "s"], ["y"], name="nnnn")]
    model = model_of(nodes, {"wwww": np.ones((2, 2), np.int8), "s": np.float32(1)})
    raw = model.SerializeToString()
    old = {"op_type": b"DequantizeLinear", "name": b"nnnn"}.get(field, b"wwww")
    at = raw.find(old) if field != "initializer" else raw.rfind(old)
    path = tmp_path / "m.onnx"
    path.write_bytes(raw[:at] + b"\xff" + raw[at + 1 :])
    with pytest.raises(FormatNotRecognised, match="not UTF-8"):
        inspect_artefact(read_onnx(path))
