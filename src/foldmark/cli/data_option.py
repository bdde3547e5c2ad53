"""The --data and --labels options: strings become sources of samples here."""

import os
from pathlib import Path

from foldmark.errors import NoData
from foldmark.runtimes.sources import FunctionData, RandomData

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


def parse_labels(text: str | None) -> tuple[Path | None, str]:
    """Return (file of labels, name of the array beside the inputs); one of them counts.

    What is there as a file is one, and so is what is called like one.
    """
    if text is None:
        return None, "labels"
    if text.endswith((".npy", ".npz", os.sep)) or os.path.isfile(text):  # noqa: PTH113
        return Path(text), "labels"
    return None, text
