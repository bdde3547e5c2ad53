"""Number formats as values: integers, floats of any width, and code books.

A format is an instance of one of three frozen classes. It can decode every one of its codes and
encode any real number; all limits are derived from its fields.
"""

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import pairwise
from math import copysign, inf, isinf, isnan, nan

from foldmark.errors import InvalidScheme, NonFiniteValue
from foldmark.exact.rounding import Rounding, round_to_int

__all__ = ["Codebook", "FloatFormat", "IntegerFormat", "Overflow", "Specials"]


@dataclass(frozen=True, slots=True)
class IntegerFormat:
    """Whole numbers from `minimum` to `maximum`, stored in `bits` bits.

    A narrow format has the bits of a full one but leaves its lowest code unused:
    `IntegerFormat("int8 narrow", 8, -127, 127)`.

    Raises InvalidScheme when the range is empty or does not fit the bits.
    """

    name: str
    bits: int
    minimum: int
    maximum: int

    def __post_init__(self) -> None:  # noqa: D105
        lowest = -(1 << (self.bits - 1)) if self.minimum < 0 else 0
        if self.bits < 1 or not lowest <= self.minimum < self.maximum < lowest + (1 << self.bits):
            raise InvalidScheme(
                "an integer format's range does not fit its bits",
                where=self.name,
                got=f"{self.minimum}..{self.maximum} in {self.bits} bits",
            )

    @property
    def signed(self) -> bool:
        """Whether the codes are two's complement."""
        return self.minimum < 0

    @property
    def steps(self) -> int:
        """Steps from the lowest code to the highest: maximum - minimum."""
        return self.maximum - self.minimum

    def clip(self, code: int) -> int:
        """Return the code of the format that is nearest to `code`."""
        return min(max(code, self.minimum), self.maximum)

    def wrap(self, number: int) -> int:
        """Keep the low `bits` bits, as a machine register does on overflow."""
        low = number & ((1 << self.bits) - 1)
        return low - (1 << self.bits) if self.signed and low >> (self.bits - 1) else low


class Specials(Enum):
    """Which codes of a float format are not ordinary numbers."""

    IEEE = "the top exponent holds infinity (mantissa 0) and NaN (the rest)"
    ONE_NAN = "only the code of all ones, of either sign, is NaN; no infinity"
    FNUZ = "the code of negative zero is NaN; no infinity, no negative zero"
    NONE = "every code is a finite number"
    EXPONENT_ONLY = "no sign, no zero, no mantissa; the code of all ones is NaN"


