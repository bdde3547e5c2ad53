"""foldmark's static quantization beside the tools that people use, in the same run.

Run it with the test extra installed:

    python -m benchmarks.quantize                     time and quality, min-max and percentile
    python -m benchmarks.quantize --memory            peak memory with 16, 64 and 256 samples
    python -m benchmarks.quantize --python PATH       NNCF and AIMET too, of that interpreter
    python -m benchmarks.quantize --clock cpu         on a machine that others use, by one thread

Each tool quantizes in fresh processes, the tools in turn; seconds are from the path of the float
model to the path of the quantized one, the least of the repeats, without and with the process's
start and its imports. The row `float run` opens the float model and runs it on the samples and
does nothing else: min-max costs at least that much. Quality and speed are what foldmark verify
measures on held-out samples, float and quantized in turns. With --clock cpu each process has one
core, and its own processor time counts. FOLDMARK_BENCH_PYTHON stands for --python.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

SMOOTH = "foldmark, smoothquant"
FLOAT_RUN = "float run"
FOLDMARK, ONNX_RUNTIME, SAME = "foldmark", "onnxruntime", "onnxruntime, same operators"
ELSEWHERE = ("nncf", "aimet")
WALL, CPU = "seconds", "processor"
MIN_MAX, PERCENTILE, ENTROPY = "min-max", "percentile", "entropy"
_CHILD = Path(__file__).with_name("quantizers.py")


class Cost(NamedTuple):
    """What one quantization took: seconds alone and with the whole process, peak memory."""

    seconds: float
    process: float
    megabytes: float


class Subject(NamedTuple):
    """A float model, samples for ranges (as many as asked for) and others for scoring."""

    name: str
    model: Path
    samples: dict[str, np.ndarray]
    held_out: dict[str, np.ndarray]
    score: Any = None


def subjects(count: int, pairs: Path | None) -> Iterator[Subject]:
    from tests.models.digits import held_out, images, residual_network
    from tests.models.minilm import SENTENCES, minilm, tokens

    seen = tokens((SENTENCES * (count // len(SENTENCES) + 1))[:count], 64)
    turned = tokens(tuple(" ".join(reversed(each.split())) for each in SENTENCES), 64)
    if pairs is None:
        yield Subject("MiniLM-L6", minilm(), seen, turned)
    else:
        held, score = sentence_pairs(pairs)
        yield Subject("MiniLM-L6", minilm(), seen, held, score)
    cnn = {"image": images()[0][:count]}
    yield Subject("residual CNN", residual_network(), cnn, held_out(400))


def sentence_pairs(path: Path) -> tuple[dict[str, np.ndarray], Any]:
    """Return sentences of an STS file, firsts before seconds, and Spearman against its scores."""
    from scipy.stats import spearmanr
    from tests.models.minilm import tokens

    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if len(row) >= 7][:500]
    human = np.array([float(row[4]) for row in rows])
    sentences = [row[5] for row in rows] + [row[6] for row in rows]

    def score(outputs: Any, _labels: Any) -> float:
        (embedding,) = outputs.values()
        first, second = np.split(embedding, 2)
        return float(spearmanr((first * second).sum(1), human).statistic)

    return tokens(tuple(sentences), 64), score


def run_tool(
    python: str, tool: str, ranges: str, paths: tuple[Path, Path, Path], clock: str
) -> Cost | str:
    """Quantize in a fresh process; return what it cost, or the last line of its complaint."""
    begin, used = time.perf_counter(), _children()
    done = subprocess.run(
        [python, str(_CHILD), tool, ranges, *map(str, paths)],
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=_one_core if clock == CPU else None,
    )
    whole = {WALL: time.perf_counter() - begin, CPU: _children() - used}[clock]
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1][:100]
    found = json.loads(done.stdout.splitlines()[-1])
    return Cost(found[clock], whole, found["megabytes"])


def _children() -> float:
    """Return the processor time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def interpreters(python: str | None, ranges: str) -> dict[str, str]:
    """Return tool -> interpreter for what can be compared here."""
    tools = {FLOAT_RUN: sys.executable, FOLDMARK: sys.executable}
    tools |= {ONNX_RUNTIME: sys.executable, SAME: sys.executable}
    if python is not None and ranges == MIN_MAX:
        tools |= {SMOOTH: sys.executable} | dict.fromkeys(ELSEWHERE, python)
    return tools


