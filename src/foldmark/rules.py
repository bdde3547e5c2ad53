"""The catalogue of rules as attributes: `rules.ONNXRUNTIME_WEIGHT_INT8`, `rules.GGML_Q8_0`, ..."""

from foldmark.exact.tools import CATALOGUE
from foldmark.exact.tools.entry import Entry

__all__ = ["CATALOGUE", *CATALOGUE]  # noqa: PLE0604  (the table's keys are strings)


def __getattr__(name: str) -> Entry:
    """Return the entry of that name."""
    try:
        return CATALOGUE[name]
    except KeyError:
        raise AttributeError(f"no rule is called {name!r}") from None


def __dir__() -> list[str]:
    """List the names of the catalogue."""
    return sorted(__all__)
