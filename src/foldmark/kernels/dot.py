"""Integer dot and matrix products: exact, with zero points, at the speed of the best library.

Three engines give the sum of products, and all of them exactly:

    ONNX Runtime's MatMulInteger   codes of 8 bits, in stretches of K that fit an int32
    float32 BLAS                   codes of 8 bits, in stretches that stay below 2^24
    float64 BLAS                   codes of 16 bits, in stretches that stay below 2^53

The first is some ten times faster than the second where the processor multiplies bytes (measured
with AVX-512 VNNI: 837 against 65 billion operations a second on two cores), but without such
instructions it may add pairs of products in a saturating int16. So it is asked once per process
about the inputs that saturate, and used only if it answers exactly.

Zero points are then subtracted as in the oracle: row and column sums, in int64.
"""

from functools import cache
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foldmark.errors import DataMismatch, NotSupported
from foldmark.exact.catalog import INT32
from foldmark.exact.dot import EXACT, Accumulator, AccumulatorOverflow, DotTerms
from foldmark.kernels.compiled import compiled

__all__ = [
    "dot_terms",
    "integer_dot",
    "integer_matmul",
    "saturating_pairs",
    "saturating_pairs_dot",
]

Integers = NDArray[np.integer[Any]]
Sums = NDArray[np.int64]

_FEW: Final = 1 << 12
"""Below so many products, preparing a library costs more than it saves."""


def integer_matmul(
    a: Integers,
    b: Integers,
    zero_a: ArrayLike = 0,
    zero_b: ArrayLike = 0,
    accumulator: Accumulator = EXACT,
) -> Sums:
    """Return the matrix product of two matrices of codes, sum (a - zero_a)(b - zero_b).

    a       (..., rows, K)    integers
    b       (K, columns)      integers
    zero_a  () or (rows, 1)   integers
    zero_b  () or (columns,)  integers
    ->      (..., rows, columns)  int64, in steps of scale_a * scale_b, as the accumulator holds it

    Raises DataMismatch when the inner lengths differ, NotSupported where an exact sum could
    pass 2^63.
    Exact twin: foldmark.exact.dot.integer_matmul.
    """
    _require_codes(a, b)
    if a.ndim < 2 or b.ndim != 2 or a.shape[-1] != b.shape[0]:
        raise DataMismatch("inner lengths differ", got=f"{a.shape} by {b.shape}")
    zeros_a, zeros_b = np.asarray(zero_a, np.int64), np.asarray(zero_b, np.int64)
    if _is_ordered(accumulator):
        return _in_order(a - zeros_a, b - zeros_b, accumulator)
    if accumulator.number_format is None:
        _require_room(a, b, zeros_a, zeros_b)
    rows = a.reshape(prod(a.shape[:-1]), a.shape[-1])
    products = _products(rows, b).reshape(*a.shape[:-1], b.shape[1])
    if zeros_b.any():
        products -= zeros_b * a.sum(-1, dtype=np.int64, keepdims=True)
    if zeros_a.any():
        products -= zeros_a * b.sum(0, dtype=np.int64)
        products += a.shape[-1] * zeros_a * zeros_b
    if accumulator.number_format is None:
        return products
    return _wrapped(products, accumulator.number_format.bits)


def integer_dot(
    a: Integers,
    b: Integers,
    zero_a: int = 0,
    zero_b: int = 0,
    accumulator: Accumulator = EXACT,
) -> int:
    """Return sum (a - zero_a)(b - zero_b), added up in order in the accumulator.

    Raises DataMismatch when the arrays differ in length.
    Exact twin: foldmark.exact.dot.integer_dot.
    """
    _require_equal_lengths(a, b)
    return int(integer_matmul(a[None, :], b[:, None], zero_a, zero_b, accumulator)[0, 0])


