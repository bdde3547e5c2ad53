"""gguf, compressed-tensors, optimum-quanto, bitsandbytes and OpenVINO give the rules' codes."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from tests.exact.live.groups import groups, real_weights

from foldmark import rules
from foldmark.compare.engines import ENGINES
from foldmark.exact import catalog, packing
from foldmark.exact.group import quantize_group
from foldmark.exact.number import FloatFormat
from foldmark.exact.packing import pack
from foldmark.exact.rule import Rule
from foldmark.exact.tools.entry import Procedure
from foldmark.exact.tools.fake_quantize import LevelRange, openvino_fake_quantize
from foldmark.exact.tools.kquants import quantize_q4_k, quantize_q6_k


def half(number: float) -> bytes:
    return catalog.FLOAT16.encode(number).to_bytes(2, "little")


def block_bytes(name: str, values: list[float]) -> bytes:
    """Return one block of 32 as a file holds it: factors, high bits, codes."""
    rule = getattr(rules, f"GGML_{name}")
    group = quantize_group(values, rule)
    head = half(group.scale) + (half(group.zero_point) if name.endswith("_1") else b"")
    if name == "Q8_0":
        return head + bytes(code & 0xFF for code in group.codes)
    high = b""
    if name.startswith("Q5"):
        high = pack([code >> 4 for code in group.codes], packing.GGML_Q5_HIGH)
    return head + high + pack([code & 15 for code in group.codes], packing.GGML_Q4)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_gguf(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    for values in groups():
        block = values[:32]
        theirs = gguf.quants.quantize(block, gguf.GGMLQuantizationType[name])
        assert block_bytes(name, block.tolist()) == theirs.tobytes()


def ggml_library() -> ctypes.CDLL:
    """Return ggml's own library, as the wheel of a speech recognizer carries it."""
    distribution = pytest.importorskip("importlib.metadata").distribution("pywhispercpp")
    names = [f for f in distribution.files or [] if f.name.startswith("libggml-base.so")]
    library = ctypes.CDLL(str(names[0].locate()))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    pointer, length = ctypes.c_void_p, ctypes.c_int64
    library.ggml_quantize_chunk.argtypes = [
        *(ctypes.c_int, pointer, pointer, length, length, length, pointer)
    ]
    return library


def by_ggml(values: np.ndarray, kind: int, size: int) -> bytes:
    values, out = np.ascontiguousarray(values), np.zeros(size, np.uint8)
    library = ggml_library()
    library.ggml_quantize_init(kind)
    count = values.size
    library.ggml_quantize_chunk(kind, values.ctypes.data, out.ctypes.data, 0, 1, count, None)
    return out.tobytes()


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [("Q4_0", 2, 18), ("Q4_1", 3, 20), ("Q5_0", 6, 22), ("Q5_1", 7, 24), ("Q8_0", 8, 34)],
)
def test_ggml_blocks(name: str, kind: int, size: int) -> None:
    for values in groups():
        block = values[:32]
        assert block_bytes(name, block.tolist()) == by_ggml(block, kind, size)


@pytest.mark.parametrize(
    ("quantize", "kind", "size"), [(quantize_q4_k, 12, 144), (quantize_q6_k, 14, 210)]
)
def test_ggml_super_blocks(quantize: Callable, kind: int, size: int) -> None:
    steps = np.linspace(0.5, 3, 256, dtype=np.float32)
    twin = ENGINES[1].functions[quantize.__name__]
    for values in (*real_weights(2, 256), steps, np.zeros(256, np.float32)):
        theirs = by_ggml(values, kind, size)
        assert quantize(values.tolist()).to_bytes() == theirs
        assert twin(values.tolist()).to_bytes() == theirs


HALVES = [catalog.FLOAT32, catalog.FLOAT16, catalog.BFLOAT16]


def tensor_of(values: np.ndarray, data: FloatFormat):
    torch = pytest.importorskip("torch")
    return torch.tensor(values).to(getattr(torch, data.name))


@pytest.mark.parametrize("data", HALVES, ids=lambda f: f.name)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors(data: FloatFormat, bits: int, symmetric: bool) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils import calculate_qparams

    kind = "SYMMETRIC" if symmetric else "ASYMMETRIC"
    rule = getattr(rules, f"COMPRESSED_TENSORS_INT{bits}_{kind}")
    arguments = QuantizationArgs(num_bits=bits, symmetric=symmetric, strategy="channel")
    for values in groups():
        tensor = tensor_of(values, data)[None]
        low, high = tensor.amin(1, keepdim=True), tensor.amax(1, keepdim=True)
        scale, zero = calculate_qparams(low, high, arguments)
        codes = quantize(tensor, scale, zero, arguments)
        ours = quantize_group(tensor[0].float().tolist(), rule, data)
        assert (ours.scale, ours.zero_point) == (scale.item(), zero.item())
        assert list(ours.codes) == codes[0].int().tolist()


