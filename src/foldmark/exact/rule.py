"""The vocabulary of a quantization rule: every choice that can move a code, as a frozen value.

A rule has three parts, applied in this order to one group of numbers (a tensor, a row, a block):

    ScaleRule      values           -> extent -> scale
    ZeroPointRule  extent, scale    -> zero point (a code, or a real number)
    AffineRule     value            -> code, and back

Nothing is decided by a flag or hidden in an expression: two tools that differ by one code differ
in a field.
"""

from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction

from foldmark.errors import InvalidScheme
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.number import FloatFormat, IntegerFormat
from foldmark.exact.rounding import Rounding

__all__ = [
    "AffineRule",
    "Clip",
    "DataConstant",
    "DataType",
    "Extent",
    "ExtremeTie",
    "Infinity",
    "NotANumber",
    "Precision",
    "Rule",
    "ScaleRule",
    "ScaleUse",
    "Scaling",
    "TinyAction",
    "TinyRange",
    "TinyTest",
    "ZeroDivisor",
    "ZeroForm",
    "ZeroInRange",
    "ZeroOrder",
    "ZeroPointRule",
    "constant_of",
    "definite",
]


class DataType(Enum):
    """A precision that is not fixed by the rule."""

    DATA = "the dtype of the numbers that are quantized"


Precision = FloatFormat | DataType
"""Where a step is computed or stored: a fixed float format, or that of the data."""


class DataConstant(Enum):
    """A threshold that follows the dtype of the data."""

    EPSILON = "the distance from 1 to the next number"
    SMALLEST_NORMAL = "the smallest positive number with a full mantissa"


class Extent(Enum):
    """What is measured on the group to set the scale: low and high are its ends."""

    SPAN = "high - low"
    MAGNITUDE = "max(|low|, |high|)"
    SIGNED_MAGNITUDE = (
        "|low| if the low end is farther from zero, else -high: the end gets code -2^b"
    )
    LARGER_SIDE = "max(low / -denominator_below, high / denominator)"
    MIRRORED_SPAN = "high' - low' with high' = max(|low|, high), and low' = -high' if low < 0"


class ZeroInRange(Enum):
    """Whether real zero is made part of the range."""

    FORCED = "low = min(low, 0), high = max(high, 0)"
    FREE = "the ends of the data, wherever they lie"


class ExtremeTie(Enum):
    """Which end counts when Extent.SIGNED_MAGNITUDE finds both equally far from zero."""

    LOW = "the low one: the scale is positive"
    HIGH = "the high one: the scale is negative"
    FIRST = "the one that comes first in the data"


class TinyTest(Enum):
    """Which quantity is compared with the threshold of a TinyRange."""

    EXTENT = "the extent, before it is divided; its absolute value"
    SCALE = "the scale, before it is stored; its absolute value"


