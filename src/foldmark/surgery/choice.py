"""Which operators are to be quantized: by type, by name, by pattern."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx

from foldmark.surgery.editor import node_name

__all__ = ["Choice", "Selection"]


@dataclass(frozen=True)
class Choice:
    """What to quantize.

    Attributes:
        operators: operator types.
        include: patterns, one of which the node's name must hold; all nodes when empty.
        exclude: patterns, none of which it may hold.
    """

    operators: tuple[str, ...]
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass
class Selection:
    """A choice at work, counting what each pattern matched."""

    choice: Choice
    matched: Counter[str] = field(default_factory=Counter)

    def reason_against(self, node: onnx.NodeProto) -> str:
        """Return why a node is not chosen, "" when it is."""
        name = node_name(node)
        included = self._matches(self.choice.include, name)
        excluded = self._matches(self.choice.exclude, name)
        if node.op_type not in self.choice.operators:
            return f"{node.op_type} was not asked for"
        if excluded:
            return f"excluded by {excluded!r}"
        if self.choice.include and not included:
            return "not among the names asked for"
        return ""

    def unused(self) -> list[str]:
        """Return the patterns that matched no node."""
        return [p for p in (*self.choice.include, *self.choice.exclude) if not self.matched[p]]

    def _matches(self, patterns: Sequence[str], name: str) -> str:
        found = ""
        for pattern in patterns:
            if re.search(pattern, name):
                self.matched[pattern] += 1
                found = found or pattern
        return found
