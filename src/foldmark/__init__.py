"""foldmark: where quantization cost a neural network its accuracy, in an account that adds up.

The names below are the public surface; everything else may move between versions. Importing
the package costs nothing: each name is loaded when it is first used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES: dict[str, str] = {
    "Explanation": "foldmark.report.explanation",
    "Difference": "foldmark.report.difference",
    "FunctionData": "foldmark.runtimes.sources",
    "Metric": "foldmark.ledger.metrics",
    "RandomData": "foldmark.runtimes.sources",
    "diff": "foldmark.report.difference",
    "explain": "foldmark.report.explain",
    "FoldmarkError": "foldmark.errors",
    "BlockShape": "foldmark.tensors.block",
    "PackedTensor": "foldmark.tensors.packed",
    "QuantizedTensor": "foldmark.tensors.quantized",
    "Scheme": "foldmark.tensors.scheme",
    "asymmetric": "foldmark.tensors.scheme",
    "dequantize": "foldmark.tensors.calls",
    "fake_quantize": "foldmark.tensors.calls",
    "first_difference": "foldmark.tensors.calls",
    "load": "foldmark.formats.opening",
    "int_matmul": "foldmark.tensors.calls",
    "per_axis": "foldmark.tensors.block",
    "per_group": "foldmark.tensors.block",
    "per_tensor": "foldmark.tensors.block",
    "quantize": "foldmark.tensors.calls",
    "quantize_packed": "foldmark.tensors.packed",
    "symmetric": "foldmark.tensors.scheme",
    "tile": "foldmark.tensors.block",
    "quantize_model": "foldmark.recipes.quantize",
    "tune": "foldmark.tuning.tune",
    "verify": "foldmark.proof.verify",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604  (the table's keys are strings)


def __getattr__(name: str) -> Any:
    """Load a public name from the module that defines it."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'foldmark' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