@pytest.mark.parametrize("data", HALVES, ids=lambda f: f.name)
def test_quanto_int8(data: FloatFormat) -> None:
    quanto = pytest.importorskip("optimum.quanto")
    rule = rules.QUANTO_INT8
    assert isinstance(rule, Rule)
    for values in groups():
        tensor = tensor_of(np.stack([values, values]), data)
        scale = quanto.AbsmaxOptimizer()(tensor, quanto.qint8, 0)
        codes = quanto.quantize_weight(tensor, quanto.qint8, 0, scale, optimized=False)._data
        ours = quantize_group(tensor[0].float().tolist(), rule, data)
        assert ours.scale == scale[0].item()
        assert list(ours.codes) == codes[0].tolist()


@pytest.mark.parametrize("data", HALVES, ids=lambda f: f.name)
@pytest.mark.parametrize("zero_point", [False, True])
def test_quanto_int4(data: FloatFormat, zero_point: bool) -> None:
    quanto = pytest.importorskip("optimum.quanto")
    rule = rules.QUANTO_INT4_ZERO_POINT if zero_point else rules.QUANTO_INT4_SHIFT
    assert isinstance(rule, Rule)
    for values in groups():
        tensor = tensor_of(np.stack([values, values]), data)
        scale, shift = quanto.MaxOptimizer()(
            tensor, quanto.qint4, 0, group_size=64, zeropoint=zero_point
        )
        packed = quanto.quantize_weight(
            tensor, quanto.qint4, 0, scale, shift, group_size=64, optimized=False
        )
        # Its own unpacking compiles C++ first; low nibbles are the first half of the rows.
        fields = packed._data._data.reshape(-1, 64)
        codes = (fields & 15)[0]
        ours = quantize_group(tensor[0].float().tolist(), rule, data)
        stored = ours.zero_point if zero_point else -ours.zero_point
        assert ours.scale == scale.reshape(-1)[0].item()
        assert stored == shift.reshape(-1)[0].item()
        assert list(ours.codes) == codes.reshape(-1).tolist()


@pytest.mark.parametrize("data", HALVES, ids=lambda f: f.name)
def test_bitsandbytes_int8(data: FloatFormat) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    rule = rules.BITSANDBYTES_INT8
    assert isinstance(rule, Rule)
    for values in groups():
        tensor = tensor_of(values, data)[None]
        codes, largest, _ = functional.int8_vectorwise_quant(tensor)
        ours = quantize_group(tensor[0].float().tolist(), rule, data)
        assert ours.scale == largest.item()
        assert list(ours.codes) == codes[0].tolist()


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_bitsandbytes_4_bits(kind: str) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    procedure = getattr(rules, f"BITSANDBYTES_{kind.upper()}_BLOCK")
    assert isinstance(procedure, Procedure)
    for values in groups():
        tensor = tensor_of(values, catalog.FLOAT32)
        packed, state = functional.quantize_4bit(tensor, blocksize=64, quant_type=kind)
        ours = procedure.quantize(values.tolist(), catalog.FLOAT32)
        assert ours.scale == state.absmax.item()
        assert pack(ours.codes, packing.HIGH_NIBBLE_FIRST) == packed.numpy().tobytes()


@pytest.mark.parametrize(("low", "high", "levels"), [(-127, 127, 255), (-128, 127, 256)])
def test_openvino_fake_quantize(low: int, high: int, levels: int) -> None:
    openvino = pytest.importorskip("openvino")
    from openvino import opset13

    values = np.float32([n / 2 for n in range(-520, 521)] + [1e30, -1e30])
    x = opset13.parameter([values.size], np.float32)
    ends = [np.float32(low), np.float32(high)]
    node = opset13.fake_quantize(x, *ends, *ends, levels)
    compiled = openvino.compile_model(openvino.Model([node], [x]), "CPU")
    theirs = compiled([values])[0]
    limits = LevelRange(float(low), float(high), levels)
    ours = [openvino_fake_quantize(value, limits) for value in values.tolist()]
    assert ours == theirs.tolist()
