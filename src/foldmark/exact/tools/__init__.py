"""The catalogue: what each tool of the field does to a group of numbers, as named values."""

from typing import Final

from foldmark.exact.tools import (
    ggml,
    google,
    huggingface,
    intel,
    onnxruntime,
    pytorch,
    torchao,
    weight_only,
)
from foldmark.exact.tools.entry import Entry

__all__ = ["CATALOGUE"]

CATALOGUE: Final[dict[str, Entry]] = {
    entry.name: entry
    for module in (
        onnxruntime,
        pytorch,
        torchao,
        huggingface,
        intel,
        google,
        ggml,
        weight_only,
    )
    for entry in module.ENTRIES
}
"""Every entry by its name, tool after tool."""
