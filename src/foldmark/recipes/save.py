"""A quantized model on disk: written beside, loaded once to see that it runs, then renamed."""

import shutil
import tempfile
from pathlib import Path

import onnx

from foldmark.errors import FileUnreadable
from foldmark.formats.onnx_tensor import is_external, model_tensors, tensor_array
from foldmark.runtimes.onnxruntime import Session

__all__ = ["save_model"]

_INLINE = 1_800_000_000  # bytes; a protobuf ends at 2 GiB
_EXTERNAL_FROM = 1024


def save_model(model: onnx.ModelProto, path: Path) -> None:
    """Write a model; nothing is left behind when that fails.

    Weights move to a file beside it, `<name>.data`, when the model would not fit a protobuf.

    Raises:
        FileUnreadable: the disk is full or the folder can't be written.
        OperatorNotSupported: ONNX Runtime has no kernel for a node; names it.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.absolute().parent))
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        files = _write(model, folder / path.name)
        Session(folder / path.name)
        for each in sorted(files, key=lambda file: file.name == path.name):
            each.replace(path.absolute().parent / each.name)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(model: onnx.ModelProto, target: Path) -> list[Path]:
    """Write the model into an empty folder and return its files."""
    tensors = list(model_tensors(model))
    size = sum(_size(tensor) for tensor in tensors)
    for tensor in tensors:
        if is_external(tensor):
            _load(tensor)
    if size < _INLINE:
        target.write_bytes(model.SerializeToString())
        return [target]
    onnx.save(
        model,
        target,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=f"{target.name}.data",
        size_threshold=_EXTERNAL_FROM,
    )
    return [target, target.with_name(f"{target.name}.data")]


def _size(tensor: onnx.TensorProto) -> int:
    if is_external(tensor):
        return int(next((e.value for e in tensor.external_data if e.key == "length"), 0))
    return tensor.ByteSize()


def _load(tensor: onnx.TensorProto) -> None:
    """Bring a tensor's bytes into the model."""
    array = tensor_array(tensor)
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def _unwritable(path: Path, error: OSError) -> FileUnreadable:
    reason = (error.strerror or str(error)).lower()
    return FileUnreadable("can't be written", where=str(path), got=reason)
