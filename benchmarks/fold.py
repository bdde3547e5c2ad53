"""Measure how fast weights are folded: range, scale, codes, packing, and back.

    python benchmarks/fold.py                      64 MB of float32, five rounds
    python benchmarks/fold.py --megabytes 64 1024 --rounds 9
    python benchmarks/fold.py --clock cpu          on a machine that others use: CPU time, not wall
    python benchmarks/fold.py --rounds 40 --of best      there too: the least disturbed round

For every scheme, in the same run and in turn: foldmark, the tools that do the same, and the
machine's own limit, which is one pass of reads and the writes of the result with nothing computed
in between, through the cache or past it, whichever is faster. All figures are GB of float32 a
second; all use every core they can. A quotient above 1 means that foldmark is faster.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from foldmark.exact.catalog import INT4, INT8, UINT4, UINT8
from foldmark.exact.packing import LOW_NIBBLE_FIRST
from foldmark.kernels.affine import dequantize
from foldmark.kernels.fold import quantize_array
from foldmark.kernels.loops import divide
from foldmark.kernels.packed import dequantize_packed, quantize_packed
from foldmark.kernels.scratch import new_memory
from foldmark.kernels.threads import each, thread_count
from foldmark.kernels.vectors import BIT, WORD, WORDS, Stream, load, splat, walk, write
from foldmark.tensors.block import BlockShape, per_axis, per_group, per_tensor
from foldmark.tensors.scheme import Scheme, asymmetric, symmetric

COLUMNS = 4096
PIECE = 1 << 18
ONE = np.ones((1, 1), np.float32)
Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A scheme, and what does the same work elsewhere."""

    name: str
    scheme: Scheme
    fold: Work
    unfold: Work
    limits: dict[str, Work]
    limit_back: Work
    rivals: dict[str, Work]


@njit(nogil=True, error_model="numpy")
def _narrow(source: np.ndarray, target: np.ndarray) -> None:
    for i in range(target.size):
        target[i] = np.int8(source[i] >> np.int32(24))


@intrinsic
def _narrow_lanes(_typing: object, source: types.Type, target: types.Type) -> object:
    """Write the top bytes of int32 past the cache; both dense, the target on a cache line."""

    def code(context: object, builder: object, typed: object, arguments: object) -> object:
        order = context.make_tuple(builder, types.Tuple(()), ())
        read = Stream.of(context, builder, typed.args[0], arguments[0], 32)
        written = Stream.of(context, builder, typed.args[1], arguments[1], 8)

        def step(place: object, there: object, past: object) -> None:
            top = builder.lshr(load(builder, place, WORDS), splat(builder, WORD(24)))
            write(builder, top, order, types.int8, there, past)

        walk(builder, written.count.type(0), read.count, [read, written], step, BIT(1))
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(source, target), code


@njit(nogil=True, error_model="numpy")
def _narrow_past(source: np.ndarray, target: np.ndarray) -> None:
    _narrow_lanes(source, target)


@njit(nogil=True, error_model="numpy")
def _largest(source: np.ndarray) -> np.int32:
    # Reads everything and keeps one number a piece: what is read but not written.
    found = np.int32(0)
    for i in range(source.size):
        found = max(found, np.int32(source[i] & np.int32(0x7FFFFFFF)))
    return found


@njit(nogil=True, error_model="numpy")
def _widen(source: np.ndarray, target: np.ndarray) -> None:
    for i in range(target.size):
        target[i] = np.float32(source[i])


