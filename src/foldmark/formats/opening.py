"""From a path to the reader that knows it: one table of magic bytes."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from foldmark.errors import FileUnreadable, FormatNotRecognised, NotSupported
from foldmark.formats.gguf_file import read_gguf
from foldmark.formats.npz_file import open_zip, read_npy, read_npz
from foldmark.formats.safetensors_file import read_safetensors, read_sharded
from foldmark.formats.source import FileBytes
from foldmark.formats.stored import Artefact

__all__ = ["READERS", "load", "open_artefact"]

_PEEK = 64


@dataclass(frozen=True)
class _Magic:
    """Bytes at a place that tell a format, and who reads it."""

    offset: int
    content: bytes
    reader: Callable[[Path], Artefact]


def _read_zip(path: Path) -> Artefact:
    """Tell numpy's archives from PyTorch's by their members."""
    with open_zip(path) as archive:
        names = archive.namelist()
    if any(name.endswith("data.pkl") for name in names):
        from foldmark.formats.torch_file import read_torch  # noqa: PLC0415  (loads pickletools)

        return read_torch(path)
    if not any(name.endswith(".npy") for name in names):
        raise FormatNotRecognised("a zip archive without arrays", where=str(path))
    return read_npz(path)


def _refuse(name: str) -> Callable[[Path], Artefact]:
    def refuse(path: Path) -> Artefact:
        raise NotSupported(f"not supported: {name}", where=str(path))

    return refuse


def _read_onnx(path: Path) -> Artefact:
    from foldmark.formats.onnx_weights import read_onnx  # noqa: PLC0415  (loads the onnx package)

    return read_onnx(path)


def _read_tflite(path: Path) -> Artefact:
    from foldmark.formats.tflite_file import read_tflite  # noqa: PLC0415  (loads flatbuffers)

    return read_tflite(path)


def _read_openvino(path: Path) -> Artefact:
    from foldmark.formats.openvino_file import read_openvino  # noqa: PLC0415  (loads an XML parser)

    return read_openvino(path)


def _read_coreml(path: Path) -> Artefact:
    from foldmark.formats.coreml_file import read_coreml  # noqa: PLC0415  (an optional package)

    return read_coreml(path)


# The first that fits reads the file.
READERS: tuple[_Magic, ...] = (
    _Magic(0, b"GGUF", read_gguf),
    _Magic(0, b"\x93NUMPY", read_npy),
    _Magic(0, b"PK\x03\x04", _read_zip),
    _Magic(4, b"TFL3", _read_tflite),
    _Magic(0, b"<?xml", _read_openvino),
    _Magic(0, b"<net", _read_openvino),
    _Magic(8, b"{", read_safetensors),
    _Magic(0, b"{", read_sharded),
    _Magic(0, b"\x89HDF", _refuse("HDF5 (Keras)")),
    _Magic(0, b"lmgg", _refuse("ggml files older than GGUF")),
    _Magic(0, b"tjgg", _refuse("ggml files older than GGUF")),
    _Magic(0, b"fmgg", _refuse("ggml files older than GGUF")),
    _Magic(0, b"ftrt", _refuse("TensorRT engines")),
    _Magic(0, b"ptrt", _refuse("TensorRT engines")),
    _Magic(4, b"ET12", _refuse("ExecuTorch programs")),
    _Magic(0, b"\x1f\x8b", _refuse("gzip; unpack it first")),
    _Magic(0, b"7z\xbc\xaf", _refuse("7z; unpack it first")),
    _Magic(
        0,
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19",
        _refuse("PyTorch's pickles older than its archives; save the state dict again"),
    ),
    _Magic(0, b"\x80\x02", _refuse("pickles outside PyTorch's archives, which could run code")),
    _Magic(0, b"\x80\x03", _refuse("pickles outside PyTorch's archives, which could run code")),
    _Magic(0, b"\x80\x04", _refuse("pickles outside PyTorch's archives, which could run code")),
    _Magic(0, b"\x80\x05", _refuse("pickles outside PyTorch's archives, which could run code")),
    # protobuf has no magic; ONNX files begin with field 1, the version, as every writer writes it
    _Magic(0, b"\x08", _read_onnx),
)
_INSIDE_FOLDERS = ("model.safetensors.index.json", "model.safetensors", "openvino_model.xml")


def open_artefact(path: Path) -> Artefact:
    """Open a model file, or a folder that holds one under its usual name.

    Raises:
        FileUnreadable: missing, empty or not permitted.
        FormatNotRecognised: bytes that no reader knows.
        NotSupported: a format that is known and not read.
        TruncatedFile, HostileFile: from the format's own reader.
    """
    if path.suffix in (".mlmodel", ".mlmodelc"):
        raise NotSupported(
            f"not supported: Core ML's {path.suffix}",
            where=str(path),
            todo="inspect the .mlpackage that it was made from",
        )
    if path.suffix == ".mlpackage" and _is_folder(path):
        return _read_coreml(path)
    if _is_folder(path):
        path = _model_inside(path)
    with FileBytes(path) as source:
        start = source.read(0, min(_PEEK, source.size), "start")
    for magic in READERS:
        if start[magic.offset :].startswith(magic.content):
            return magic.reader(path)
    raise FormatNotRecognised(
        "not a model file that foldmark knows",
        where=str(path),
        got=f"first bytes {start[:8].hex(' ')}",
        expected="ONNX, safetensors, GGUF, TFLite, OpenVINO, Core ML, PyTorch, npy or npz",
    )


def load(path: str | os.PathLike[str]) -> Artefact:
    """Open a model file of any format; nothing but its header is read.

    Its tensors are read when asked for: `find(name)` gives one as it is stored, with name, shape,
    layout and place in the file, and `find(name).quantized()` its codes, scale and zero point;
    `quantized()` yields all of these one at a time.

    Raises:
        FileUnreadable, FormatNotRecognised, NotSupported, TruncatedFile, HostileFile.
    """
    return open_artefact(Path(path))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _model_inside(folder: Path) -> Path:
    for name in _INSIDE_FOLDERS:
        if (folder / name).is_file():
            return folder / name
    raise FileUnreadable(
        "a folder without a model",
        where=str(folder),
        expected="one of " + ", ".join(_INSIDE_FOLDERS),
        todo="name the file itself",
    )
