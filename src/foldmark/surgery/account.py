"""What was quantized, what was left and why: the report of a quantization."""

from collections import Counter
from dataclasses import dataclass, field

import onnx

__all__ = ["Account", "Done", "Left", "Quantized"]


@dataclass(frozen=True)
class Done:
    """An operator that was quantized, and how ("int8 per channel, uint8 activations")."""

    node: str
    operator: str
    how: str
    weights: int = 0


@dataclass(frozen=True)
class Left:
    """An operator that could have been quantized and was not, with the reason."""

    node: str
    operator: str
    reason: str


@dataclass
class Account:
    """The report of a quantization.

    Attributes:
        done: operators that were quantized.
        left: operators that were not, with the reason.
        notes: sentences about single tensors that a person should know.
        methods: what was applied beyond rounding to nearest, and where.
    """

    done: list[Done] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)

    def note(self, sentence: str) -> None:
        """Keep a sentence, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def say(self, method: str, line: str) -> None:
        """Put a method's line in the place of the one it had."""
        for index, old in enumerate(self.methods):
            if old.startswith(f"{method}:"):
                self.methods[index] = line
                return
        self.methods.append(line)

    def grouped_notes(self) -> list[str]:
        """Return the notes; those that say one thing of several operators as one sentence."""
        said: dict[str, list[str]] = {}
        for note in self.notes:
            name, colon, tail = note.partition(": ")
            said.setdefault(tail if colon else note, []).append(name if colon else "")
        sentences = []
        for tail, names in said.items():
            if len(names) > 1:
                sentences.append(f"{len(names)} operators: {tail} ({names[0]}, {names[1]}, ...)")
            else:
                sentences.append(f"{names[0]}: {tail}" if names[0] else tail)
        return sentences

    def reasons(self) -> list[tuple[str, str, int]]:
        """Return (operator, reason, count) of what was left, most frequent first."""
        counted = Counter((each.operator, each.reason) for each in self.left)
        return [(operator, reason, n) for (operator, reason), n in counted.most_common()]

    def ways(self) -> list[tuple[str, str, int]]:
        """Return (operator, how, count) of what was quantized, most frequent first."""
        counted = Counter((each.operator, each.how) for each in self.done)
        return [(operator, how, n) for (operator, how), n in counted.most_common()]


@dataclass(frozen=True)
class Quantized:
    """A quantized model and the report of how it was made."""

    model: onnx.ModelProto
    account: Account
