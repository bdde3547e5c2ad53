"""What explaining costs, in forward passes: MiniLM, static QDQ, 16 samples of 64 tokens.

    python benchmarks/explain.py                 on a machine of your own
    python benchmarks/explain.py --clock cpu     on one that others use, by one thread
    python benchmarks/explain.py --only memory   one part: ten, MatMul, everywhere or memory

For about 10, 132 and 1,000 quantization sites: recording the errors of a batch, the path
integral with 2 and 4 nodes, and leaving one site out at a time, each in units of one forward
pass of the float model by ONNX Runtime at its best. Then the time from a recorded batch of new
shapes to a derivative that is ready to run, how much of the time reading the errors once a node
must take at the rate at which this machine reads memory, and peak memory against a forward pass
that returns every site's tensor.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, version_converter

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.models.copies import Copy, quantized
from tests.models.minilm import SENTENCES, minilm, tokens

from foldmark.graphs.derivative.facts import element_types
from foldmark.graphs.emitter import Emitter
from foldmark.graphs.reading.read import read_quantized
from foldmark.graphs.sites import QuantizedGraph
from foldmark.ledger.recording import Recording, is_stored
from foldmark.ledger.replay import Replay
from foldmark.runtimes.onnxruntime import Session, available_threads

SAMPLES, LENGTH = 16, 64
OUTPUT = "sentence_embedding"
LEFT_OUT = 6

Feeds = Mapping[str, NDArray[np.generic]]


def batch() -> Feeds:
    """Return 16 texts that fill 64 tokens: each sentence said again until it does."""
    ids = tokens(SENTENCES[:SAMPLES], LENGTH)["input_ids"]
    mask = tokens(SENTENCES[:SAMPLES], LENGTH)["attention_mask"]
    full = np.empty((SAMPLES, LENGTH), np.int64)
    for row, (line, count) in enumerate(zip(ids, mask.sum(1), strict=True)):
        inner = np.resize(line[1 : count - 1], LENGTH - 2)
        full[row] = [line[0], *inner, line[count - 1]]
    return {"input_ids": full, "attention_mask": np.ones_like(full)}


def quantized_products() -> QuantizedGraph:
    """Return ONNX Runtime's static QDQ copy with every MatMul quantized: 132 sites."""
    copy = quantized(minilm(), Copy.QDQ, tokens(SENTENCES, LENGTH), ("MatMul",))
    return read_quantized(onnx.load(copy), onnx.load(minilm()))


def few_sites() -> QuantizedGraph:
    """Return ten of those sites, spread over the graph."""
    graph = quantized_products()
    chosen = np.linspace(0, len(graph.sites) - 1, 10).astype(int)
    return replace(graph, sites=tuple(graph.sites[i] for i in chosen))


def quantized_everywhere() -> QuantizedGraph:
    """Return a copy quantized at every tensor and, by 16 and by 8 bits, at every reader of it."""
    # 16-bit pairs need operator set 21, where some operators take their axes another way.
    model = version_converter.convert_version(onnx.load(minilm()), 21)
    pairs = _Pairs(model)
    for node in pairs.take_nodes():
        node.input[:] = [pairs.for_reader(name) for name in node.input]
        pairs.add(node)
        for i, name in enumerate(node.output):
            node.output[i] = pairs.for_writer(name)
    return read_quantized(pairs.finished(), model)