def stream_down(values: np.ndarray, ratio: int, narrow: Callable[..., None]) -> Work:
    """Return the work of reading all numbers once and writing one byte for `ratio` of them."""
    bits = values.view(np.int32).reshape(-1)

    def run() -> None:
        out = new_memory(bits.size // ratio, np.int8)

        def piece(first: int) -> None:
            part = bits[first : first + PIECE]
            if ratio == 1:
                narrow(part, out[first : first + PIECE])
            else:
                out[first // ratio : (first + PIECE) // ratio] = _largest(part) & 1

        each(piece, range(0, bits.size, PIECE))

    return run


def stream_up(count: int, ratio: int) -> Work:
    """Return the work of reading one byte for `ratio` numbers and writing them as float32."""
    codes = np.ones(count // ratio, np.int8)

    def run() -> None:
        out = np.empty(count, np.float32)

        def piece(first: int) -> None:
            target = out[first : first + PIECE]
            if ratio == 1:
                _widen(codes[first : first + PIECE], target)
            else:
                part = codes[first // ratio : (first + PIECE) // ratio]
                half = target.size // ratio
                for begin in range(0, target.size, half):
                    _widen(part, target[begin : begin + half])

        each(piece, range(0, count, PIECE))

    return run


def by_numpy(values: np.ndarray, scheme: Scheme) -> Work:
    """Return the usual few lines of numpy."""
    blocks = grouped(values, scheme.block)
    codes = scheme.codes
    spans = scheme.stores_zero_point

    def run() -> np.ndarray:
        if spans:
            low = np.minimum(blocks.min(-1, keepdims=True), 0)
            high = np.maximum(blocks.max(-1, keepdims=True), 0)
            scale = (high - low) / np.float32(codes.steps)
            zero = np.rint(codes.minimum - low / scale)
        else:
            scale = np.abs(blocks).max(-1, keepdims=True) / np.float32(codes.maximum)
            zero = np.float32(0)
        whole = np.rint(blocks / scale) + zero
        kind = np.int8 if codes.signed else np.uint8
        found = np.clip(whole, codes.minimum, codes.maximum).astype(kind)
        return packed_by_numpy(found) if codes.bits == 4 else found

    return run


def packed_by_numpy(codes: np.ndarray) -> np.ndarray:
    fields = codes.reshape(-1).view(np.uint8) & 15
    return fields[0::2] | fields[1::2] << 4


def grouped(values: np.ndarray, block: BlockShape) -> np.ndarray:
    """Return the values with one row for every block."""
    return values.reshape(-1, int(np.prod(block.of(values.shape))))


def by_torch(values: np.ndarray, scheme: Scheme) -> dict[str, Work]:
    """Return torch's range with its two ways to codes; 8 bits only, which is what it has."""
    try:
        import torch
    except ImportError:
        return {}
    if scheme.codes.bits != 8:
        return {}
    blocks = torch.from_numpy(grouped(values, scheme.block))
    kind = torch.qint8 if scheme.codes.signed else torch.quint8
    low_code, high_code = (-128, 127) if scheme.codes.signed else (0, 255)

    def parameters() -> tuple["torch.Tensor", "torch.Tensor"]:
        low, high = torch.aminmax(blocks, dim=1)
        if not scheme.stores_zero_point:
            scale = torch.maximum(-low, high) / 127
            return scale, torch.zeros(len(scale), dtype=torch.int32)
        low, high = low.clamp(max=0), high.clamp(min=0)
        scale = (high - low) / 255
        return scale, (low_code - torch.round(low / scale)).to(torch.int32)

    def quantize() -> object:
        scale, zero = parameters()
        if len(blocks) == 1:
            return torch.quantize_per_tensor(blocks, float(scale), int(zero), kind)
        return torch.quantize_per_channel(blocks, scale, zero, 0, kind)

    def fake() -> object:
        scale, zero = parameters()
        call = torch.fake_quantize_per_channel_affine
        return call(blocks, scale, zero, 0, low_code, high_code)

    return {"torch quantize": quantize, "torch fake quantize": fake}


def by_onnxruntime(values: np.ndarray, scheme: Scheme) -> dict[str, Work]:
    """Return ONNX Runtime's Python quantizer (per tensor and row) and its QuantizeLinear kernel."""
    if scheme.codes.bits != 8:
        return {}
    import onnxruntime
    from onnx import TensorProto, helper
    from onnxruntime.quantization.quant_utils import quantize_data

    blocks = grouped(values, scheme.block)
    kind = TensorProto.INT8 if scheme.codes.signed else TensorProto.UINT8
    found: dict[str, Work] = {}
    if len(blocks) <= 1 << 14:

        def quantizer() -> object:
            spans = scheme.stores_zero_point
            return [quantize_data(row, kind, symmetric=not spans) for row in blocks]

        found["ORT quantizer"] = quantizer
    shapes = {"x": list(blocks.shape), "s": [len(blocks)], "z": [len(blocks)]}
    types = {"x": TensorProto.FLOAT, "s": TensorProto.FLOAT, "z": kind}
    inputs = [helper.make_tensor_value_info(n, types[n], shapes[n]) for n in "xsz"]
    output = helper.make_tensor_value_info("y", kind, shapes["x"])
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], axis=0)
    graph = helper.make_graph([node], "fold", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    zeros = np.zeros(len(blocks), np.int8 if scheme.codes.signed else np.uint8)

    def kernel() -> object:
        scale = np.maximum(-blocks.min(1), blocks.max(1)) / np.float32(127)
        return session.run(None, {"x": blocks, "s": scale, "z": zeros})

    found["ORT QuantizeLinear"] = kernel
    return found


def by_gguf(values: np.ndarray, scheme: Scheme) -> dict[str, Work]:
    """Return ggml's quantizer through its Python binding: blocks of 32, symmetric."""
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError:
        return {}
    if scheme.stores_zero_point or scheme.block.extents != ((-1, 32),):
        return {}
    kind = GGMLQuantizationType.Q8_0 if scheme.codes.bits == 8 else GGMLQuantizationType.Q4_0
    return {f"gguf {kind.name}": lambda: quants.quantize(values, kind)}


def case(values: np.ndarray, name: str, scheme: Scheme) -> Case:
    """Return the work of one scheme on an array."""
    block, rule = scheme.block.of(values.shape), scheme.rule
    rivals = {"numpy": by_numpy(values, scheme)} | by_torch(values, scheme)
    rivals |= by_onnxruntime(values, scheme) | by_gguf(values, scheme)
    if scheme.codes.bits == 8:
        group = quantize_array(values, block, rule)
        parts = group.codes, group.scale, group.zero_point
        fold = lambda: quantize_array(values, block, rule)  # noqa: E731
        unfold = lambda: dequantize(*parts, rule.affine, block=block)  # noqa: E731
    else:
        packed = quantize_packed(values, block, rule, LOW_NIBBLE_FIRST)
        fold = lambda: quantize_packed(values, block, rule, LOW_NIBBLE_FIRST)  # noqa: E731
        unfold = lambda: dequantize_packed(  # noqa: E731
            packed, values.shape, block, rule, LOW_NIBBLE_FIRST
        )
    ratio = 8 // scheme.codes.bits
    ways = {"limit": _narrow} | ({"limit past the cache": _narrow_past} if ratio == 1 else {})
    limits = {way: stream_down(values, ratio, narrow) for way, narrow in ways.items()}
    return Case(name, scheme, fold, unfold, limits, stream_up(values.size, ratio), rivals)


def cases(values: np.ndarray, only: str) -> list[Case]:
    """Return every granularity with every width and symmetry whose name contains `only`."""
    blocks = {
        "tensor": per_tensor(),
        "row": per_axis(0),
        "group 128": per_group(128),
        "group 32": per_group(32),
    }
    kinds = {
        "int8": symmetric(INT8),
        "uint8": asymmetric(UINT8),
        "int4": symmetric(INT4),
        "uint4": asymmetric(UINT4),
    }
    return [
        case(values, f"{kind} {name}", Scheme(scheme.rule, block))
        for name, block in blocks.items()
        for kind, scheme in kinds.items()
        if only in f"{kind} {name}"
    ]


def cpu_seconds() -> float:
    """Return the CPU time of all threads, as if it were shared evenly by the cores."""
    return time.process_time() / thread_count()


OF = {"median": median, "best": min}
CLOCKS = {"wall": time.perf_counter, "cpu": cpu_seconds}


def seconds(work: Work, clock: Callable[[], float]) -> float:
    begin = clock()
    work()
    return clock() - begin


def measure(
    one: Case, rounds: int, clock: Callable[[], float], of: Callable[[list[float]], float]
) -> dict[str, float]:
    """Return the seconds of every contender, each run once in every round: median or best."""
    contenders = {"fold": one.fold} | one.limits
    contenders |= {"unfold": one.unfold, "limit back": one.limit_back} | one.rivals
    for work in contenders.values():
        work()  # loaded, and its memory touched
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, work in contenders.items():
            taken[name].append(seconds(work, clock))
    found = {name: of(times) for name, times in taken.items()}
    found["limit"] = min(found[name] for name in one.limits)
    return found


def show(one: Case, taken: dict[str, float], size: int) -> None:
    rate = {name: size / time_taken / 1e9 for name, time_taken in taken.items()}
    fold, back = rate["fold"], rate["unfold"]
    print(
        f"{one.name:16s} {fold:6.2f} {rate['limit']:6.2f} {fold / rate['limit']:6.2f}"
        f" {back:7.2f} {rate['limit back']:6.2f} {back / rate['limit back']:6.2f}"
    )
    for name in one.rivals:
        print(f"    {name:20s} {rate[name]:6.2f}  {fold / rate[name]:6.1f} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--of", choices=OF, default="median", help="of the rounds")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    # A fresh process folds by numpy until a compiled loop is loaded; this loads one.
    divide(ONE, np.zeros(1, np.int64), ONE, 1, ONE.copy())
    for megabytes in arguments.megabytes:
        rows = max(1, megabytes * (1 << 20) // 4 // COLUMNS)
        values = np.random.default_rng(0).standard_normal((rows, COLUMNS), dtype=np.float32)
        cores = f"{thread_count()} cores, GB/s by {arguments.clock} clock, {arguments.of} round"
        print(f"{megabytes} MB of float32, {rows} x {COLUMNS}, {cores}")
        print("                   fold  limit  share  unfold  limit  share")
        for one in cases(values, arguments.only):
            clock, of = CLOCKS[arguments.clock], OF[arguments.of]
            show(one, measure(one, arguments.rounds, clock, of), values.nbytes)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
