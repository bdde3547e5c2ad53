"""Every error that foldmark raises on purpose, in one tree.

    FoldmarkError                 FM000
    ├── BadInput                  FM100  what the caller gave can't be used   (exit code 2)
    │   ├── FileUnreadable        FM101  missing, a directory, no permission, empty
    │   ├── FormatNotRecognised   FM102  no reader knows these bytes
    │   ├── TruncatedFile         FM103  shorter than its own header says
    │   ├── HostileFile           FM104  counts, offsets or paths that no honest file has
    │   ├── DataMismatch          FM110  an array of the wrong name, rank, shape or dtype
    │   ├── NonFiniteValue        FM111  NaN or infinity where a number is needed
    │   ├── NoData                FM112  no samples, or none named
    │   ├── ModelsDiffer          FM120  two models that are not one network
    │   ├── NothingQuantized      FM121  no quantization site in the file
    │   ├── OutputNotComparable   FM122  an output that no metric can compare
    │   ├── InvalidScheme         FM130  a rule, scheme or shape that contradicts itself
    │   ├── InvalidRecipe         FM131  a recipe that can't be followed
    │   └── OutputExists          FM140  a file that would be overwritten
    ├── NotSupported              FM200  foldmark can't, and says so          (exit code 2)
    │   ├── OperatorNotSupported  FM201  an operator no reader or rule covers
    │   ├── NoDerivative          FM202  an operator without a derivative on the path
    │   └── NotEnoughMemory       FM203  work that can't fit into the memory that is free
    ├── MissingExtra              FM300  an optional package is not installed (exit code 2)
    └── CheckFailed               FM400  a demand of the user's is not met    (exit code 1)

Each message is one line: what, where, what was got, what was expected, what to do next.
"""

from typing import ClassVar

__all__ = [
    "BadInput",
    "CheckFailed",
    "DataMismatch",
    "FileUnreadable",
    "FoldmarkError",
    "FormatNotRecognised",
    "HostileFile",
    "InvalidRecipe",
    "InvalidScheme",
    "MissingExtra",
    "ModelsDiffer",
    "NoData",
    "NoDerivative",
    "NonFiniteValue",
    "NotEnoughMemory",
    "NotSupported",
    "NothingQuantized",
    "OperatorNotSupported",
    "OutputExists",
    "OutputNotComparable",
    "TruncatedFile",
]


class FoldmarkError(Exception):
    """Base of the tree: one line that says what, where, got, expected and what to do.

    Args:
        what: the fault in a few words ("weight is not finite").
        where: file, tensor or argument that is at fault.
        got: what was found there.
        expected: what was needed instead.
        todo: the next step for the reader.
    """

    code: ClassVar[str] = "FM000"
    exit_code: ClassVar[int] = 2

    def __init__(
        self, what: str, *, where: str = "", got: str = "", expected: str = "", todo: str = ""
    ) -> None:
        self.what = what
        self.where = where
        self.got = got
        self.expected = expected
        self.todo = todo
        super().__init__(self.sentence())

    def sentence(self) -> str:
        """Return the message as one printable line; control characters are shown escaped."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.got:
            text += f"; got {self.got}"
        if self.expected:
            text += f"; expected {self.expected}"
        if self.todo:
            text += f". {self.todo[0].upper()}{self.todo[1:]}"
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class BadInput(FoldmarkError):
    """What the caller gave can't be used."""

    code = "FM100"


class FileUnreadable(BadInput):
    """A path that is missing, a directory, empty or not permitted."""

    code = "FM101"


class FormatNotRecognised(BadInput):
    """Bytes that no reader knows."""

    code = "FM102"


class TruncatedFile(BadInput):
    """A file shorter than its own header says."""

    code = "FM103"


class HostileFile(BadInput):
    """Counts, offsets or paths that no honest file has."""

    code = "FM104"


class DataMismatch(BadInput):
    """An array of the wrong name, rank, shape or dtype."""

    code = "FM110"


class NonFiniteValue(BadInput):
    """NaN or infinity where a number is needed."""

    code = "FM111"


class NoData(BadInput):
    """No samples, or none under the needed name."""

    code = "FM112"


class ModelsDiffer(BadInput):
    """Two models that are not the same network."""

    code = "FM120"


class NothingQuantized(BadInput):
    """A file without a single quantization site."""

    code = "FM121"


class OutputNotComparable(BadInput):
    """An output that no metric can compare."""

    code = "FM122"


class InvalidScheme(BadInput):
    """A rule, scheme or block shape that contradicts itself or its tensor."""

    code = "FM130"


class InvalidRecipe(BadInput):
    """A recipe that can't be followed."""

    code = "FM131"


class OutputExists(BadInput):
    """A file that would be overwritten without leave."""

    code = "FM140"


class NotSupported(FoldmarkError):
    """Something foldmark can't do, said plainly."""

    code = "FM200"


class OperatorNotSupported(NotSupported):
    """An operator that no reader or rule covers."""

    code = "FM201"


class NoDerivative(NotSupported):
    """An operator without a derivative on the path to the metric."""

    code = "FM202"


class NotEnoughMemory(NotSupported):
    """Work that can't fit into the memory that is free."""

    code = "FM203"


class MissingExtra(FoldmarkError):
    """An optional package that is not installed."""

    code = "FM300"


class CheckFailed(FoldmarkError):
    """A demand given on the command line that is not met."""

    code = "FM400"
    exit_code = 1
