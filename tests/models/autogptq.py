"""AutoGPTQ's own linear layer, taken out of its wheel: it unpacks and multiplies on any processor.

The package as a whole wants libraries that need a graphics card or are years old; the layer alone
is a module of torch. Nothing of it is kept but in the folder of built models.
"""

import importlib
import subprocess
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.models.store import built

_PACKAGE, _VERSION = "auto-gptq", "0.7.1"
_LAYERS = "auto_gptq/nn_modules/qlinear/"


def _fetch(folder: Path) -> None:
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    command += [str(folder), "--only-binary=:all:", "--python-version=3.11"]
    command += ["--platform=manylinux2014_x86_64", f"{_PACKAGE}=={_VERSION}"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(_LAYERS) and name.endswith(".py"):
                archive.extract(name, folder)
    wheel.unlink()


def quant_linear() -> Any:
    """Return the class QuantLinear of `qlinear_cuda`, whose way without CUDA is torch's."""
    try:
        folder = built(f"auto_gptq-{_VERSION}", _fetch)
    except (subprocess.SubprocessError, OSError) as fault:
        pytest.skip(f"auto-gptq can't be fetched: {fault}")
    name = "auto_gptq.nn_modules.qlinear"
    for depth in range(3):  # empty packages in the place of those that import everything
        parent = ".".join(name.split(".")[: depth + 1])
        module = types.ModuleType(parent)
        module.__path__ = [str(folder / parent.replace(".", "/"))]
        sys.modules.setdefault(parent, module)
    return importlib.import_module(f"{name}.qlinear_cuda").QuantLinear
