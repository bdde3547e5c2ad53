"""Integer products: accumulators that wrap and saturate, zero points, the pairs of AVX2."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldmark.errors import DataMismatch
from foldmark.exact import catalog, dot
from foldmark.exact.dot import EXACT, INT32_WRAPPING, Accumulator, AccumulatorOverflow

bytes_u8 = st.integers(0, 255)
bytes_s8 = st.integers(-128, 127)


def test_a_long_product_passes_two_to_the_31() -> None:
    a, b = [255] * 70000, [127] * 70000
    assert dot.integer_dot(a, b) == 2_266_950_000
    assert dot.integer_dot(a, b, accumulator=INT32_WRAPPING) == -2_028_017_296
    saturating = Accumulator(catalog.INT32, AccumulatorOverflow.SATURATE)
    assert dot.integer_dot(a, b, accumulator=saturating) == 2**31 - 1
    assert dot.saturating_pairs_dot(a, b) == 1_146_845_000


def test_2049_products_of_127_squared_do_not_fit_float32() -> None:
    exact = dot.integer_dot([127] * 2049, [127] * 2049)
    assert exact == 33_048_321
    assert catalog.FLOAT32.round(float(exact)) == 33_048_320


def test_longest_safe_dot() -> None:
    narrow = dot.longest_safe_dot(catalog.UINT8, catalog.INT8_NARROW)
    assert narrow == 66_311
    assert narrow * 255 * 127 <= 2**31 - 1 < (narrow + 1) * 255 * 127
    assert dot.longest_safe_dot(catalog.UINT8, catalog.INT8) == 65_793  # 255 * -128 is farther out
    assert dot.longest_safe_dot(catalog.INT8, catalog.INT8) == 131_071
    assert dot.longest_safe_dot(catalog.UINT8, catalog.INT8_NARROW, catalog.INT16) == 1


@given(st.lists(st.tuples(bytes_u8, bytes_s8), max_size=40), bytes_u8, bytes_s8)
def test_terms_add_up(pairs: list[tuple[int, int]], zero_a: int, zero_b: int) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    terms = dot.dot_terms(a, b, zero_a, zero_b)
    assert terms.total == dot.integer_dot(a, b, zero_a, zero_b)


@given(st.lists(st.tuples(bytes_u8, bytes_s8), max_size=9))
def test_pairs_saturate_exactly_where_said(pairs: list[tuple[int, int]]) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    exact = dot.integer_dot(a, b) == dot.saturating_pairs_dot(a, b)
    assert exact or dot.saturating_pairs(a, b)
    if not dot.saturating_pairs(a, b):
        assert exact


def test_weights_of_seven_bits_never_saturate() -> None:
    assert dot.saturating_pairs([255, 255], [64, 64]) == []
    assert dot.saturating_pairs([255, 255], [65, 65]) == [0]
    assert dot.saturating_pairs([0, 0, 255, 255], [0, 0, -128, -128]) == [2]


def test_matmul_is_numpys_in_int64() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 256, (3, 17)), rng.integers(-128, 128, (17, 4))
    expected = (a - 7) @ (b + 3)
    assert dot.integer_matmul(a.tolist(), b.tolist(), 7, -3) == expected.tolist()


def test_matmul_is_onnxruntimes() -> None:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    node = helper.make_node("MatMulInteger", ["a", "b", "za", "zb"], ["y"])
    inputs = [
        helper.make_tensor_value_info("a", TensorProto.UINT8, ["n", "k"]),
        helper.make_tensor_value_info("b", TensorProto.INT8, ["k", "m"]),
        helper.make_tensor_value_info("za", TensorProto.UINT8, []),
        helper.make_tensor_value_info("zb", TensorProto.INT8, []),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.INT32, ["n", "m"])
    graph = helper.make_graph([node], "product", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(2)
    a = rng.integers(0, 256, (2, 33), dtype=np.uint8)
    b = rng.integers(-64, 65, (33, 3), dtype=np.int8)  # 8 bits saturate on x86 without VNNI
    zeros = {"za": np.array(9, dtype=np.uint8), "zb": np.array(-5, dtype=np.int8)}
    theirs = session.run(None, {"a": a, "b": b, **zeros})[0]
    ours = dot.integer_matmul(a.tolist(), b.tolist(), 9, -5, INT32_WRAPPING)
    assert ours == theirs.tolist()


def test_accumulators_of_the_field() -> None:
    assert dot.accumulator_format(catalog.INT4) == catalog.INT32
    assert dot.accumulator_format(catalog.INT16) == catalog.INT64
    assert dot.accumulator_format(catalog.FLOAT16) == catalog.FLOAT32
    assert dot.accumulator_format(catalog.FLOAT64) == catalog.FLOAT64


def test_refusals() -> None:
    with pytest.raises(DataMismatch, match="different lengths; got 1 and 2"):
        dot.integer_dot([1], [1, 2], accumulator=EXACT)
    with pytest.raises(DataMismatch, match="inner lengths differ"):
        dot.integer_matmul([[1, 2]], [[1]])
    with pytest.raises(DataMismatch, match="not a uint8 by int8 product; got -1 by 1"):
        dot.saturating_pairs([-1], [1])