class _Pairs:
    """Puts QuantizeLinear and DequantizeLinear around the values of a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = onnx.ModelProto()
        self._model.CopyFrom(model)
        types = element_types(model)
        weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self._weights = {n: w for n, w in weights.items() if w.dtype == np.float32 and w.ndim}
        made = [name for node in model.graph.node for name in node.output]
        floats = [n for n in made if types.get(n) == np.float32 and n != OUTPUT]
        self._tops = {
            name: float(np.abs(array).max())
            for name, array in Session(model, taps=floats).run(batch()).items()
            if array.ndim
        }
        self._stored: dict[str, str] = {}
        self._count = 0

    def take_nodes(self) -> list[onnx.NodeProto]:
        nodes = list(self._model.graph.node)
        del self._model.graph.node[:]
        return [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]

    def add(self, node: onnx.NodeProto) -> None:
        self._pending = self._model.graph.node.add()
        self._pending.CopyFrom(node)

    def for_reader(self, name: str) -> str:
        if name in self._weights:
            return self._weight(name)
        if name not in self._tops:
            return name
        return self._pair(self._pair(name, name, 32767, np.int16), name, 127, np.int8)

    def for_writer(self, name: str) -> str:
        if name in self._tops:
            plain = f"{name}_plain"
            index = list(self._pending.output).index(name)
            self._pending.output[index] = plain
            self._pair(plain, name, 127, np.int8, output=name)
        return name

    def finished(self) -> onnx.ModelProto:
        for entry in self._model.opset_import:
            if entry.domain == "":
                entry.version = 21  # 16-bit codes came with it
        self._model.ir_version = 10
        return self._model

    def _weight(self, name: str) -> str:
        if name not in self._stored:
            array = self._weights[name]
            step = np.float32(np.abs(array).max() / 127 or 1)
            codes = np.rint(array / step).astype(np.int8)
            stored = self._constant(f"{name}_quantized", codes)
            self._stored[name] = self._decode(stored, step, np.int8, f"{name}_dequantized")
        return self._stored[name]

    def _pair(self, value: str, name: str, most: int, dtype: type, output: str = "") -> str:
        self._count += 1
        codes = f"{name}_codes_{self._count}"
        step = np.float32(self._tops[name] / most or 1)
        scale, zero = self._parameters(codes, step, dtype)
        self._node("QuantizeLinear", [value, scale, zero], codes)
        return self._decode(codes, step, dtype, output or f"{name}_dequantized_{self._count}")

    def _decode(self, codes: str, step: np.float32, dtype: type, output: str) -> str:
        scale, zero = self._parameters(output, step, dtype)
        return self._node("DequantizeLinear", [codes, scale, zero], output)

    def _parameters(self, base: str, step: np.float32, dtype: type) -> tuple[str, str]:
        zero = self._constant(f"{base}_zero_point", np.zeros((), dtype))
        return self._constant(f"{base}_scale", step), zero

    def _constant(self, name: str, value: NDArray[np.generic] | np.generic) -> str:
        self._model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _node(self, operator: str, inputs: list[str], output: str) -> str:
        node = helper.make_node(operator, inputs, [output], name=output)
        self._model.graph.node.append(node)
        return output


def one_minus_cosine(emitter: Emitter) -> str:
    """Append the sum over samples of 1 - cosine to the float embedding, in double precision."""
    y = emitter.emit("Cast", OUTPUT, to=TensorProto.DOUBLE)
    square = emitter.reduce_sum(emitter.multiply(y, y), [1], keep=1)
    apart = emitter.subtract(emitter.divide(y, emitter.emit("Sqrt", square)), "aim")
    half = emitter.constant(0.5, np.float64)
    return emitter.multiply(emitter.reduce_sum(emitter.multiply(apart, apart), [0, 1]), half)


def measured(output: NDArray[np.generic], aim: NDArray[np.float64]) -> float:
    y = output.astype(np.float64)
    y /= np.sqrt((y * y).sum(1, keepdims=True))
    return float(((y - aim) ** 2).sum() / 2)


def seconds(work: Callable[[], object]) -> float:
    began = TIMING.now()
    work()
    return TIMING.now() - began


class Timing:
    """How time is told: on the wall with all threads, or the processor's own with one."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = perf_counter
        self.threads, self.rounds, self.said = available_threads(), 3, "wall time"

    def by_processor(self) -> None:
        """Count what one thread takes of the processor, twice."""
        self.now = process_time
        self.threads, self.rounds, self.said = 1, 2, "processor time"


TIMING = Timing()


class Clock:
    """Times work in forward passes; the best of several rounds, forward passes in between."""

    def __init__(self) -> None:
        session, feeds = Session(minilm(), threads=TIMING.threads), batch()
        aim = session.run(feeds)[OUTPUT].astype(np.float64)
        self.aim = aim / np.sqrt((aim * aim).sum(1, keepdims=True))
        self._forward = lambda: session.run(feeds)
        self.forward = min(seconds(self._forward) for _ in range(TIMING.rounds))

    def best(self, work: Callable[[], object]) -> float:
        """Return the least seconds of several rounds, after one that warms up."""
        work()
        taken = []
        for _ in range(TIMING.rounds):
            self.forward = min(self.forward, *(seconds(self._forward) for _ in range(3)))
            taken.append(seconds(work))
        return min(taken)


def report(name: str, graph: QuantizedGraph, clock: Clock) -> None:
    feeds, inputs = batch(), {"aim": clock.aim}
    replay = Replay(graph, threads=TIMING.threads)
    recording = replay.record(feeds)
    build = seconds(lambda: replay.derive(recording, one_minus_cosine, inputs))

    def integral(nodes: int) -> Callable[[], object]:
        return lambda: replay.integrate(recording, one_minus_cosine, inputs, nodes=nodes)

    record = clock.best(lambda: replay.record(feeds))
    two, four = clock.best(integral(2)), clock.best(integral(4))
    left_out = [site.name for site in graph.sites[:LEFT_OUT]]
    each = clock.best(lambda: [_without(replay, recording, n) for n in left_out]) / LEFT_OUT
    unit = clock.forward
    print(
        f"{name:<12} {len(graph.sites):>5} {record / unit:>8.1f} {two / unit:>7.1f} "
        f"{four / unit:>7.1f} {(record + two) / unit:>9.1f} {(record + four) / unit:>9.1f} "
        f"{each * len(graph.sites) / unit:>11.0f} {build:>8.2f}"
    )
    start = measured(recording.start[OUTPUT], clock.aim)
    change = measured(replay.outputs(recording, 1.0)[OUTPUT], clock.aim) - start
    errors = [
        replay.integrate(recording, one_minus_cosine, inputs, nodes=n).total / change - 1
        for n in (2, 4)
    ]
    moved = sum(recording.delta[site.name].nbytes for site in graph.sites if not is_stored(site))
    READ.append((len(graph.sites), len(replay.places), moved / 1e9))
    CLOSURES.append(
        f"  {len(graph.sites)} sites: change {change / SAMPLES:.4f}, sum of entries / change - 1 = "
        f"{errors[0]:+.1e} with 2 nodes, {errors[1]:+.1e} with 4"
    )