class Overflow(Enum):
    """What becomes of a number beyond the largest of its format."""

    SPECIAL = "infinity; NaN where the format has no infinity; the largest where it has neither"
    SATURATE = "the largest number of the format, for infinity too"


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A binary float: value = (-1)^sign * 2^(max(e, 1) - bias) * (m + (e > 0) * 2^M) / 2^M.

    With M mantissa bits, e the exponent field and m the mantissa field; `Specials` says which
    codes are exceptions. A code is the bit pattern as an unsigned integer: sign, exponent,
    mantissa, from the highest bit down. `EXPONENT_ONLY` has neither sign nor mantissa:
    value = 2^(code - bias).
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Specials

    @property
    def bits(self) -> int:
        """Bits of one code, sign included."""
        return self.exponent_bits + self.mantissa_bits + (self.specials != Specials.EXPONENT_ONLY)

    @property
    def smallest(self) -> Fraction:
        """The smallest positive number: 2^(1 - bias - M), subnormal where there are such."""
        if self.specials == Specials.EXPONENT_ONLY:
            return _power_of_two(-self.bias)
        return _power_of_two(1 - self.bias - self.mantissa_bits)

    @property
    def smallest_normal(self) -> Fraction:
        """The smallest positive number with a full mantissa: 2^(1 - bias)."""
        if self.specials == Specials.EXPONENT_ONLY:
            return _power_of_two(-self.bias)
        return _power_of_two(1 - self.bias)

    @property
    def epsilon(self) -> Fraction:
        """The distance from 1 to the next number: 2^-M."""
        return _power_of_two(-self.mantissa_bits)

    @property
    def maximum(self) -> Fraction:
        """The largest finite number."""
        top, mantissa = (1 << self.exponent_bits) - 1, (1 << self.mantissa_bits) - 1
        match self.specials:
            case Specials.IEEE:
                top -= 1
            case Specials.ONE_NAN:
                mantissa -= 1
            case Specials.EXPONENT_ONLY:
                return _power_of_two(top - 1 - self.bias)
            case Specials.FNUZ | Specials.NONE:
                pass
        return self._finite(top, mantissa)

    def decode(self, code: int) -> float:
        """Return the number, infinity or NaN that `code` stands for.

        Raises InvalidScheme when the code has more bits than the format.
        """
        if not 0 <= code < 1 << self.bits:
            raise InvalidScheme("no such code", where=self.name, got=str(code))
        if self.specials == Specials.EXPONENT_ONLY:
            return nan if code == (1 << self.bits) - 1 else float(_power_of_two(code - self.bias))
        sign = -1.0 if code >> (self.bits - 1) else 1.0
        exponent = (code >> self.mantissa_bits) & ((1 << self.exponent_bits) - 1)
        mantissa = code & ((1 << self.mantissa_bits) - 1)
        special = self._special(sign, exponent, mantissa)
        return special if special is not None else sign * float(self._finite(exponent, mantissa))

    def encode(
        self,
        value: float | Fraction,
        rounding: Rounding = Rounding.HALF_EVEN,
        overflow: Overflow = Overflow.SPECIAL,
    ) -> int:
        """Return the code of the number of this format that stands for `value`.

        The format's numbers are taken to go on above its largest one; what rounds beyond it
        overflows. Zero keeps its sign where the format has two zeros. Raises NonFiniteValue for
        NaN where the format has none, InvalidScheme for a negative number where there is no sign.
        """
        if isinstance(value, float):
            if isnan(value):
                return self._nan_code()
            if isinf(value):
                return self._overflowed(value < 0, overflow)
        return self._encode_finite(Fraction(value), _is_negative(value), rounding, overflow)

    def round(
        self,
        value: float | Fraction,
        rounding: Rounding = Rounding.HALF_EVEN,
        overflow: Overflow = Overflow.SPECIAL,
    ) -> float:
        """Return the number of this format that stands for `value`: decode(encode(value))."""
        return self.decode(self.encode(value, rounding, overflow))

    def holds(self, value: float) -> bool:
        """Say whether `value` is exactly one of this format's numbers."""
        rounded = self.round(value)
        return rounded == value or (isnan(rounded) and isnan(value))

    def _encode_finite(
        self, exact: Fraction, negative: bool, rounding: Rounding, overflow: Overflow
    ) -> int:
        if self.specials == Specials.EXPONENT_ONLY:
            return self._encode_power(exact, rounding, overflow)
        if exact == 0:
            return self._with_sign(0, negative)
        exponent = max(_exponent_of(abs(exact)), 1 - self.bias)
        quantum = _power_of_two(exponent - self.mantissa_bits)
        count = abs(round_to_int(exact / quantum, rounding))
        if count * quantum > self.maximum:
            return self._overflowed(negative, overflow)
        # Counting quanta from the exponent's first number walks through the codes in order, also
        # when the count is carried into the next exponent or stays below the normal numbers.
        field = (exponent + self.bias - 1) << self.mantissa_bits
        return self._with_sign(field + count, negative)

    def _encode_power(self, exact: Fraction, rounding: Rounding, overflow: Overflow) -> int:
        if exact < 0:
            raise InvalidScheme("no negative numbers", where=self.name, got=str(float(exact)))
        if exact <= self.smallest:
            return 0
        exponent = _exponent_of(exact)
        code = exponent + self.bias + round_to_int(exact / _power_of_two(exponent), rounding) - 1
        if code >= (1 << self.bits) - 1:
            return self._overflowed(False, overflow)
        return code

    def _overflowed(self, negative: bool, overflow: Overflow) -> int:
        if overflow == Overflow.SPECIAL:
            if self.specials == Specials.IEEE:
                top = ((1 << self.exponent_bits) - 1) << self.mantissa_bits
                return self._with_sign(top, negative)
            if self.specials == Specials.ONE_NAN:
                return self._with_sign(self._nan_code(), negative)
            if self.specials in (Specials.FNUZ, Specials.EXPONENT_ONLY):
                return self._nan_code()
        match self.specials:
            case Specials.IEEE:
                largest = (((1 << self.exponent_bits) - 1) << self.mantissa_bits) - 1
            case Specials.ONE_NAN | Specials.EXPONENT_ONLY:
                largest = (1 << (self.exponent_bits + self.mantissa_bits)) - 2
            case Specials.FNUZ | Specials.NONE:
                largest = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        return self._with_sign(largest, negative)

    def _nan_code(self) -> int:
        ones = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        match self.specials:
            case Specials.IEEE:
                return ones ^ (((1 << self.mantissa_bits) - 1) >> 1)
            case Specials.ONE_NAN | Specials.EXPONENT_ONLY:
                return ones
            case Specials.FNUZ:
                return ones + 1
            case Specials.NONE:
                raise NonFiniteValue("the format has no NaN", where=self.name)

    def _with_sign(self, magnitude: int, negative: bool) -> int:
        if not negative or self.specials == Specials.EXPONENT_ONLY:
            return magnitude
        if magnitude == 0 and self.specials == Specials.FNUZ:
            return 0
        return magnitude | 1 << (self.bits - 1)

    def _special(self, sign: float, exponent: int, mantissa: int) -> float | None:
        top = exponent == (1 << self.exponent_bits) - 1
        match self.specials:
            case Specials.IEEE:
                return None if not top else sign * inf if mantissa == 0 else nan
            case Specials.ONE_NAN:
                return nan if top and mantissa == (1 << self.mantissa_bits) - 1 else None
            case Specials.FNUZ:
                return nan if sign < 0 and exponent == 0 and mantissa == 0 else None
            case Specials.NONE | Specials.EXPONENT_ONLY:
                return None

    def _finite(self, exponent: int, mantissa: int) -> Fraction:
        hidden = (1 << self.mantissa_bits) if exponent else 0
        return (hidden + mantissa) * _power_of_two(
            max(exponent, 1) - self.bias - self.mantissa_bits
        )


