"""ggml's Q4_K and Q6_K: super blocks of 256 values, found by a weighted least-squares search.

The arithmetic is float32 without fused multiply-add, every sum in order; rounding to an integer
is half to even (ggml adds 12582912 and reads the mantissa).

    Q4_K, 144 bytes: d and dmin in float16; 12 bytes of scales and minima of 6 bits; 128 bytes of
    codes (GGML_Q4_K).        value = d * sc * q - dmin * m
        bytes 0..3   SSssssss   ssssss = scale j,     SS = top bits of scale j + 4
        bytes 4..7   MMmmmmmm   mmmmmm = minimum j,   MM = top bits of minimum j + 4
        bytes 8..11  mmmmssss   low four bits of minimum and scale j + 4

    Q6_K, 210 bytes: 128 bytes of low bits (GGML_Q6_K_LOW), 64 of high bits (GGML_Q6_K_HIGH), 16
    int8 scales, d in float16.   value = d * sc * (q - 32)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from struct import pack as pack_struct

from foldmark.errors import DataMismatch
from foldmark.exact.catalog import FLOAT16
from foldmark.exact.packing import GGML_Q4_K, GGML_Q6_K_HIGH, GGML_Q6_K_LOW, pack
from foldmark.exact.rounding import Rounding, round_to_int
from foldmark.exact.single import add, divide, multiply, single, square_root, subtract, total

__all__ = ["Q4KBlock", "Q6KBlock", "quantize_q4_k", "quantize_q6_k"]

_SUPER_BLOCK = 256
_NOTHING = single(1e-15)
_TENTH = single(0.1)


@dataclass(frozen=True, slots=True)
class Q4KBlock:
    """A super block of Q4_K: 256 codes, 8 scales and minima of 6 bits, two float16 factors."""

    codes: tuple[int, ...]
    scales: tuple[int, ...]
    minima: tuple[int, ...]
    d: float
    d_min: float

    def to_bytes(self) -> bytes:
        """Return the 144 bytes of the block as files hold them."""
        small = [0] * 12
        for j in range(4):
            small[j] = self.scales[j] | self.scales[j + 4] >> 4 << 6
            small[j + 4] = self.minima[j] | self.minima[j + 4] >> 4 << 6
            small[j + 8] = self.scales[j + 4] & 15 | (self.minima[j + 4] & 15) << 4
        factors = _half_bytes(self.d) + _half_bytes(self.d_min)
        return factors + bytes(small) + pack(self.codes, GGML_Q4_K)


@dataclass(frozen=True, slots=True)
class Q6KBlock:
    """A super block of Q6_K: 256 codes (32 stands for zero), 16 int8 scales, a float16 factor."""

    codes: tuple[int, ...]
    scales: tuple[int, ...]
    d: float

    def to_bytes(self) -> bytes:
        """Return the 210 bytes of the block as files hold them."""
        low = pack([code & 15 for code in self.codes], GGML_Q6_K_LOW)
        high = pack([code >> 4 for code in self.codes], GGML_Q6_K_HIGH)
        return low + high + pack_struct("16b", *self.scales) + _half_bytes(self.d)


def quantize_q4_k(values: Sequence[float]) -> Q4KBlock:
    """Return the Q4_K block of 256 float32 values. Raises DataMismatch for another number."""
    _demand_super_block(values)
    parts = [values[j : j + 32] for j in range(0, _SUPER_BLOCK, 32)]
    found = [_search_with_minimum(part) for part in parts]
    top_scale = max(0.0, *(scale for scale, _, _ in found))
    top_minimum = max(0.0, *(minimum for _, minimum, _ in found))
    scales = _six_bits([scale for scale, _, _ in found], top_scale)
    minima = _six_bits([minimum for _, minimum, _ in found], top_minimum)
    d, d_min = FLOAT16.round(divide(top_scale, 63.0)), FLOAT16.round(divide(top_minimum, 63.0))
    codes: list[int] = []
    for part, scale, minimum, (_, _, first) in zip(parts, scales, minima, found, strict=True):
        step, below = multiply(d, float(scale)), multiply(d_min, float(minimum))
        if step == 0:
            codes += first
        else:
            codes += [_held(divide(add(x, below), step), 0, 15) for x in part]
    return Q4KBlock(tuple(codes), tuple(scales), tuple(minima), d, d_min)


def quantize_q6_k(values: Sequence[float]) -> Q6KBlock:
    """Return the Q6_K block of 256 float32 values. Raises DataMismatch for another number."""
    _demand_super_block(values)
    parts = [values[j : j + 16] for j in range(0, _SUPER_BLOCK, 16)]
    found = [_search_signed(part) for part in parts]
    farthest = max((scale for scale, _ in found), key=abs)
    if abs(farthest) < _NOTHING:
        return Q6KBlock((0,) * _SUPER_BLOCK, (0,) * 16, 0.0)
    inverse = divide(-128.0, farthest)
    d = FLOAT16.round(divide(1.0, inverse))
    scales = [min(127, _nearest(multiply(inverse, scale))) for scale, _ in found]
    codes: list[int] = []
    for part, scale, (_, first) in zip(parts, scales, found, strict=True):
        step = multiply(d, float(scale))
        if step == 0:
            codes += first
        else:
            codes += [_held(divide(x, step), -32, 31) + 32 for x in part]
    return Q6KBlock(tuple(codes), tuple(scales), d)


def _search_with_minimum(x: Sequence[float]) -> tuple[float, float, list[int]]:
    """Return scale, minus the minimum, and first codes 0..15 of one sub-block of 32.

    Weights sqrt(mean x^2) + |x|; 22 candidates for the scale, for each the least-squares line.
    Each candidate starts from the minimum of the best line so far.
    """
    mean_square = divide(total(multiply(v, v) for v in x), float(len(x)))
    average = square_root(mean_square)
    weights = [add(average, abs(v)) for v in x]
    low, high = min(0.0, *x), max(x)
    if high == low:
        return 0.0, -low, [0] * len(x)
    sums = _Sums.of_values(weights, x)
    inverse, codes = _candidate(x, 15.0, low, high)
    best = _Line(divide(1.0, inverse), low, codes)
    best_error = best.error(weights, x)
    for step in range(21):
        factor = add(add(-1.0, multiply(_TENTH, float(step))), 15.0)
        _, codes = _candidate(x, factor, best.minimum, high)
        line = sums.fit(weights, x, codes)
        if line is not None and (error := line.error(weights, x)) < best_error:
            best, best_error = line, error
    return best.scale, -best.minimum, best.codes


def _candidate(
    x: Sequence[float], factor: float, low: float, high: float
) -> tuple[float, list[int]]:
    """Return an inverse scale, factor / (high - low), and the codes 0..15 that it gives."""
    inverse = divide(factor, subtract(high, low))
    return inverse, [_held(multiply(inverse, subtract(v, low)), 0, 15) for v in x]


@dataclass(frozen=True, slots=True)
class _Line:
    """value = scale * code + minimum, with the codes that it was fitted to."""

    scale: float
    minimum: float
    codes: list[int]

    def error(self, weights: Sequence[float], x: Sequence[float]) -> float:
        """Return the weighted sum of squared errors."""
        result = 0.0
        for w, v, code in zip(weights, x, self.codes, strict=True):
            off = subtract(add(multiply(self.scale, float(code)), self.minimum), v)
            result = add(result, multiply(w, multiply(off, off)))
        return result


@dataclass(frozen=True, slots=True)
class _Sums:
    """The sums of a weighted regression that do not depend on the codes."""

    weight: float
    weighted: float

    @classmethod
    def of_values(cls, weights: Sequence[float], x: Sequence[float]) -> "_Sums":
        """Return the sums of the weights and of the weighted values."""
        products = (multiply(w, v) for w, v in zip(weights, x, strict=True))
        return cls(total(weights), total(products))

    def fit(self, weights: Sequence[float], x: Sequence[float], codes: list[int]) -> _Line | None:
        """Return the best line for these codes, with a minimum of at most 0; None if degenerate."""
        sum_l = sum_l2 = sum_xl = 0.0
        for w, v, code in zip(weights, x, codes, strict=True):
            weighted = multiply(w, float(code))
            sum_l = add(sum_l, weighted)
            sum_l2 = add(sum_l2, multiply(weighted, float(code)))
            sum_xl = add(sum_xl, multiply(weighted, v))
        determinant = subtract(multiply(self.weight, sum_l2), multiply(sum_l, sum_l))
        if determinant <= 0:
            return None
        slope = subtract(multiply(self.weight, sum_xl), multiply(self.weighted, sum_l))
        start = subtract(multiply(sum_l2, self.weighted), multiply(sum_l, sum_xl))
        scale, minimum = divide(slope, determinant), divide(start, determinant)
        return (
            _Line(divide(sum_xl, sum_l2), 0.0, codes)
            if minimum > 0
            else _Line(scale, minimum, codes)
        )


def _search_signed(x: Sequence[float]) -> tuple[float, list[int]]:
    """Return scale and first codes (32 for zero) of one sub-block of 16.

    Weights x^2; candidates -(32 + 0.1 i) / extreme for i = 0, then -9..9; the one with the largest
    (sum w x l)^2 / (sum w l^2) is kept.
    """
    extreme = max(x, key=abs)
    if abs(extreme) < _NOTHING:
        return 0.0, [0] * len(x)
    codes, xl, l2 = _signed_sums(x, divide(-32.0, extreme))
    scale = divide(xl, l2) if l2 else 0.0
    best = multiply(scale, xl)
    for step in (*range(-9, 0), *range(1, 10)):
        inverse = divide(-add(32.0, multiply(_TENTH, float(step))), extreme)
        tried, xl, l2 = _signed_sums(x, inverse)
        if l2 > 0 and multiply(xl, xl) > multiply(best, l2):
            codes, scale = tried, divide(xl, l2)
            best = multiply(scale, xl)
    return scale, codes


def _signed_sums(x: Sequence[float], inverse: float) -> tuple[list[int], float, float]:
    levels = [_held(multiply(inverse, v), -32, 31) for v in x]
    sum_xl = sum_l2 = 0.0
    for v, level in zip(x, levels, strict=True):
        weight = multiply(v, v)
        sum_xl = add(sum_xl, multiply(multiply(weight, v), float(level)))
        sum_l2 = add(sum_l2, multiply(multiply(weight, float(level)), float(level)))
    return [level + 32 for level in levels], sum_xl, sum_l2


def _six_bits(numbers: Sequence[float], top: float) -> list[int]:
    inverse = divide(63.0, top) if top > 0 else 0.0
    return [min(63, _nearest(multiply(inverse, number)) & 0xFF) for number in numbers]


def _nearest(number: float) -> int:
    return round_to_int(Fraction(number), Rounding.HALF_EVEN)


def _held(number: float, lowest: int, highest: int) -> int:
    return min(max(_nearest(number), lowest), highest)


def _half_bytes(number: float) -> bytes:
    return FLOAT16.encode(number).to_bytes(2, "little")


def _demand_super_block(values: Sequence[float]) -> None:
    if len(values) != _SUPER_BLOCK:
        raise DataMismatch(
            "not a super block", got=f"{len(values)} values", expected=str(_SUPER_BLOCK)
        )