def compare(subject: Subject, ranges: str, options: Any, scratch: Path) -> None:
    """Print one model's rows."""
    data = scratch / "samples.npz"
    np.savez(data, **subject.samples)  # type: ignore[arg-type]
    tools = interpreters(options.python, ranges)
    costs: dict[str, list[Cost | str]] = {tool: [] for tool in tools}
    for _ in range(options.repeats):
        for tool, interpreter in tools.items():
            if costs[tool] and isinstance(costs[tool][0], str):
                continue
            paths = subject.model, data, scratch / f"{tool}.onnx"
            costs[tool].append(run_tool(interpreter, tool, ranges, paths, options.clock))
    alone, whole = {}, {}
    for tool, each in costs.items():
        good = [cost for cost in each if isinstance(cost, Cost)]
        if not good:
            print(f"| {subject.name} | {ranges} | {tool} | {each[0]} | | | | | | |")
            continue
        alone[tool] = min(cost.seconds for cost in good)
        whole[tool] = min(cost.process for cost in good)
        peak = max(cost.megabytes for cost in good)
        cost = f"{alone[tool]:.2f} | {whole[tool]:.2f} | {peak:.0f}"
        made = scratch / f"{tool}.onnx"
        quality = measured(subject, made) if tool != FLOAT_RUN else " | | | "
        print(f"| {subject.name} | {ranges} | {tool} | {cost} | {quality} |", flush=True)
    for tool in [each for each in alone if each != FOLDMARK]:
        times = f"{alone[tool] / alone[FOLDMARK]:.1f} times"
        entire = f"{whole[tool] / whole[FOLDMARK]:.1f} times"
        print(f"| {subject.name} | {ranges} | {tool} / foldmark | {times} | {entire} | | | | | |")


def measured(subject: Subject, path: Path) -> str:
    """Return the cells of quality, speed and size."""
    from foldmark.errors import FoldmarkError
    from foldmark.proof.quality import measure_quality
    from foldmark.runtimes.batches import open_data
    from foldmark.runtimes.onnxruntime import Session
    from foldmark.runtimes.timing import compare_speed

    data = open_data(subject.held_out, onnx.load(subject.model))
    feeds = next(iter(data.batches(8))).feeds
    try:
        real, other = Session(subject.model), Session(path)
        quality = measure_quality(real, other, data, score=subject.score, score_name="Spearman")
        timed = compare_speed(lambda: real.run(feeds), lambda: other.run(feeds), samples=8)
    except FoldmarkError as error:
        return f"{str(error)[:60]} | | | "
    task = quality.score
    score = "" if task is None else f"{task.quantized_score:.4f}"
    distance = max(each.cosine for each in quality.outputs)
    speed = f"{timed.ratio.value:.2f} [{timed.ratio.low:.2f}, {timed.ratio.high:.2f}]"
    return f"{distance:.1e} | {score} | {speed} | {path.stat().st_size / 1e6:.2f}"


def memory(ranges: str, python: str | None) -> None:
    """Print peak memory by number of samples."""
    counts = (16, 64, 256)
    print("| model | ranges | tool | " + " | ".join(f"MB, {n} samples" for n in counts) + " |")
    print("|---|---|---|" + "---:|" * len(counts))
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for at in range(2):
            peaks: dict[str, list[str]] = {}
            for count in counts:
                subject = list(subjects(count, None))[at]
                data = scratch / "samples.npz"
                np.savez(data, **subject.samples)  # type: ignore[arg-type]
                for tool, interpreter in interpreters(python, ranges).items():
                    paths = subject.model, data, scratch / "out.onnx"
                    cost = run_tool(interpreter, tool, ranges, paths, WALL)
                    cell = f"{cost.megabytes:.0f}" if isinstance(cost, Cost) else cost
                    peaks.setdefault(tool, []).append(cell)
            for tool, cells in peaks.items():
                print(f"| {subject.name} | {ranges} | {tool} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--ranges", nargs="*", default=[MIN_MAX, PERCENTILE])
    parser.add_argument("--only", default="", help="a part of a model's name")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--pairs", type=Path, help="an STS file: MiniLM's score against people's")
    parser.add_argument("--python", default=os.environ.get("FOLDMARK_BENCH_PYTHON"))
    clocks = {"wall": WALL, "cpu": CPU}
    parser.add_argument("--clock", choices=clocks, default="wall")
    arguments = parser.parse_args()
    arguments.clock = clocks[arguments.clock]
    if arguments.memory:
        for ranges in arguments.ranges:
            memory(ranges, arguments.python)
        return
    print(
        "| model | ranges | tool | seconds | with start | peak MB | 1 - cosine | score "
        "| times faster, batch 8 | MB |\n|---|---|---|---:|---:|---:|---:|---:|---:|---:|"
    )
    for subject in subjects(arguments.samples, arguments.pairs):
        if arguments.only not in subject.name:
            continue
        for ranges in arguments.ranges:
            with tempfile.TemporaryDirectory() as folder:
                compare(subject, ranges, arguments, Path(folder))


if __name__ == "__main__":
    main()