@dataclass(frozen=True, slots=True)
class Codebook:
    """A list of float32 numbers; the code of a number is its place in the list.

    The border between neighbours, when sorted, is their mean in float32; a value on a border goes
    to the smaller number. Where a number stands twice, the first place counts as the smaller one.
    """

    name: str
    bits: int
    numbers: tuple[float, ...]

    @property
    def ascending(self) -> tuple[int, ...]:
        """The codes in the order of their numbers."""
        return tuple(sorted(range(len(self.numbers)), key=lambda code: self.numbers[code]))

    @property
    def borders(self) -> tuple[float, ...]:
        """The float32 means of neighbours, ascending; one less than there are numbers."""
        ordered = [self.numbers[code] for code in self.ascending]
        return tuple(
            _SINGLE.round(_SINGLE.round(low + high) / 2) for low, high in pairwise(ordered)
        )

    def decode(self, code: int) -> float:
        """Return the number at place `code`. Raises InvalidScheme when there is none."""
        if not 0 <= code < len(self.numbers):
            raise InvalidScheme("no such code", where=self.name, got=str(code))
        return self.numbers[code]

    def encode(self, value: float) -> int:
        """Return the code of the number nearest to `value`. Raises NonFiniteValue for NaN."""
        if isnan(value):
            raise NonFiniteValue("no code stands for NaN", where=self.name)
        return self.ascending[sum(value > border for border in self.borders)]


def _is_negative(value: float | Fraction) -> bool:
    return copysign(1.0, value) < 0 if isinstance(value, float) else value < 0


def _power_of_two(exponent: int) -> Fraction:
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def _exponent_of(positive: Fraction) -> int:
    """Return floor(log2(positive)), exactly."""
    guess = positive.numerator.bit_length() - positive.denominator.bit_length()
    return guess if positive >= _power_of_two(guess) else guess - 1


_SINGLE = FloatFormat("float32", 8, 23, 127, Specials.IEEE)
