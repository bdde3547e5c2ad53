"""A quantized model on disk: written beside, loaded once to see that it runs, then renamed."""

import shutil
import tempfile
from pathlib import Path

import onnx

from foldmark.errors import FileUnreadable
from foldmark.formats.onnx_writer import write_model
from foldmark.runtimes.onnxruntime import Session, Weights

__all__ = ["save_model"]


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
        files = write_model(model, folder / path.name)
        # Packing weights for speed could not fail, and nothing runs here.
        Session(folder / path.name, weights=Weights.SHARED)
        for each in sorted(files, key=lambda file: file.name == path.name):
            each.replace(path.absolute().parent / each.name)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unwritable(path: Path, error: OSError) -> FileUnreadable:
    reason = (error.strerror or str(error)).lower()
    return FileUnreadable("can't be written", where=str(path), got=reason)