CLOSURES: list[str] = []
READ: list[tuple[int, int, float]] = []


def gigabytes_a_second() -> float:
    """Return the rate at which the threads together sum an array too large for a cache."""
    array, threads = np.ones(128_000_000, np.float32), TIMING.threads
    with ThreadPoolExecutor(threads) as pool:
        parts = np.array_split(array, threads)
        least = min(seconds(lambda: list(pool.map(np.sum, parts))) for _ in range(3))
    return array.nbytes / least / 1e9


def _without(replay: Replay, recording: Recording, name: str) -> object:
    return replay.outputs(recording, 1.0, without=[name])


def peak_megabytes(what: str) -> float:
    """Return the peak memory of a fresh process that does `what`."""
    done = subprocess.run(
        [sys.executable, __file__, what], check=True, capture_output=True, text=True
    )
    return float(done.stdout.split()[-1])


def in_a_process_of_its_own(what: str) -> None:
    """Do one thing and print this process's peak memory in MB."""
    graph, feeds = quantized_products(), batch()
    if what == "tapped":
        taps = [site.tensor for site in graph.sites if not is_stored(site)]
        tapped = Session(graph.skeleton, taps=taps)
        tapped.run(feeds)
    elif what == "explained":
        aim = np.eye(SAMPLES, 384)
        replay = Replay(graph)
        recording = replay.record(feeds)
        replay.integrate(recording, one_minus_cosine, {"aim": aim}, nodes=4)
    # Not getrusage: its peak counts what the parent held when this process was forked.
    status = Path("/proc/self/status").read_text()
    print(int(status.split("VmHWM:")[1].split()[0]) / 1024)


GRAPHS = {"ten": few_sites, "MatMul": quantized_products, "everywhere": quantized_everywhere}


def report_time(names: Sequence[str]) -> None:
    """Print what explaining takes for some of the graphs."""
    clock = Clock()
    print(f"MiniLM, {SAMPLES} x {LENGTH} tokens, {TIMING.said}, threads: {TIMING.threads}")
    print("in forward passes of the float model (one is the unit); build in seconds")
    print(
        f"{'':<12} {'sites':>5} {'record':>8} {'K=2':>7} {'K=4':>7} "
        f"{'rec.+K=2':>9} {'rec.+K=4':>9} {'one by one':>11} {'build':>8}"
    )
    for name in names:
        report(name, GRAPHS[name](), clock)
    print(f"one forward pass: {clock.forward * 1000:.0f} ms")
    print(f"one by one: {LEFT_OUT} sites measured, multiplied by the number of sites")
    rate = gigabytes_a_second()
    print(f"\nerrors of activations, read once a node at {rate:.1f} GB/s")
    for sites, places, size in READ:
        passes = size / rate / clock.forward
        print(f"  {sites} sites in {places} places: {1000 * size:.0f} MB, {passes:.1f} passes")
    print("\nclosure")
    print("\n".join(CLOSURES))


def report_memory() -> None:
    """Print the peak memory of explaining beside that of a forward pass with taps."""
    read, tapped, explained = (peak_megabytes(w) for w in ("read", "tapped", "explained"))
    print("\npeak memory (MatMul, 4 nodes)")
    print(f"  models read                      {read:>7.0f} MB")
    print(f"  forward pass, every site tapped  {tapped:>7.0f} MB")
    print(f"  recorded and explained           {explained:>7.0f} MB")
    print(f"  ratio {explained / tapped:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="What explaining costs, in forward passes.")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--only", choices=(*GRAPHS, "memory"), help="one part")
    parser.add_argument("memory", nargs="?", choices=("read", "tapped", "explained"))
    given = parser.parse_args()
    if given.memory:
        in_a_process_of_its_own(given.memory)
        return
    if given.clock == "cpu":
        TIMING.by_processor()
    minilm()
    if given.only != "memory":
        report_time([given.only] if given.only else list(GRAPHS))
    if given.only in (None, "memory"):
        report_memory()


if __name__ == "__main__":
    main()
