"""The catalogue: what each tool of the field does to a group of numbers, as named values."""

from typing import Final

from foldmark.exact.tools import (
    codebooks,
    ggml,
    google,
    half_quadratic,
    histogram,
    huggingface,
    intel,
    onnxruntime,
    pytorch,
    searches,
    torchao,
    weight_only,
)
from foldmark.exact.tools.entry import Entry

__all__ = ["CATALOGUE"]

_MODULES = (
    onnxruntime,
    pytorch,
    histogram,
    torchao,
    huggingface,
    codebooks,
    intel,
    google,
    ggml,
    weight_only,
    half_quadratic,
    searches,
)

CATALOGUE: Final[dict[str, Entry]] = {
    entry.name: entry for module in _MODULES for entry in module.ENTRIES
}
"""Every entry by its name, tool after tool."""
