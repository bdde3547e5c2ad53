"""A quantized tensor: codes with everything that is needed to read them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import DataMismatch
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.number import FloatFormat, IntegerFormat
from foldmark.exact.rule import Rule
from foldmark.kernels import rulers
from foldmark.kernels.affine import dequantize
from foldmark.kernels.floats import dtype_of
from foldmark.tensors.arrays import as_array
from foldmark.tensors.scheme import Scheme

__all__ = ["ErrorAgainst", "QuantizedTensor"]


@dataclass(frozen=True, slots=True)
class ErrorAgainst:
    """What a quantized tensor lost against the numbers that it stands for.

    largest, mean    of |x - y|, in the unit of the numbers
    mean_squared     of (x - y)^2, in its square
    relative         sqrt(sum (x - y)^2 / sum x^2)
    signal_to_noise  -20 log10 of that, in decibel
    """

    largest: float
    mean: float
    mean_squared: float
    relative: float
    signal_to_noise: float


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedTensor:
    """An array of codes, the scale and zero point of each block, and the scheme that they follow.

    codes       any shape         integers, one code an element, whatever its bits
    scale       the grid's shape  float; what one step of a code is worth
    zero_point  the grid's shape  integers in the unit of codes; floats where the rule says so
    scheme      the rule and the shape of blocks
    data        the dtype of the numbers that were quantized

    Invariants, checked when the tensor is made (DataMismatch names both shapes):
    - scale and zero point have the shape of the scheme's grid over the codes;
    - codes are integers of the scheme's number format;
    - zero points are integers, unless the rule's are real.

    Immutable: the arrays are seen read-only from then on. They are not copied.
    """

    codes: NDArray[np.integer[Any]]
    scale: NDArray[np.floating[Any]]
    zero_point: NDArray[Any]
    scheme: Scheme
    data: FloatFormat = FLOAT32

    def __post_init__(self) -> None:
        """Check the invariants. Raises DataMismatch naming the part at fault."""
        for name in ("codes", "scale", "zero_point"):
            seen = np.asarray(getattr(self, name)).view()
            seen.flags.writeable = False
            object.__setattr__(self, name, seen)
        grid = self.scheme.block.grid(self.codes.shape)
        _require_grid("scale", self.scale, grid, self)
        _require_grid("zero_point", self.zero_point, grid, self)
        _require_codes(self.codes, self.scheme.codes)
        real = self.scheme.rule.affine.zero_is_real
        if not real and self.zero_point.dtype.kind not in "iu":
            raise DataMismatch(
                "zero points are codes under this rule",
                where="zero_point",
                got=f"dtype {self.zero_point.dtype}",
                expected="integers",
            )

    @property
    def rule(self) -> Rule:
        """The rule of the scheme."""
        return self.scheme.rule

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self.codes.shape

    @property
    def block(self) -> tuple[int, ...]:
        """The extent of a block along every axis."""
        return self.scheme.block.of(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of codes packed to their bits, scales and stored zero points.

        Scales take their dtype's bytes; zero points take the bits of a code each, packed, or
        their dtype's bytes where they are real; those that the rule fixes take none.
        """
        bits = self.scheme.codes.bits
        total = -(-self.codes.size * bits // 8) + self.scale.nbytes
        if not self.scheme.stores_zero_point:
            return total
        if self.scheme.rule.affine.zero_is_real:
            return total + self.zero_point.nbytes
        return total + -(-self.zero_point.size * bits // 8)

    @property
    def bits_per_weight(self) -> float:
        """Bits stored for each number, scales and zero points included; 0 for an empty tensor."""
        return 8 * self.nbytes / self.codes.size if self.codes.size else 0.0

    def dequantize(self) -> NDArray[np.floating[Any]]:
        """Return the numbers that the codes stand for, in the dtype that was quantized."""
        if self.codes.size == 0:
            return np.empty(self.shape, dtype_of(self.data))
        return dequantize(
            self.codes, self.scale, self.zero_point, self.rule.affine, self.data, self.block
        )

    def error_against(self, w: Any) -> ErrorAgainst:
        """Return what was lost against the numbers `w`, an array of the tensor's shape.

        Raises DataMismatch when the shapes differ.
        """
        original, restored = as_array(w), self.dequantize()
        return ErrorAgainst(
            largest=rulers.largest_error(original, restored),
            mean=rulers.mean_absolute_error(original, restored),
            mean_squared=rulers.mean_squared_error(original, restored),
            relative=rulers.relative_error(original, restored),
            signal_to_noise=rulers.signal_to_noise(original, restored),
        )

    def __str__(self) -> str:
        """Say what the tensor is in one line."""
        shape = " x ".join(str(size) for size in self.shape) or "a scalar"
        return f"{shape}, {self.scheme}, {self.bits_per_weight:.2f} bits per weight"

    def __repr__(self) -> str:
        """Name the tensor without printing its numbers."""
        dtype = dtype_of(self.data)
        return f"QuantizedTensor({self.scheme.codes.name}, shape={self.shape}, data={dtype})"


def _require_grid(
    name: str, array: NDArray[Any], grid: tuple[int, ...], tensor: QuantizedTensor
) -> None:
    if array.shape != grid:
        raise DataMismatch(
            f"every block needs one {name.replace('_', ' ')}",
            where=name,
            got=f"shape {array.shape} beside codes of shape {tensor.codes.shape}",
            expected=f"shape {grid}, {tensor.scheme.block}",
        )


def _require_codes(codes: NDArray[Any], number_format: IntegerFormat) -> None:
    if codes.dtype.kind not in "iu":
        raise DataMismatch(
            "codes are integers", where="codes", got=f"dtype {codes.dtype}", expected="integers"
        )
    limits = np.iinfo(codes.dtype)
    if codes.size == 0 or (
        number_format.minimum <= limits.min and limits.max <= number_format.maximum
    ):
        return
    low, high = int(codes.min()), int(codes.max())
    if low < number_format.minimum or high > number_format.maximum:
        raise DataMismatch(
            "a code outside its number format",
            where="codes",
            got=f"codes from {low} to {high}",
            expected=f"{number_format.minimum} to {number_format.maximum} ({number_format.name})",
        )