class TinyAction(Enum):
    """What is replaced when a TinyRange applies."""

    EXTENT = "the extent becomes `value`"
    ENDS = "the ends become -value and value"
    SCALE = "the scale becomes `value`"
    STRETCH = "the scale becomes `value`, and the ends grow in proportion, in float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyRange:
    """How a range of zero, or nearly so, is treated: if the tested quantity < `below`, replace.

    `below` and `value` are numbers (float64) or follow the data's dtype; they are rounded to the
    precision of the scale rule. The smallest positive float64 as `below` means "exactly zero".
    `zero_point`, if given, is the zero point that then holds, whatever its own rule says.
    """

    test: TinyTest
    below: float | DataConstant
    action: TinyAction
    value: float | DataConstant
    zero_point: int | None = None

    def for_data(self, data: FloatFormat) -> "TinyRange":
        """Return the treatment with its numbers made definite for data of dtype `data`."""
        return replace(
            self, below=constant_of(self.below, data), value=constant_of(self.value, data)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRule:
    """From the ends of a group to its scale: scale = extent / denominator.

    extent             what is measured
    zero_in_range      whether the ends are first moved to include zero
    tie                which end counts when both are equally far (SIGNED_MAGNITUDE only)
    denominator        steps that the extent is divided into: 255, 127, 127.5, 8, ...
    denominator_below  steps on the low side (LARGER_SIDE only)
    precision          of the division
    extent_precision   of the extent; that of the division unless given
    stored             dtype that the scale is written in
    tiny               treatments of a zero or tiny range, tried in this order
    """

    extent: Extent
    denominator: Fraction
    denominator_below: Fraction = Fraction(0)
    zero_in_range: ZeroInRange = ZeroInRange.FORCED
    tie: ExtremeTie = ExtremeTie.LOW
    precision: Precision = FLOAT32
    extent_precision: Precision | None = None
    stored: Precision = DataType.DATA
    tiny: tuple[TinyRange, ...] = ()


class ScaleUse(Enum):
    """Which of the two scales a later step works with."""

    STORED = "as rounded to the dtype it is stored in"
    UNROUNDED = "as computed"


class ZeroForm(Enum):
    """How the zero point follows from the ends and the scale."""

    FIXED = "the constant `fixed`, whatever the data"
    ROUND_DIFFERENCE = "round(lowest - low / scale)"
    ROUND_QUOTIENT = "lowest - round(low / scale)"
    SMALLER_ERROR = (
        "round(lowest - low/scale) or round(highest - high/scale): the smaller terms win"
    )
    FROM_ENDS = "round((lowest * high - highest * low) / (high - low)), without the scale"
    LOW = "a real number: low, subtracted before scaling"
    MIDDLE = "a real number: low + fixed * scale, what code `fixed` stands for"


class Clip(Enum):
    """Whether a number is held inside the range of its codes."""

    SATURATE = "the nearest code of the range"
    NONE = "left as it is"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroPointRule:
    """From the ends and the scale to the zero point.

    form             the formula
    fixed            the constant of ZeroForm.FIXED, the middle code of ZeroForm.MIDDLE
    lowest, highest  the codes that low and high are meant to get
    scale            which scale the formula divides by
    precision        of the division and the difference
    rounding         to an integer
    clip             whether the result is held in lowest..highest
    stored           dtype of a real zero point
    """

    form: ZeroForm = ZeroForm.FIXED
    fixed: int = 0
    lowest: int = 0
    highest: int = 0
    scale: ScaleUse = ScaleUse.STORED
    precision: Precision = FLOAT32
    rounding: Rounding = Rounding.HALF_EVEN
    clip: Clip = Clip.SATURATE
    stored: Precision = DataType.DATA


class Scaling(Enum):
    """How a value is brought to the scale of codes; fl() is one rounding to the precision."""

    DIVIDE = "fl(x / scale)"
    RECIPROCAL = "fl(x * fl(1 / scale))"
    RATIO = "fl(x * fl(ratio / extent))"
    RATIO_OF_RECIPROCAL = "fl(x * fl(fl(1 / extent) * ratio))"


class ZeroOrder(Enum):
    """When the zero point z joins, relative to the rounding; v is the scaled value."""

    AFTER_ROUNDING = "round(v) + z"
    BEFORE_ROUNDING = "round(fl(v + z))"
    FUSED = "round(fl(x * r + z)), product and sum rounded to the precision once"
    WITH_HALF = "round(fl(v + (z + 1/2))), meant for rounding toward zero"
    SUBTRACTED = "v scales fl(x - z'), z' a real number; round(v)"
    SUBTRACTED_WITH_HALF = "v scales fl(x - z'), z' a real number; round(fl(v + 1/2))"


class ZeroDivisor(Enum):
    """What comes of dividing by a scale or extent of zero."""

    INFINITE = "infinity, and NaN for zero over zero, as IEEE 754 says"
    ZERO = "zero: every code is then that of real zero"


class NotANumber(Enum):
    """What NaN becomes, given or arisen on the way."""

    RAISE = "an error that names the first index"
    LOWEST = "the lowest code"
    HIGHEST = "the highest code"
    ZERO = "the code 0, or the nearest one of the range"


class Infinity(Enum):
    """What a value beyond every code becomes, infinite ones first of all."""

    RAISE = "an error that names the first index, for infinity; saturation for finite values"
    SATURATE = "the highest or the lowest code"
    CAST_TO_INT32 = (
        "what a cast to int32 gives on x86: -2^31 for both signs, from 2^31 on; "
        "with NotANumber.LOWEST for NaN too, before the zero point is added"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineRule:
    """From a value to its code, given scale and zero point; and back.

    codes            the codes there are; what rounds beyond them is clipped
    scaling          division, or multiplication by a reciprocal of one kind or another
    ratio            numerator of the RATIO scalings: the code that the extent is meant to get
    scale            which scale (and which real zero point) the codes are computed with
    order            when the zero point joins
    middle           the code that a real zero point stands for: z' = z - middle * scale
    rounding         to an integer
    precision        of every operation, each rounded separately
    clip             whether codes are held in range
    codes_per_scale  how many steps one stored scale spans; 1 but where the extent itself is stored
    zero_divisor     what comes of a zero scale
    nan, infinity    what becomes of them

    A code means (code - z) * scale / codes_per_scale, or, with a real zero point,
    (code - middle) * scale + z.
    """

    codes: IntegerFormat
    scaling: Scaling = Scaling.DIVIDE
    ratio: Fraction = Fraction(1)
    scale: ScaleUse = ScaleUse.STORED
    order: ZeroOrder = ZeroOrder.AFTER_ROUNDING
    middle: int = 0
    rounding: Rounding = Rounding.HALF_EVEN
    precision: Precision = FLOAT32
    clip: Clip = Clip.SATURATE
    codes_per_scale: Fraction = Fraction(1)
    zero_divisor: ZeroDivisor = ZeroDivisor.INFINITE
    nan: NotANumber = NotANumber.RAISE
    infinity: Infinity = Infinity.RAISE

    @property
    def casts_nan(self) -> bool:
        """Whether NaN becomes the lowest int32, which a negative zero point wraps around."""
        return self.infinity == Infinity.CAST_TO_INT32 and self.nan == NotANumber.LOWEST

    @property
    def zero_is_real(self) -> bool:
        """Whether the zero point is a real number in the unit of the values, not a code."""
        return self.order in (ZeroOrder.SUBTRACTED, ZeroOrder.SUBTRACTED_WITH_HALF)

    def for_data(self, data: FloatFormat) -> "AffineRule":
        """Return the rule with its precision made definite for data of dtype `data`."""
        return replace(self, precision=definite(self.precision, data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What one tool does to one group of numbers, with where that was read and for which versions.

    Raises InvalidScheme when its parts contradict each other.
    """

    name: str
    scale: ScaleRule
    zero_point: ZeroPointRule
    affine: AffineRule
    source: str
    versions: str

    def __post_init__(self) -> None:  # noqa: D105
        if self.affine.order == ZeroOrder.FUSED and self.affine.scaling == Scaling.DIVIDE:
            raise InvalidScheme(
                "a fused product needs a multiplier, not a divisor", where=self.name
            )
        if self.scale.denominator <= 0:
            raise InvalidScheme("the denominator must be positive", where=self.name)
        real = self.zero_point.form in (ZeroForm.LOW, ZeroForm.MIDDLE)
        if real != self.affine.zero_is_real:
            raise InvalidScheme(
                "a real zero point is subtracted before scaling, a code is added after",
                where=self.name,
                got=f"{self.zero_point.form.name} with {self.affine.order.name}",
            )

    @property
    def codes(self) -> IntegerFormat:
        """The codes that the rule gives."""
        return self.affine.codes

    def for_data(self, data: FloatFormat) -> "Rule":
        """Return the rule with every field that follows the data's dtype made definite."""
        return replace(
            self,
            scale=replace(
                self.scale,
                precision=definite(self.scale.precision, data),
                extent_precision=definite(
                    self.scale.extent_precision or self.scale.precision, data
                ),
                stored=definite(self.scale.stored, data),
                tiny=tuple(tiny.for_data(data) for tiny in self.scale.tiny),
            ),
            zero_point=replace(
                self.zero_point,
                precision=definite(self.zero_point.precision, data),
                stored=definite(self.zero_point.stored, data),
            ),
            affine=self.affine.for_data(data),
        )


def definite(precision: Precision, data: FloatFormat) -> FloatFormat:
    """Return the float format that `precision` means for data of dtype `data`."""
    return precision if isinstance(precision, FloatFormat) else data


def constant_of(number: float | DataConstant, data: FloatFormat) -> float:
    """Return the number that a constant means for data of dtype `data`."""
    match number:
        case DataConstant.EPSILON:
            return float(data.epsilon)
        case DataConstant.SMALLEST_NORMAL:
            return float(data.smallest_normal)
        case _:
            return number
