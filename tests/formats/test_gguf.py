"""GGUF against the gguf package, block type by block type, and against its own writer."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from foldmark.errors import HostileFile, NotSupported, TruncatedFile
from foldmark.formats.ggml_blocks import BLOCK_TYPES
from foldmark.formats.gguf_file import read_gguf
from foldmark.formats.stored import Part

SEED = 20261
ARRAY = b"\x09\0\0\0"


def random_blocks(kind: Kind, rows: int, columns: int) -> np.ndarray:
    """Random bytes in the shape of a type's blocks, every code and sub-scale reached."""
    elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(SEED + kind.value)
    raw = rng.integers(0, 256, (rows, columns // elements, nbytes), dtype=np.uint8)
    if kind == Kind.MXFP4:  # the exponent 255 is NaN in the specification and 2^127 in ggml
        raw[..., 0] = np.minimum(raw[..., 0], 254)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("type_id", sorted(BLOCK_TYPES))
def test_every_block_type_decodes_as_gguf_does(type_id: int, tmp_path: Path) -> None:
    kind = Kind(type_id)
    assert (BLOCK_TYPES[type_id].elements, BLOCK_TYPES[type_id].nbytes) == gguf.GGML_QUANT_SIZES[
        kind
    ]
    raw = random_blocks(kind, 3, 512)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "test")
    writer.add_tensor("w", raw, raw_dtype=kind)
    write(writer)
    tensor = read_gguf(path).tensors[0]
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw, kind)
        whole = tensor.load().dequantize()
        pieces = [values.dequantize() for _, values in tensor.pieces(512)]
    if kind == Kind.MXFP4:  # ggml's integers have no negative zero, E2M1 has
        expected, negative_zeros = expected + 0, whole[(whole == 0) & np.signbit(whole)]
        assert negative_zeros.size
        whole = whole + np.float32(0)
        pieces = [piece + np.float32(0) for piece in pieces]
    np.testing.assert_array_equal(whole.view(np.uint32), expected.view(np.uint32))
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    assert len(pieces) == 3
    assert tensor.shape == (3, 512)
    assert tensor.nbytes == raw.nbytes
    assert tensor.spans[0].source.read(tensor.spans[0].offset, raw.nbytes, "") == raw.tobytes()


def write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("dtype", "name"), [(np.float32, "float32"), (np.float16, "float16"), (np.int32, "int32")]
)
def test_plain_tensors_and_metadata(tmp_path: Path, dtype: type, name: str) -> None:
    array = np.arange(24, dtype=dtype).reshape(2, 3, 4)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a", 7)
    writer.add_array("tokens", ["x", "yy", ""])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_tensor("t", array)
    write(writer)
    artefact = read_gguf(path)
    tensor = artefact.tensors[0]
    np.testing.assert_array_equal(tensor.load().codes, array)
    assert tensor.layout.number_format == name
    assert artefact.metadata["general.architecture"] == "llama"
    assert artefact.metadata["tokens"] == "[3 strings]"
    assert artefact.metadata["numbers"] == "[3 numbers]"
    assert artefact.metadata["a"] == "7"


def test_one_dimensional_blocks_can_be_read_in_pieces(tmp_path: Path) -> None:
    raw = random_blocks(Kind.Q4_0, 1, 320).reshape(-1)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "test")
    writer.add_tensor("w", raw, raw_dtype=Kind.Q4_0)
    write(writer)
    tensor = read_gguf(path).tensors[0]
    pieces = [values.dequantize() for _, values in tensor.pieces(64)]
    assert len(pieces) == 5
    np.testing.assert_array_equal(np.concatenate(pieces), gguf.dequantize(raw, Kind.Q4_0))


def test_parts_sum_to_the_tensor() -> None:
    for kind in BLOCK_TYPES.values():
        assert sum(kind.parts(5).values()) == 5 * kind.nbytes
        assert Part.SCALES in kind.parts(5)


def header(version: int = 3, tensors: int = 0, pairs: int = 0, rest: bytes = b"") -> bytes:
    return (
        b"GGUF"
        + version.to_bytes(4, "little")
        + tensors.to_bytes(8, "little")
        + pairs.to_bytes(8, "little")
        + rest
    )


def text(value: str) -> bytes:
    return len(value.encode()).to_bytes(8, "little") + value.encode()


def entry(name: str, dims: list[int], kind: int, offset: int) -> bytes:
    numbers = b"".join(d.to_bytes(8, "little") for d in dims)
    return (
        text(name)
        + len(dims).to_bytes(4, "little")
        + numbers
        + kind.to_bytes(4, "little")
        + offset.to_bytes(8, "little")
    )


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (header(tensors=2**63), HostileFile, "more tensors"),
        (header(pairs=2**63), HostileFile, "more tensors and pairs"),
        (header(version=1), NotSupported, "version"),
        (header(tensors=1, rest=(2**62).to_bytes(8, "little") + b"x" * 40), HostileFile, "name"),
        (header(tensors=1, rest=entry("w", [2**62], 0, 0)), TruncatedFile, "behind the file"),
        (header(tensors=1, rest=entry("w", [2**40, 2**40], 2, 0)), TruncatedFile, "behind"),
        (header(tensors=1, rest=entry("w", [4], 0, 2**63)), TruncatedFile, "behind the file"),
        (header(tensors=1, rest=entry("w", [8], 0, 4) + b"\0" * 99), HostileFile, "aligned"),
        (header(tensors=1, rest=entry("w", [1] * 5, 0, 0)), HostileFile, "axes"),
        (header(tensors=1, rest=entry("w", [33], 2, 0) + b"\0" * 99), HostileFile, "whole blocks"),
        (header(tensors=1, rest=entry("w", [256], 16, 0) + b"\0" * 99), NotSupported, "IQ2_XXS"),
        (header(tensors=1, rest=entry("w", [256], 999, 0) + b"\0" * 99), NotSupported, "999"),
        (
            header(tensors=2, rest=entry("a", [8], 0, 0) + entry("b", [8], 0, 0) + b"\0" * 99),
            HostileFile,
            "overlap",
        ),
        (
            header(tensors=2, rest=entry("a", [8], 0, 0) + entry("a", [8], 0, 32) + b"\0" * 199),
            HostileFile,
            "twice",
        ),
        (
            header(pairs=1, rest=text("general.alignment") + b"\x04\0\0\0" + b"\x03\0\0\0"),
            HostileFile,
            "power of two",
        ),
        (
            header(
                pairs=1, rest=text("k") + b"\x09\0\0\0" + (b"\x09\0\0\0" + b"\x01" + b"\0" * 7) * 9
            ),
            HostileFile,
            "nested",
        ),
        (
            header(
                pairs=1, rest=text("k") + b"\x09\0\0\0\x08\0\0\0" + (2**61).to_bytes(8, "little")
            ),
            HostileFile,
            "values of 'k'",
        ),
    ],
)
def test_lies_are_refused(
    content: bytes, error: type[Exception], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(error, match=words):
        read_gguf(path)