def dot_terms(a: Integers, b: Integers, zero_a: int = 0, zero_b: int = 0) -> DotTerms:
    """Return the four terms of the dot product of two arrays of codes, exactly.

    Exact twin: foldmark.exact.dot.dot_terms.
    """
    _require_equal_lengths(a, b)
    return DotTerms(
        products=integer_dot(a, b),
        row_term=zero_b * int(a.sum(dtype=np.int64)),
        column_term=zero_a * int(b.sum(dtype=np.int64)),
        constant=a.size * zero_a * zero_b,
    )


def saturating_pairs_dot(a: Integers, b: Integers) -> int:
    """Return the dot product of uint8 by int8 as AVX2 without VNNI computes it.

    Exact twin: foldmark.exact.dot.saturating_pairs_dot.
    """
    sums = np.clip(_pair_sums(a, b), -(1 << 15), (1 << 15) - 1)
    return int(_wrapped(sums.sum(keepdims=True, dtype=np.int64), 32)[0])


def saturating_pairs(a: Integers, b: Integers) -> NDArray[np.int64]:
    """Return the indices of the first elements of the pairs whose int16 sum saturates.

    Exact twin: foldmark.exact.dot.saturating_pairs.
    """
    sums = _pair_sums(a, b)
    return 2 * np.nonzero((sums < -(1 << 15)) | (sums > (1 << 15) - 1))[0]


