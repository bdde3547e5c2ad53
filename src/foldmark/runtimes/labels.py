"""Labels that lie in a file of their own."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import DataMismatch, FileUnreadable
from foldmark.runtimes.sources import read_npz

__all__ = ["read_labels"]

_PICKLED = (
    "This file contains pickled"  # numpy's words, which go on with how to run it all the same
)


def read_labels(path: Path) -> NDArray[Any]:
    """Return the one array of numbers of an .npy or .npz file, or that named labels.

    Raises:
        FileUnreadable: the path is missing, a directory or not permitted.
        DataMismatch: the file does not hold one array of numbers.
    """
    if path.is_dir():
        raise FileUnreadable("this is a directory", where=str(path), expected="a file of labels")
    if not path.is_file():
        raise FileUnreadable("no such file", where=str(path))
    if path.suffix == ".npz":
        arrays = read_npz(path)
        found = arrays.get("labels", next(iter(arrays.values())) if len(arrays) == 1 else None)
        got = ", ".join(arrays) or "no array"
    else:
        found = _read_npy(path)
        got = str(found.dtype)
    if found is None or found.dtype.kind not in "iuf" or found.ndim == 0:
        raise DataMismatch(
            "no labels here",
            where=str(path),
            got=got if found is None or found.ndim else "a single number",
            expected="one array of numbers, or one named labels",
        )
    return found


def _read_npy(path: Path) -> NDArray[Any]:
    try:
        found = np.load(path, allow_pickle=False)
    except OSError as error:
        raise FileUnreadable(str(error.strerror or error), where=str(path)) from None
    except (ValueError, EOFError) as error:
        said = str(error)
        raise DataMismatch(
            "not an array",
            where=str(path),
            got="a file of another kind" if said.startswith(_PICKLED) else said,
            todo="write it with numpy.save(file, labels)",
        ) from None
    if isinstance(found, np.ndarray):
        return found
    found.close()
    raise DataMismatch("a file of several arrays", where=str(path), todo="name it .npz")
