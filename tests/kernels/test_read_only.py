"""Arrays that may be written to and arrays that may not are read by the same machine code."""

from collections.abc import Callable

import numpy as np
import pytest

from foldmark.calibrate import histogram
from foldmark.exact.catalog import INT4, INT8, UINT8
from foldmark.exact.packing import HIGH_NIBBLE_FIRST, LOW_NIBBLE_FIRST, stream
from foldmark.kernels import compiled, fold
from foldmark.kernels.affine import dequantize
from foldmark.kernels.cold import Budget
from foldmark.kernels.fold import quantize_array
from foldmark.kernels.packed import quantize_packed
from foldmark.kernels.packing import pack, unpack
from foldmark.kernels.tools.kquants import quantize_q4_k, quantize_q6_k
from foldmark.kernels.tools.searches import quantize_k_quant
from foldmark.tensors.scheme import asymmetric, symmetric

INT = symmetric(INT8).rule
UINT = asymmetric(UINT8).rule
DRAW = np.random.default_rng(7)
WEIGHTS = DRAW.standard_normal((16, 256)).astype(np.float32)
CODES = DRAW.integers(-8, 8, (16, 256)).astype(np.int8)
ONES = np.ones((16, 1), np.float32)
ZEROS = np.zeros((16, 1), np.int64)


def back(codes: np.ndarray) -> np.ndarray:
    return dequantize(codes, ONES, ZEROS, INT.affine, block=(1, 256))


def counted(values: np.ndarray) -> int:
    counts = histogram.Histogram()
    counts.add(values, float(values.min()), float(values.max()))
    return counts.zeros


WORK: dict[str, tuple[Callable[[np.ndarray], object], np.ndarray]] = {
    "rows": (lambda w: quantize_array(w, (1, 256), INT), WEIGHTS),
    "one scale": (lambda w: quantize_array(w, (1 << 11, 256), UINT), np.tile(WEIGHTS, (128, 1))),
    "columns": (lambda w: quantize_array(w, (16, 1), UINT), WEIGHTS),
    "strided": (lambda w: quantize_array(w[:, ::2], (1, 128), UINT), WEIGHTS),
    "float16": (lambda w: quantize_array(w, (1, 256), INT), WEIGHTS.astype(np.float16)),
    "float64": (lambda w: quantize_array(w, (1, 256), UINT), WEIGHTS.astype(np.float64)),
    "packed": (
        lambda w: quantize_packed(w, (1, 64), symmetric(INT4).rule, LOW_NIBBLE_FIRST),
        WEIGHTS,
    ),
    "back": (back, CODES),
    "back by columns": (lambda c: back(c.T.copy().T), CODES),
    "pack": (lambda c: pack(c, HIGH_NIBBLE_FIRST), CODES),
    "pack of 3 bits": (lambda c: pack(c & 7, stream(3)), CODES),
    "unpack": (lambda p: unpack(p, stream(2), 64), CODES.view(np.uint8).reshape(-1)),
    "histogram": (counted, WEIGHTS),
    "Q4_K": (quantize_q4_k, WEIGHTS),
    "Q6_K": (quantize_q6_k, WEIGHTS),
    "k-quant": (quantize_k_quant, WEIGHTS),
}


def versions() -> int:
    return sum(len(loop.overloads) for loop in compiled._LOOPS)


@pytest.mark.parametrize("name", WORK)
def test_nothing_is_compiled_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work, array = WORK[name]
    for module in (fold, histogram):
        monkeypatch.setattr(module, "BUDGET", Budget(0))
    work(array.copy())
    before = versions()
    mapped = array.copy()
    mapped.flags.writeable = False
    work(mapped)
    assert versions() == before > 0


def test_a_loop_cannot_write_to_what_it_is_given_to_read() -> None:
    view = compiled.read_only(WEIGHTS)
    assert np.shares_memory(view, WEIGHTS)
    assert WEIGHTS.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 0