def _products(a: Integers, b: Integers) -> Sums:
    """Return the matrix product of codes, (rows, K) by (K, columns)."""
    if a.size * b.shape[1] <= _FEW:
        return np.matmul(a, b, dtype=np.int64)
    largest = max(_magnitude(a) * _magnitude(b), 1)
    bytes_only = a.dtype.itemsize == b.dtype.itemsize == 1
    if bytes_only and _multiplies_bytes_exactly(a.dtype.str, b.dtype.str):
        return _in_stretches(a, b, INT32.maximum // largest, _by_onnxruntime)
    if largest << 8 <= 1 << 24:
        return _in_stretches(a, b, (1 << 24) // largest, _by_float32)
    if largest << 8 <= 1 << 53:
        return _in_stretches(a, b, (1 << 53) // largest, _by_float64)
    return np.matmul(a, b, dtype=np.int64)


def _in_stretches(a: Integers, b: Integers, longest: int, multiply: Any) -> Sums:
    """Add up the products of stretches of K, each short enough to be exact."""
    total = multiply(a[:, :longest], b[:longest]).astype(np.int64)
    for start in range(longest, a.shape[1], longest):
        total += multiply(a[:, start : start + longest], b[start : start + longest]).astype(
            np.int64
        )
    return total


def _by_float32(a: Integers, b: Integers) -> NDArray[np.float32]:
    return a.astype(np.float32) @ b.astype(np.float32)


def _by_float64(a: Integers, b: Integers) -> NDArray[np.float64]:
    return a.astype(np.float64) @ b.astype(np.float64)


def _by_onnxruntime(a: Integers, b: Integers) -> NDArray[np.int32]:
    session = _session(a.dtype.str, b.dtype.str)
    feeds = {"a": np.ascontiguousarray(a), "b": np.ascontiguousarray(b)}
    product: NDArray[np.int32] = session.run(None, feeds)[0]
    return product


@cache
def _session(a: str, b: str) -> Any:
    """Return a session with nothing but MatMulInteger in it, for two dtypes."""
    import onnxruntime  # noqa: PLC0415  (a tenth of a second, for those who multiply)
    from onnx import TensorProto, helper  # noqa: PLC0415

    types = {"|i1": TensorProto.INT8, "|u1": TensorProto.UINT8}
    inputs = [
        helper.make_tensor_value_info("a", types[a], ["rows", "K"]),
        helper.make_tensor_value_info("b", types[b], ["K", "columns"]),
    ]
    output = helper.make_tensor_value_info("product", TensorProto.INT32, ["rows", "columns"])
    node = helper.make_node("MatMulInteger", ["a", "b"], ["product"])
    graph = helper.make_graph([node], "product", inputs, [output])
    opset = helper.make_opsetid("", 13)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


@cache
def _multiplies_bytes_exactly(a: str, b: str) -> bool:
    """Ask ONNX Runtime for the products that saturate an int16, on the shapes that it treats apart.

    Largest by largest and lowest by lowest code, in rows alone and together, with and without a
    tail behind the widest register.
    """
    limits_a, limits_b = np.iinfo(np.dtype(a)), np.iinfo(np.dtype(b))
    for rows, length in ((1, 64), (1, 67), (5, 64), (16, 131)):
        for code_a in (limits_a.min, limits_a.max):
            left = np.full((rows, length), code_a, np.dtype(a))
            right = np.full((length, 17), limits_b.max, np.dtype(b))
            right[:, ::2] = limits_b.min
            right[1::2, ::3] = 1
            if not np.array_equal(_by_onnxruntime(left, right), np.matmul(left, right, dtype=int)):
                return False
    return True


def _is_ordered(accumulator: Accumulator) -> bool:
    """Whether the sum depends on the order of its terms."""
    return (
        accumulator.number_format is not None
        and accumulator.overflow == AccumulatorOverflow.SATURATE
    )


def _in_order(a: Sums, b: Sums, accumulator: Accumulator) -> Sums:
    assert accumulator.number_format is not None
    rows = np.ascontiguousarray(a.reshape(prod(a.shape[:-1]), a.shape[-1]))
    out = np.empty((rows.shape[0], b.shape[1]), np.int64)
    held = accumulator.number_format
    _saturating(rows, np.ascontiguousarray(b), held.minimum, held.maximum, out)
    return out.reshape(*a.shape[:-1], b.shape[1])


@compiled
def _saturating(a: Sums, b: Sums, low: int, high: int, out: Sums) -> None:
    for row in range(a.shape[0]):
        for column in range(b.shape[1]):
            total = 0
            for k in range(a.shape[1]):
                total = min(max(total + a[row, k] * b[k, column], low), high)
            out[row, column] = total


def _wrapped(sums: Sums, bits: int) -> Sums:
    """Keep the low bits of each sum, as two's complement."""
    shift = 64 - bits
    return (sums << shift) >> shift


def _pair_sums(a: Integers, b: Integers) -> Sums:
    _require_equal_lengths(a, b)
    for codes, low, high in ((a, 0, 255), (b, -128, 127)):
        if codes.size and not (low <= int(codes.min()) and int(codes.max()) <= high):
            raise DataMismatch("not a uint8 by int8 product", got=f"{a.dtype} by {b.dtype}")
    products = a.astype(np.int64) * b.astype(np.int64)
    return np.add.reduceat(products, np.arange(0, a.size, 2)) if a.size else products


def _magnitude(codes: Integers) -> int:
    return max(abs(int(codes.min())), abs(int(codes.max()))) if codes.size else 0


def _require_room(a: Integers, b: Integers, zero_a: Sums, zero_b: Sums) -> None:
    far_a = _magnitude(a) + _magnitude(zero_a)
    far_b = _magnitude(b) + _magnitude(zero_b)
    if a.shape[-1] * far_a * far_b >= 1 << 63:
        raise NotSupported(
            "a sum of products could pass 2^63",
            got=f"{a.shape[-1]} products of up to {far_a} by {far_b}",
            todo="use foldmark.exact.dot, which has no such limit",
        )


def _require_codes(a: Integers, b: Integers) -> None:
    for name, codes in (("a", a), ("b", b)):
        if codes.dtype.kind not in "iu":
            raise DataMismatch("codes are integers", where=name, got=f"dtype {codes.dtype}")


def _require_equal_lengths(a: Integers, b: Integers) -> None:
    if a.ndim != 1 or a.shape != b.shape:
        raise DataMismatch("two lists of different lengths", got=f"{a.shape} and {b.shape}")
