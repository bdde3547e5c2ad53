"""The --data and --labels options: strings become sources of samples here."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import DataMismatch, FileUnreadable, NoData
from foldmark.runtimes.sources import FunctionData, RandomData, read_npz

__all__ = ["DATA_HELP", "LABELS_HELP", "parse_data", "parse_labels"]

DATA_HELP = (
    "Samples: an .npz of arrays named like the inputs (first axis = samples), a folder of "
    "them, file.py:function yielding dicts of arrays, or random:N."
)
LABELS_HELP = "Labels: an .npy or .npz file, or the name of an array that stands in the data."


def parse_data(text: str | None) -> Path | FunctionData | RandomData | None:
    """Return the source that the text of --data names; None stays None.

    Raises:
        NoData: "random:" without a count of at least one.
    """
    if text is None:
        return None
    if text.startswith("random:"):
        count = text.removeprefix("random:")
        if not count.isdecimal() or int(count) < 1:
            raise NoData("how many random samples?", where=f"--data {text}", expected="random:16")
        return RandomData(int(count))
    path, colon, function = text.rpartition(":")
    if colon and path.endswith(".py"):
        return FunctionData(Path(path), function)
    return Path(text)


def parse_labels(text: str | None) -> tuple[NDArray[Any] | None, str]:
    """Return (labels from the file, name of the array beside the inputs); one of them counts.

    Raises:
        DataMismatch: the file does not hold one array of numbers.
    """
    if text is None:
        return None, "labels"
    path = Path(text)
    if not path.is_file():
        if path.suffix in (".npy", ".npz"):
            raise FileUnreadable("no such file", where=text)
        return None, text
    if path.suffix == ".npz":
        arrays = read_npz(path)
        found = arrays.get("labels", next(iter(arrays.values())) if len(arrays) == 1 else None)
    else:
        try:
            found = np.load(path, allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise DataMismatch("not an array", where=text, got=str(error)) from None
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iuf":
        raise DataMismatch(
            "no labels here",
            where=text,
            got="several arrays" if found is None else str(getattr(found, "dtype", "no array")),
            expected="one array of numbers, or one named labels",
        )
    return found, "labels"
