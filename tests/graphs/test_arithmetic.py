"""Constants are coded and decoded bit for bit as ONNX Runtime's operators do it."""

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.properties import examples

from foldmark.graphs.reading.arithmetic import dequantized, quantized
from foldmark.graphs.sites import Encoding

TYPES = {
    "int8": (TensorProto.INT8, np.dtype(np.int8)),
    "uint8": (TensorProto.UINT8, np.dtype(np.uint8)),
    "int16": (TensorProto.INT16, np.dtype(np.int16)),
    "uint16": (TensorProto.UINT16, np.dtype(np.uint16)),
    "int4": (TensorProto.INT4, np.dtype(ml_dtypes.int4)),
    "uint4": (TensorProto.UINT4, np.dtype(ml_dtypes.uint4)),
}
_SESSIONS: dict[tuple[str, int], onnxruntime.InferenceSession] = {}


def runtime(kind: int, x: np.ndarray, scale: np.ndarray, zero: int) -> np.ndarray:
    """Return x quantized by ONNX Runtime, cast to int32."""
    key = ("quantize", kind)
    if key not in _SESSIONS:
        nodes = [
            helper.make_node("Cast", ["z"], ["zero"], to=kind),
            helper.make_node("QuantizeLinear", ["x", "s", "zero"], ["codes"]),
            helper.make_node("Cast", ["codes"], ["y"], to=TensorProto.INT32),
        ]
        inputs = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("z", TensorProto.INT32, []),
        ]
        output = helper.make_tensor_value_info("y", TensorProto.INT32, ["n"])
        model = helper.make_model(
            helper.make_graph(nodes, "g", inputs, [output]),
            opset_imports=[helper.make_opsetid("", 21)],
            ir_version=10,
        )
        _SESSIONS[key] = onnxruntime.InferenceSession(model.SerializeToString())
    return _SESSIONS[key].run(None, {"x": x, "s": scale, "z": np.asarray(zero, np.int32)})[0]


def bits(count: int) -> st.SearchStrategy[np.ndarray]:
    """Draw floats by their bit patterns, NaN and infinities among them."""
    words = st.lists(st.integers(0, 2**32 - 1), min_size=count, max_size=count)
    return words.map(lambda w: np.array(w, np.uint32).view(np.float32))


@pytest.mark.parametrize("name", TYPES)
@examples(60)
@given(data=st.data())
def test_codes_of_any_float(name: str, data: st.DataObject) -> None:
    kind, dtype = TYPES[name]
    info = ml_dtypes.iinfo(dtype)
    zero = data.draw(st.integers(int(info.min), int(info.max)))
    scale = np.float32(2.0) ** data.draw(st.integers(-12, 12))
    scale = np.float32(scale * data.draw(st.sampled_from([1.0, 1.1, 0.7])))
    halves = (np.arange(-40, 40, dtype=np.float32) + np.float32(0.5)) * scale
    x = np.concatenate([data.draw(bits(16)), halves])
    encoding = Encoding(name, None, None, np.asarray(scale), np.asarray(zero, dtype))
    got = quantized(x, encoding, dtype).astype(np.int32)
    np.testing.assert_array_equal(got, runtime(kind, x, np.asarray(scale), zero))


@pytest.mark.parametrize("name", TYPES)
def test_half_steps_with_an_odd_zero_point_go_to_the_even_quotient(name: str) -> None:
    _, dtype = TYPES[name]
    encoding = Encoding(name, None, None, np.asarray(2.0, np.float32), np.asarray(3, dtype))
    x = np.array([1, 3, 5, -1, -3, -5], np.float32)
    codes = quantized(x, encoding, dtype).astype(int)
    low = int(ml_dtypes.iinfo(dtype).min)
    np.testing.assert_array_equal(codes, np.maximum([3, 5, 5, 3, 1, 1], low))


@examples(60)
@given(data=st.data())
def test_decoding_is_what_the_runtime_does(data: st.DataObject) -> None:
    codes = np.array(data.draw(st.lists(st.integers(0, 255), min_size=8, max_size=8)), np.uint8)
    zero = np.asarray(data.draw(st.integers(0, 255)), np.uint8)
    scale = np.abs(data.draw(bits(1)))[0]
    if "decode" not in _SESSIONS:
        node = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])
        infos = [
            helper.make_tensor_value_info("q", TensorProto.UINT8, ["n"]),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("z", TensorProto.UINT8, []),
        ]
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
        model = helper.make_model(
            helper.make_graph([node], "g", infos, [output]),
            opset_imports=[helper.make_opsetid("", 13)],
            ir_version=8,
        )
        _SESSIONS["decode"] = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = {"q": codes, "s": np.asarray(scale), "z": zero}
    with np.errstate(all="ignore"):
        got = dequantized(codes, np.asarray(scale), zero, None)
    np.testing.assert_array_equal(got, _SESSIONS["decode"].run(None, feeds)[0])


@pytest.mark.parametrize(
    ("axis", "block_size", "shape"),
    [(None, 0, ()), (0, 0, (6,)), (1, 0, (4,)), (0, 2, (3, 4)), (0, 4, (2, 4)), (1, 3, (6, 2))],
)
def test_scales_spread_over_axes_and_blocks(axis, block_size: int, shape: tuple) -> None:
    scale = np.random.default_rng(0).random(shape).astype(np.float32) + np.float32(0.5)
    codes = np.arange(24, dtype=np.int8).reshape(6, 4)
    got = dequantized(codes, scale, None, axis, block_size)
    for row in range(6):
        for column in range(4):
            place = {None: (), 0: (row,), 1: (column,)}[axis]
            if block_size:
                place = (row // block_size, column) if axis == 0 else (row, column // block_size)
            assert got[row, column] == np.float32(codes[row, column]) * scale[place]
