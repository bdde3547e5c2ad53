"""Watch which functions of `exact` a call goes through."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import foldmark.exact

HOME = str(Path(foldmark.exact.__file__).parent)


def functions_of_exact_called(function: Callable[..., Any], arguments: tuple[Any, ...]) -> set[str]:
    """Return the names of the functions in foldmark.exact that run while `function` does."""
    found: set[str] = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            found.add(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        function(*arguments)
    finally:
        sys.setprofile(before)
    return found
