"""Every public kernel has a twin in the oracle: same module, same name, same arguments in order."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable

import pytest

import foldmark.exact
import foldmark.kernels

# What the oracle is told and an array knows: its dtype. What the array is told and a list is not:
# which elements share a scale.
TOLD_TO_THE_ORACLE_ALONE = {"data"}
TOLD_TO_THE_ARRAY_ALONE = {"block"}


def modules(package: object) -> dict[str, object]:
    """Return the modules of a package by the part of the name below it."""
    prefix = package.__name__ + "."
    found = list(pkgutil.walk_packages(package.__path__, prefix))
    return {m.name.removeprefix(prefix): importlib.import_module(m.name) for m in found}


EXACT, FAST = modules(foldmark.exact), modules(foldmark.kernels)
TWINS = sorted(
    (name, function)
    for name, module in FAST.items()
    if name in EXACT
    for function in getattr(module, "__all__", ())
    if inspect.isfunction(getattr(module, function))
    or hasattr(getattr(module, function), "py_func")
)


def missing(fast: Callable[..., object], exact: Callable[..., object] | None) -> str:
    """Say what keeps a kernel from being a twin, nothing if it is one."""
    if exact is None:
        return "no twin"
    ours = [n for n in inspect.signature(fast).parameters if n not in TOLD_TO_THE_ARRAY_ALONE]
    theirs = list(inspect.signature(exact).parameters)
    if ours not in (theirs, [n for n in theirs if n not in TOLD_TO_THE_ORACLE_ALONE]):
        return f"takes {ours}, its twin {theirs}"
    return ""


@pytest.mark.parametrize(("module", "name"), TWINS)
def test_every_kernel_has_a_twin(module: str, name: str) -> None:
    fast = getattr(FAST[module], name)
    assert missing(fast, getattr(EXACT[module], name, None)) == ""
    assert f"foldmark.exact.{module}.{name}" in (fast.__doc__ or "") or module == "arithmetic"


def test_there_are_many() -> None:
    assert len(TWINS) > 40


def test_the_detector_detects() -> None:
    assert missing(lambda values, scale: None, None) == "no twin"
    assert "takes" in missing(lambda scale, values: None, lambda values, scale: None)
    assert missing(lambda values, block: None, lambda values, data: None) == ""
