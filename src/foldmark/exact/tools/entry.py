"""What the catalogue holds: rules, operators that are given their scale, and procedures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foldmark.exact.group import QuantizedGroup
from foldmark.exact.number import FloatFormat, IntegerFormat
from foldmark.exact.rule import AffineRule, Rule

__all__ = ["Entry", "Operator", "Procedure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A tool's step from values to codes that is given scale and zero point, not the data's range.

    It is called as `quantize(values, scale, zero_point, operator.affine, data)`.
    """

    name: str
    affine: AffineRule
    source: str
    versions: str

    @property
    def codes(self) -> IntegerFormat:
        """The codes that the operator gives."""
        return self.affine.codes


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """A tool's way to quantize a group that no formula of fields states: a search, an iteration.

    quantize     (values, data) -> QuantizedGroup, as `quantize_group` without the rule
    description  what is searched for, in one sentence
    """

    name: str
    codes: IntegerFormat
    quantize: Callable[[Sequence[float], FloatFormat], QuantizedGroup]
    description: str
    source: str
    versions: str


Entry = Rule | Operator | Procedure
