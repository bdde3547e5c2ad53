"""The frozen report of `explain`, with its renderings."""

from dataclasses import dataclass
from typing import Any

from foldmark.ledger.findings import Findings
from foldmark.report.explain_json import to_json
from foldmark.report.explain_text import render, verdict

__all__ = ["Explanation"]


@dataclass(frozen=True, repr=False)
class Explanation(Findings):
    """Where the accuracy went; `print` it for the text that the command prints."""

    @property
    def verdict(self) -> str:
        """The finding in one sentence."""
        return verdict(self)

    def __str__(self) -> str:
        """Return the whole report in 80 columns."""
        return render(self)

    def __repr__(self) -> str:
        """Return the verdict and the size of the account."""
        return f"<Explanation of {len(self.entries)} sites: {self.verdict}>"

    def to_json(self) -> dict[str, Any]:
        """Return the report in the schema "foldmark.explain/1"."""
        return to_json(self)
