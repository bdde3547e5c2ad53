"""numpy's files: read where they lie, and nothing that could run code."""

import io
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from foldmark.errors import FoldmarkError, HostileFile, NotSupported, TruncatedFile
from foldmark.formats.npz_file import read_npy, read_npz

CODES = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
SCALE = np.array([0.5, 0.25, 2], dtype=np.float32)


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, np.float64, np.int8, np.uint8, np.int32, np.int64, np.bool_]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy(tmp_path: Path, dtype: type, order: str) -> None:
    array = np.asarray(CODES.astype(dtype), order=order)
    np.save(tmp_path / "a.npy", array)
    artefact = read_npy(tmp_path / "a.npy")
    (tensor,) = artefact.tensors
    np.testing.assert_array_equal(tensor.load().codes, array)
    np.testing.assert_array_equal(tensor.rows(1, 3).codes, array[1:3])
    assert tensor.layout.number_format == np.dtype(dtype).name
    assert artefact.header_bytes + tensor.nbytes == artefact.size


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "names", [("codes", "scale"), ("w", "w_scale"), ("l.weight", "l.weight_scale")]
)
def test_codes_find_their_scale(tmp_path: Path, save: object, names: tuple[str, str]) -> None:
    path = tmp_path / "a.npz"
    save(path, **{names[0]: CODES, names[1]: SCALE, "bias": np.ones(3)})  # type: ignore[operator]
    artefact = read_npz(path)
    quantized = [tensor for tensor in artefact.tensors if tensor.layout.is_quantized]
    np.testing.assert_array_equal(quantized[0].load().dequantize(), CODES * SCALE[:, None])
    assert len(artefact.tensors) == 2
    stored = sum(tensor.nbytes for tensor in artefact.tensors)
    if save is np.savez:
        assert artefact.header_bytes + stored == artefact.size
        offset = quantized[0].spans[0].offset
        assert path.read_bytes()[offset : offset + 12] == CODES.tobytes()
    else:
        assert artefact.compressed is not None
        assert artefact.header_bytes + artefact.compressed == artefact.size


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def with_header(text: str, body: bytes = b"") -> bytes:
    line = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + body


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (npy(np.array([object()], dtype=object)), NotSupported, "pickle"),
        (npy(np.zeros(2, dtype=">f4")), NotSupported, "dtype"),
        (npy(np.zeros(2, dtype=[("a", "i4")])), NotSupported, "dtype"),
        (npy(np.zeros(2, dtype=ml_dtypes.bfloat16)), NotSupported, "dtype"),
        (npy(np.zeros(100))[:-1], TruncatedFile, "behind the file"),
        (npy(np.zeros(100))[:60], HostileFile, "header"),
        (
            with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2**62,)}"),
            HostileFile,
            "header",
        ),
        (
            with_header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**62},)}}"),
            TruncatedFile,
            "behind",
        ),
        (
            with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-4,)}"),
            HostileFile,
            "shape",
        ),
        (with_header("__import__('os').system('true')"), HostileFile, "header"),
        (with_header("(" * 3000), HostileFile, "header"),
        (b"\x93NUMPY\x09\x00" + b"\0" * 20, NotSupported, "version"),
    ],
)
def test_lies_are_refused(
    content: bytes, error: type[Exception], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(error, match=words):
        read_npy(path)


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", npy(np.zeros(1 << 26, dtype=np.float32)))
    assert read_npz(path).tensors[0].shape == (1 << 26,)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", npy(np.zeros((1 << 26) + (1 << 20), dtype=np.float32)))
    with pytest.raises(HostileFile, match="expands beyond reason"):
        read_npz(path)


def test_a_member_shorter_than_it_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w.npy", npy(np.zeros(100))[:-8])
        archive.writestr("v.npy", npy(np.zeros(100)))
    with pytest.raises(TruncatedFile, match="behind its member"):
        read_npz(path)


def test_encrypted_and_duplicate_members(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w.npy", npy(np.zeros(4)))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("w.npy", npy(np.ones(4)))
    with pytest.raises(HostileFile, match="twice"):
        read_npz(path)
    path.write_bytes(path.read_bytes().replace(b"PK\x03\x04\x14\0\0", b"PK\x03\x04\x14\0\1"))
    with pytest.raises(FoldmarkError):
        read_npz(path)
