"""foldmark's static quantization beside ONNX Runtime's, in the same run.

Run it with the test extra installed:

    python -m benchmarks.quantize

Each tool runs in a fresh process on the same model and samples; wall time and peak memory are
that process's, start-up left out of the time. Quality and speed are what foldmark verify
measures on held-out samples.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

FOLDMARK, ONNX_RUNTIME = "foldmark", "onnxruntime"


def quantize_with_foldmark(model: Path, data: Path, output: Path) -> float:
    from foldmark.recipes.quantize import quantize_model
    from foldmark.recipes.recipe import Recipe
    from foldmark.recipes.save import save_model

    begin = time.perf_counter()
    made = quantize_model(model, Recipe(), data)
    save_model(made.model, output)
    return time.perf_counter() - begin


def quantize_with_onnx_runtime(model: Path, data: Path, output: Path) -> float:
    """quant_pre_process and quantize_static, per channel, uint8 activations, one sample a time."""
    import logging

    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            arrays = dict(np.load(data))
            count = len(next(iter(arrays.values())))
            rows = ({k: v[i : i + 1] for k, v in arrays.items()} for i in range(count))
            self.rows = iter(rows)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

    logging.disable(logging.WARNING)
    begin = time.perf_counter()
    prepared = output.with_suffix(".prepared.onnx")
    quant_pre_process(str(model), str(prepared))
    quantize_static(
        str(prepared),
        str(output),
        Reader(),
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return time.perf_counter() - begin


TOOLS = {FOLDMARK: quantize_with_foldmark, ONNX_RUNTIME: quantize_with_onnx_runtime}


def run_tool(tool: str, model: Path, data: Path, output: Path) -> dict[str, float]:
    """Quantize in a fresh process; return its seconds and peak memory in MB."""
    arguments = [sys.executable, "-m", "benchmarks.quantize", "--tool", tool]
    done = subprocess.run(
        [*arguments, str(model), str(data), str(output)], check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def one_tool(arguments: argparse.Namespace) -> None:
    """Be the fresh process: quantize and print what it cost."""
    seconds = TOOLS[arguments.tool](*(Path(path) for path in arguments.paths))
    # The high-water mark of this process alone; getrusage would count the parent's before exec.
    status = Path("/proc/self/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024
    print(json.dumps({"seconds": seconds, "megabytes": peak}))


def models() -> dict[str, tuple[Path, dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Return name -> (float model, 64 calibration samples, held-out samples)."""
    from tests.models.digits import held_out, images, residual_network
    from tests.models.minilm import SENTENCES, minilm, tokens

    sentences = SENTENCES * 3
    encoded = tokens(sentences[:64], 64)
    turned = tuple(" ".join(reversed(sentence.split())) for sentence in SENTENCES)
    return {
        "MiniLM-L6": (minilm(), encoded, tokens(turned, 64)),
        "residual CNN": (residual_network(), {"image": images()[0][:64]}, held_out(400)),
    }


def compare(repeats: int) -> None:
    """Print the table."""
    from foldmark.proof.verify import verify

    print("| model | tool | seconds | peak MB | 1 - cosine | accuracy | ms a run | MB |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as scratch:
        for name, (model, samples, held) in models().items():
            data = Path(scratch) / "samples.npz"
            np.savez(data, **samples)
            times = {}
            for tool in TOOLS:
                output = Path(scratch) / f"{tool}.onnx"
                costs = [run_tool(tool, model, data, output) for _ in range(repeats)]
                best = min(costs, key=lambda cost: cost["seconds"])
                times[tool] = best["seconds"]
                proof = verify(output, model, held, batch_sizes=[8], seconds=1.0)
                score = proof.quality.score
                accuracy = "" if score is None else f"{score.quantized_score:.4f}"
                cosine = max(each.cosine for each in proof.quality.outputs)
                print(
                    f"| {name} | {tool} | {best['seconds']:.2f} | {best['megabytes']:.0f} "
                    f"| {cosine:.2e} | {accuracy} | {1e3 * proof.speeds[0].second.value:.2f} "
                    f"| {proof.size.total / 1e6:.2f} |"
                )
            ratio = times[ONNX_RUNTIME] / times[FOLDMARK]
            print(f"| {name} | ratio of times | {ratio:.1f} | | | | | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", choices=list(TOOLS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("paths", nargs="*")
    arguments = parser.parse_args()
    if arguments.tool:
        one_tool(arguments)
    else:
        compare(arguments.repeats)


if __name__ == "__main__":
    main()
