"""Where built models lie: a folder of this process, or one that is kept between runs.

Set FOLDMARK_TEST_MODELS to a folder to keep what was built there; delete it after a change to
a builder.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path


@cache
def folder() -> Path:
    kept = os.environ.get("FOLDMARK_TEST_MODELS")
    if kept:
        Path(kept).mkdir(parents=True, exist_ok=True)
        return Path(kept)
    own = Path(tempfile.mkdtemp(prefix="foldmark-models-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def built(name: str, build: Callable[[Path], None]) -> Path:
    """Return the path of a model, building it beside and renaming when it is not there yet."""
    path = folder() / name
    if not path.exists():
        beside = folder() / f".{os.getpid()}.{name}"
        build(beside)
        beside.replace(path)
    return path
