"""ggml's Q4_K and Q6_K on many super blocks of 256 values.

Exact twin: foldmark.exact.tools.kquants, where search and bytes are explained.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import DataMismatch
from foldmark.exact.packing import GGML_Q4_K, GGML_Q6_K_HIGH, GGML_Q6_K_LOW
from foldmark.kernels.compiled import compiled
from foldmark.kernels.packing import pack
from foldmark.kernels.threads import each
from foldmark.kernels.tools.blocks import Singles, as_rows

__all__ = ["Q4KBlocks", "Q6KBlocks", "quantize_q4_k", "quantize_q6_k"]

Bytes = NDArray[np.uint8]
_SUPER_BLOCK = 256
_ROWS = 1 << 6


@dataclass(frozen=True, slots=True, eq=False)
class Q4KBlocks:
    """Super blocks of Q4_K: codes (blocks, 256), scales and minima (blocks, 8), float16 factors."""

    codes: Bytes
    scales: Bytes
    minima: Bytes
    d: NDArray[np.float16]
    d_min: NDArray[np.float16]

    def to_bytes(self) -> bytes:
        """Return the blocks of 144 bytes as files hold them."""
        small = np.empty((len(self.codes), 12), np.uint8)
        small[:, 0:4] = self.scales[:, :4] | self.scales[:, 4:] >> 4 << 6
        small[:, 4:8] = self.minima[:, :4] | self.minima[:, 4:] >> 4 << 6
        small[:, 8:12] = self.scales[:, 4:] & 15 | (self.minima[:, 4:] & 15) << 4
        factors = _half_bytes(self.d), _half_bytes(self.d_min)
        packed = pack(self.codes, GGML_Q4_K).reshape(-1, 128)
        return np.hstack([*factors, small, packed]).tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class Q6KBlocks:
    """Super blocks of Q6_K: codes (blocks, 256), scales (blocks, 16), a float16 factor each."""

    codes: Bytes
    scales: NDArray[np.int8]
    d: NDArray[np.float16]

    def to_bytes(self) -> bytes:
        """Return the blocks of 210 bytes as files hold them."""
        low = pack(self.codes & 15, GGML_Q6_K_LOW).reshape(-1, 128)
        high = pack(self.codes >> 4, GGML_Q6_K_HIGH).reshape(-1, 64)
        return np.hstack([low, high, self.scales.view(np.uint8), _half_bytes(self.d)]).tobytes()


def quantize_q4_k(values: NDArray[Any]) -> Q4KBlocks:
    """Return the Q4_K blocks of float32 values (blocks, 256).

    Raises DataMismatch for another length. Exact twin: foldmark.exact.tools.kquants.quantize_q4_k.
    """
    rows = _super_blocks(values)
    codes = np.empty(rows.shape, np.uint8)
    found, small = np.empty((len(rows), 8, 2), np.float32), np.empty((len(rows), 8, 2), np.uint8)
    factors = np.empty((len(rows), 2), np.float16)

    def run(first: int) -> None:
        part = slice(first, first + _ROWS)
        _search_q4_k(rows[part], found[part], codes[part])
        tops = np.maximum(found[part].max(1), np.float32(0))
        with np.errstate(divide="ignore", over="ignore"):
            inverse = np.where(tops > 0, np.float32(63) / tops, np.float32(0))
            factors[part] = (tops / np.float32(63)).astype(np.float16)
        levels = np.rint(inverse[:, None] * found[part]).astype(np.int64)
        small[part] = np.minimum(levels & 0xFF, 63)
        _codes_q4_k(rows[part], factors[part].astype(np.float32), small[part], codes[part])

    each(run, range(0, len(rows), _ROWS))
    return Q4KBlocks(codes, small[:, :, 0], small[:, :, 1], factors[:, 0], factors[:, 1])


def quantize_q6_k(values: NDArray[Any]) -> Q6KBlocks:
    """Return the Q6_K blocks of float32 values (blocks, 256).

    Raises DataMismatch for another length. Exact twin: foldmark.exact.tools.kquants.quantize_q6_k.
    """
    rows = _super_blocks(values)
    codes, scales = np.empty(rows.shape, np.uint8), np.empty((len(rows), 16), np.int8)
    inverse_d, d = np.empty(len(rows), np.float32), np.empty(len(rows), np.float16)

    def run(first: int) -> None:
        part = slice(first, first + _ROWS)
        _search_q6_k(rows[part], scales[part], inverse_d[part], codes[part])
        with np.errstate(over="ignore"):
            d[part] = inverse_d[part].astype(np.float16)
        _codes_q6_k(rows[part], d[part].astype(np.float32), scales[part], codes[part])

    each(run, range(0, len(rows), _ROWS))
    return Q6KBlocks(codes, scales, d)


def _super_blocks(values: NDArray[Any]) -> Singles:
    if values.shape[-1] != _SUPER_BLOCK:
        raise DataMismatch(
            "not a super block", got=f"{values.shape[-1]} values", expected=str(_SUPER_BLOCK)
        )
    return as_rows(values)


def _half_bytes(factors: NDArray[np.float16]) -> Bytes:
    return factors.astype("<f2").reshape(-1, 1).view(np.uint8)


@compiled
def _held(number: np.float32, lowest: np.float32, highest: np.float32) -> Any:
    return min(max(np.rint(number), lowest), highest)


@compiled
def _search_q4_k(rows: Singles, found: Singles, codes: Bytes) -> None:
    for r in range(rows.shape[0]):
        for j in range(8):
            part = slice(32 * j, 32 * j + 32)
            _search_with_minimum(rows[r, part], found[r, j], codes[r, part])


@compiled
def _search_with_minimum(x: Singles, found: Singles, codes: Bytes) -> None:
    """Write scale and minus the minimum into `found`, and the first codes."""
    zero, fifteen = np.float32(0), np.float32(15)
    square, low, high = zero, zero, x[0]
    for i in range(x.size):
        square = square + x[i] * x[i]
        low, high = min(low, x[i]), max(high, x[i])
    codes[:] = 0
    found[0], found[1] = zero, -low
    if high == low:
        return
    average = np.float32(np.sqrt(square / np.float32(x.size)))
    weights, levels = np.empty(x.size, np.float32), np.empty(x.size, np.float32)
    sum_w, sum_x = zero, zero
    for i in range(x.size):
        weights[i] = average + abs(x[i])
        sum_w = sum_w + weights[i]
        sum_x = sum_x + weights[i] * x[i]
    best = zero
    for step in range(-1, 21):
        factor = fifteen
        if step >= 0:
            factor = (np.float32(-1) + np.float32(0.1) * np.float32(step)) + fifteen
        inverse = factor / (high - low)
        sum_l, sum_l2, sum_xl = zero, zero, zero
        for i in range(x.size):
            levels[i] = _held(inverse * (x[i] - low), zero, fifteen)
            weighted = weights[i] * levels[i]
            sum_l = sum_l + weighted
            sum_l2 = sum_l2 + weighted * levels[i]
            sum_xl = sum_xl + weighted * x[i]
        scale, minimum = np.float32(1) / inverse, low
        if step >= 0:
            determinant = sum_w * sum_l2 - sum_l * sum_l
            if determinant <= 0:
                continue
            scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
            minimum = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
            if minimum > 0:
                scale, minimum = sum_xl / sum_l2, zero
        error = zero
        for i in range(x.size):
            off = (scale * levels[i] + minimum) - x[i]
            error = error + weights[i] * (off * off)
        if step < 0 or error < best:
            # ggml goes on from the best minimum so far, not from the least value.
            best, low, found[0], found[1] = error, minimum, scale, -minimum
            for i in range(x.size):
                codes[i] = np.uint8(levels[i])


@compiled
def _codes_q4_k(rows: Singles, factors: Singles, small: Bytes, codes: Bytes) -> None:
    for r in range(rows.shape[0]):
        for j in range(8):
            step = factors[r, 0] * np.float32(small[r, j, 0])
            below = factors[r, 1] * np.float32(small[r, j, 1])
            if step != 0:
                for i in range(32 * j, 32 * j + 32):
                    number = (rows[r, i] + below) / step
                    codes[r, i] = np.uint8(_held(number, np.float32(0), np.float32(15)))


@compiled
def _search_q6_k(rows: Singles, scales: NDArray[np.int8], factors: Singles, codes: Bytes) -> None:
    """Write the small scales, 1 / inverse of the large one, and the first codes."""
    found = np.empty(16, np.float32)
    for r in range(rows.shape[0]):
        farthest = np.float32(0)
        for j in range(16):
            part = slice(16 * j, 16 * j + 16)
            found[j] = _search_signed(rows[r, part], codes[r, part])
            if abs(found[j]) > abs(farthest):
                farthest = found[j]
        if abs(farthest) < np.float32(1e-15):
            codes[r] = 0
            scales[r] = 0
            factors[r] = 0
            continue
        inverse = np.float32(-128) / farthest
        factors[r] = np.float32(1) / inverse
        for j in range(16):
            scales[r, j] = np.int8(min(np.rint(inverse * found[j]), np.float32(127)))


@compiled
def _search_signed(x: Singles, codes: Bytes) -> Any:
    """Return the scale of a sub-block of 16, and write its first codes (32 for zero)."""
    zero, low, high = np.float32(0), np.float32(-32), np.float32(31)
    extreme = x[0]
    for i in range(x.size):
        if abs(x[i]) > abs(extreme):
            extreme = x[i]
    codes[:] = 0
    if abs(extreme) < np.float32(1e-15):
        return zero
    scale, best = zero, zero
    for turn in range(19):
        # 0 first, then -9..-1 and 1..9.
        step = 0 if turn == 0 else (turn - 10 if turn < 10 else turn - 9)
        inverse = -(np.float32(32) + np.float32(0.1) * np.float32(step)) / extreme
        sum_xl, sum_l2 = zero, zero
        for i in range(x.size):
            weight, level = x[i] * x[i], _held(inverse * x[i], low, high)
            sum_xl = sum_xl + (weight * x[i]) * level
            sum_l2 = sum_l2 + (weight * level) * level
        if turn == 0:
            scale = sum_xl / sum_l2 if sum_l2 != 0 else zero
            best = scale * sum_xl
        elif sum_l2 > 0 and sum_xl * sum_xl > best * sum_l2:
            scale = sum_xl / sum_l2
            best = scale * sum_xl
        else:
            continue
        for i in range(x.size):
            codes[i] = np.uint8(_held(inverse * x[i], low, high) + np.float32(32))
    return scale


@compiled
def _codes_q6_k(rows: Singles, factors: Singles, scales: NDArray[np.int8], codes: Bytes) -> None:
    for r in range(rows.shape[0]):
        for j in range(16):
            step = factors[r] * np.float32(scales[r, j])
            if step != 0:
                for i in range(16 * j, 16 * j + 16):
                    level = _held(rows[r, i] / step, np.float32(-32), np.float32(31))
                    codes[r, i] = np.uint8(level + np.float32(32))
