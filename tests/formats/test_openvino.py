"""OpenVINO IR against OpenVINO itself."""

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from foldmark.errors import FileUnreadable, FoldmarkError, FormatNotRecognised, HostileFile
from foldmark.formats.openvino_file import read_openvino

SEED = 20264
# OpenVINO's constants look at numpy's memory without holding it.
_ALIVE: list[np.ndarray] = []


@pytest.mark.parametrize("kind", ["i8", "u8", "i4", "u4"])
@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_compressed_weights(tmp_path: Path, kind: str, zero_point: bool, grouped: bool) -> None:
    rng = np.random.default_rng(SEED)
    bits = int(kind[1:])
    low = -(2 ** (bits - 1)) if kind[0] == "i" else 0
    shape = (24, 4, 16) if grouped else (24, 64)
    codes = rng.integers(low, low + 2**bits, shape)
    per_group = (24, 4, 1) if grouped else (24, 1)
    scale = rng.uniform(0.01, 0.1, per_group).astype(np.float16)
    value = ops.convert(constant(codes, kind), np.float16)
    if zero_point:
        zeros = rng.integers(low + 1, low + 2**bits - 1, per_group)
        value = ops.subtract(value, ops.convert(constant(zeros, kind), np.float16))
    value = ops.multiply(value, ops.constant(scale))
    if grouped:
        value = ops.reshape(value, np.array([24, 64]), special_zero=False)
    model = ov.Model([ops.convert(value, np.float32)], [])
    path = tmp_path / "model.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    artefact = read_openvino(path)
    (tensor,) = [t for t in artefact.tensors if t.layout.is_quantized]
    # The numbers as OpenVINO's own arithmetic in float32 gives them.
    expected = codes.astype(np.float32)
    if zero_point:
        expected = expected - zeros
    expected = (expected * scale.astype(np.float32)).reshape(24, 64)
    np.testing.assert_array_equal(tensor.load().dequantize(), expected)
    pieces = [v.dequantize() for _, v in tensor.pieces(200)]
    np.testing.assert_array_equal(np.concatenate(pieces), expected)
    seen = ov.Core().compile_model(model, "CPU")([])[0]
    np.testing.assert_allclose(seen, expected, rtol=1e-3, atol=1e-4)
    assert tensor.shape == (24, 64)
    assert tensor.layout.block == ((1, 16) if grouped else (1, 64))
    stored = sum(t.nbytes for t in artefact.tensors)
    assert artefact.header_bytes == path.stat().st_size
    assert 0 <= artefact.size - artefact.header_bytes - stored < 64


def constant(codes: np.ndarray, kind: str) -> ov.op.Constant:
    element = {"i8": ov.Type.i8, "u8": ov.Type.u8, "i4": ov.Type.i4, "u4": ov.Type.u4}[kind]
    if kind.endswith("8"):
        return ops.constant(codes.astype(element.to_dtype()))
    flat = (codes.reshape(-1) & 15).astype(np.uint8)
    flat = np.append(flat, np.zeros(flat.size % 2, np.uint8))
    packed = flat[::2] | flat[1::2] << 4
    _ALIVE.append(packed)
    return ov.op.Constant(ov.Tensor(packed, list(codes.shape), element))


NET = '<net name="m" version="11"><layers>{}</layers><edges/></net>'
CONST = (
    '<layer id="{}" name="c" type="Const">'
    '<data element_type="{}" shape="{}" offset="{}" size="{}"/></layer>'
)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ('<!DOCTYPE net [<!ENTITY a "b">]><net/>', HostileFile, "entities"),
        ('<?xml version="1.0" encoding="cp037"?><net/>', HostileFile, "broken"),
        ("<net>", HostileFile, "broken"),
        ("<html/>", FormatNotRecognised, "not OpenVINO"),
        (NET.format(CONST.format(0, "f32", "2", 0, 8)), FoldmarkError, "behind the file"),
        (NET.format(CONST.format(0, "f32", "2", -8, 8)), HostileFile, "impossible"),
        (NET.format(CONST.format(0, "f32", "1e3", 0, 8)), HostileFile, "impossible"),
        (NET.format(CONST.format(0, "f32", "9", 0, 4)), HostileFile, "does not hold"),
        (NET.format(CONST.format(0, "f32", "1,1", 0, 4) * 2), HostileFile, "twice"),
        (NET.format(CONST.format(0, "nf4", "1", 0, 4)), FoldmarkError, "not supported"),
    ],
)
def test_lies_are_refused(text: str, error: type[Exception], words: str, tmp_path: Path) -> None:
    (tmp_path / "m.xml").write_text(text)
    (tmp_path / "m.bin").write_bytes(b"\0" * 4)
    with pytest.raises(error, match=words):
        read_openvino(tmp_path / "m.xml")


def test_the_weights_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "m.xml").write_text(NET.format(""))
    with pytest.raises(FileUnreadable, match="missing"):
        read_openvino(tmp_path / "m.xml")
