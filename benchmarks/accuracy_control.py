"""`foldmark tune` beside NNCF's quantize_with_accuracy_control: one model, data and target.

    python -m benchmarks.accuracy_control --python PATH     the interpreter that has NNCF

Two networks of the test suite: the residual CNN as trained, and the same with one channel scaled
by 256 and the next layer's weights by 1/256, which changes nothing in float and costs per-tensor
activations most of their codes. FOLDMARK_BENCH_PYTHON stands for --python. Evaluations are runs of
a quantized model over all validation samples; score and speed are what foldmark verify measures
on samples that neither tool saw. NNCF scores single samples too, so its evaluations are the
samples that it scored, divided by how many there are.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

_SCALE, _CALIBRATION, _VALIDATION = 256.0, 64, 200


def planted(path: Path, folder: Path) -> Path:
    """Return a copy of the network that computes the same with one loud channel."""
    import onnx

    model = onnx.load(path)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    # A convolution, its ReLU, and the one convolution that reads it.
    for first in convolutions:
        relu = [n for n in model.graph.node if first.output[0] in n.input]
        readers = [n for n in model.graph.node if len(relu) == 1 and relu[0].output[0] in n.input]
        if len(readers) == 1 and readers[0].op_type == "Conv" and relu[0].op_type == "Relu":
            break
    for name, index, factor in (
        (first.input[1], (0,), _SCALE),
        (first.input[2], (0,), _SCALE),
        (readers[0].input[1], (slice(None), 0), 1 / _SCALE),
    ):
        array = onnx.numpy_helper.to_array(stored[name]).copy()
        array[index] *= np.float32(factor)
        stored[name].CopyFrom(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, folder / "planted.onnx")
    return folder / "planted.onnx"


def with_nncf(model: Path, data: Path, output: Path, max_drop: float) -> None:
    """Be the process that runs NNCF; print what it took."""
    import logging

    import nncf
    import onnx
    import onnxruntime

    logging.disable(logging.WARNING)
    arrays = dict(np.load(data))
    labels = arrays.pop("labels")
    scored = 0

    def accuracy(network: onnx.ModelProto, rows: object) -> float:
        nonlocal scored
        session = onnxruntime.InferenceSession(
            network.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        good = [
            session.run(None, {k: v for k, v in row.items() if k != "labels"})[0].argmax(-1)
            == row["labels"]
            for row in rows  # type: ignore[attr-defined]
        ]
        scored += len(good)
        return float(np.concatenate(good).mean())

    count = len(labels)
    rows = [{name: array[i : i + 1] for name, array in arrays.items()} for i in range(_CALIBRATION)]
    whole = arrays | {"labels": labels}
    valid = [{name: array[i : i + 1] for name, array in whole.items()} for i in range(count)]
    begin = time.perf_counter()
    made = nncf.quantize_with_accuracy_control(
        onnx.load(model),
        nncf.Dataset(rows),
        nncf.Dataset(valid),
        accuracy,
        max_drop=max_drop,
        subset_size=_CALIBRATION,
    )
    onnx.save(made, output)
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "evaluations": round(scored / count, 1)}))


def with_foldmark(model: Path, data: Path, output: Path, max_drop: float) -> None:
    """Be the process that runs foldmark tune; print what it took."""
    from dataclasses import replace

    from foldmark.formats.onnx_file import read_model
    from foldmark.runtimes.batches import open_data
    from foldmark.tuning.trial import Bench
    from foldmark.tuning.tune import Goal, tune

    samples = open_data(data, read_model(model))
    folder = output.with_suffix(".trials")
    folder.mkdir()
    begin = time.perf_counter()
    bench = Bench(model, samples, replace(samples, limit=_CALIBRATION), folder)
    found = tune(bench, Goal(max_drop), output)
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "evaluations": len(found.trials)}))


CHILDREN = {"foldmark tune": with_foldmark, "NNCF": with_nncf}


def compare(name: str, model: Path, python: str, max_drop: float, folder: Path) -> None:
    """Print one model's rows."""
    from tests.models.digits import images

    from foldmark.proof.verify import verify

    _, _, x, y = images()
    np.savez(folder / "valid.npz", image=x[:_VALIDATION], labels=y[:_VALIDATION])
    held = {"image": x[_VALIDATION:], "labels": y[_VALIDATION:]}
    for tool, interpreter in (("foldmark tune", sys.executable), ("NNCF", python)):
        output = folder / f"{tool.replace(' ', '-')}.onnx"
        done = subprocess.run(
            [interpreter, __file__, "--child", tool, str(model), str(folder / "valid.npz"),
             str(output), str(max_drop)], check=False, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no message"])[-1][:90]
            print(f"| {name} | {tool} | {said} | | | | |")
            continue
        cost = json.loads(done.stdout.splitlines()[-1])
        proof = verify(output, model, held, batch_sizes=[8], seconds=2.0)
        score, ratio = proof.quality.score, proof.speeds[0].ratio
        assert score is not None
        print(
            f"| {name} | {tool} | {cost['evaluations']} | {cost['seconds']:.1f} "
            f"| {score.float_score:.4f} -> {score.quantized_score:.4f} "
            f"| {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] "
            f"| {proof.size.total / 1e3:.0f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=os.environ.get("FOLDMARK_BENCH_PYTHON"))
    parser.add_argument("--max-drop", type=float, default=0.005)
    parser.add_argument("--child", choices=list(CHILDREN))
    parser.add_argument("rest", nargs="*")
    arguments = parser.parse_args()
    if arguments.child:
        model, data, output, drop = arguments.rest
        CHILDREN[arguments.child](Path(model), Path(data), Path(output), float(drop))
        return
    if arguments.python is None:
        parser.error("--python names the interpreter that has NNCF")
    from tests.models.digits import residual_network

    print("| model | tool | evaluations | seconds | accuracy | times faster, batch 8 | kB |")
    print("|---|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("residual CNN", "with one loud channel"):
            folder = Path(scratch) / name.replace(" ", "-")
            folder.mkdir()
            model = residual_network()
            model = planted(model, folder) if name.startswith("with") else model
            compare(name, model, arguments.python, arguments.max_drop, folder)


if __name__ == "__main__":
    main()
