"""The processor: its integer instructions, and how fast it was seen to multiply and read."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from foldmark.runtimes.onnxruntime import Session, available_threads

__all__ = ["Machine", "Roofs", "machine", "measure_roofs"]

# Flag of the processor -> what it means for int8, best first.
_INSTRUCTIONS = (
    ("amx_int8", "AMX"),
    ("avx512_vnni", "AVX-512 VNNI"),
    ("avx_vnni", "AVX VNNI"),
    ("avx512bw", "AVX-512 without VNNI"),
    ("avx2", "AVX2 without VNNI"),
    ("i8mm", "Arm I8MM"),
    ("asimddp", "Arm dot product"),
)
_SATURATING = {"AVX-512 without VNNI", "AVX2 without VNNI"}
_SIDE = 512


@dataclass(frozen=True)
class Machine:
    """The processor.

    Attributes:
        processor: its name.
        instructions: its integer dot-product instructions, best first; empty when unknown.
        saturates: True when pairs of u8 x s8 products are added in 16 bits with saturation;
            None when that is not known.
    """

    processor: str
    instructions: tuple[str, ...]
    saturates: bool | None

    @property
    def is_x86(self) -> bool:
        """Whether its instructions are those of x86."""
        return any(not each.startswith("Arm") for each in self.instructions)


@dataclass(frozen=True)
class Roofs:
    """Speeds measured on this machine with these threads.

    Attributes:
        threads: threads used.
        float_macs: float32 multiply-accumulates a second, a square MatMul of side 512.
        integer_macs: u8 x s8 multiply-accumulates a second, the same MatMul.
        bytes_read: bytes a second read from memory.
    """

    threads: int
    float_macs: float
    integer_macs: float
    bytes_read: float


@cache
def machine() -> Machine:
    """Describe the processor this runs on."""
    processor, flags = platform.processor() or platform.machine(), set[str]()
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                processor = value.strip()
            elif key.strip() in {"flags", "Features"}:
                flags = set(value.split())
                break
    found = tuple(meaning for flag, meaning in _INSTRUCTIONS if flag in flags)
    if found and found[0] not in _SATURATING:
        found = tuple(each for each in found if each not in _SATURATING)
    return Machine(processor, found, found[0] in _SATURATING if found else None)


@cache
def measure_roofs(threads: int | None = None) -> Roofs:
    """Measure how fast this machine multiplies floats and integers, and reads memory."""
    used = threads or available_threads()
    random = np.random.default_rng(0)
    real = random.standard_normal((_SIDE, _SIDE), np.float32)
    float_session = Session(_product("MatMul", real), threads=used)
    codes = random.integers(-127, 127, (_SIDE, _SIDE)).astype(np.int8)
    integer_session = Session(_product("MatMulInteger", codes), threads=used)
    unsigned = random.integers(0, 255, (_SIDE, _SIDE)).astype(np.uint8)
    macs = float(_SIDE) ** 3
    float_time = _best(lambda: float_session.run({"x": real}))
    integer_time = _best(lambda: integer_session.run({"x": unsigned}))
    large = np.ones(1 << 24, np.float32)
    read_time = _best(lambda: large.sum(dtype=np.float32), repeats=5)
    return Roofs(used, macs / float_time, macs / integer_time, large.nbytes / read_time)


def _product(operator: str, weight: np.ndarray) -> onnx.ModelProto:
    kind = TensorProto.FLOAT if operator == "MatMul" else TensorProto.UINT8
    result = TensorProto.FLOAT if operator == "MatMul" else TensorProto.INT32
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "w"], ["y"], "product")],
        "product",
        [helper.make_tensor_value_info("x", kind, [_SIDE, _SIDE])],
        [helper.make_tensor_value_info("y", result, [_SIDE, _SIDE])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _best(call: Callable[[], object], repeats: int = 12) -> float:
    """Return the least time of a call: the one that nothing disturbed."""
    call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)
