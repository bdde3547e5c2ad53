"""A model over 2 GiB through every command, with the memory that each took.

    python -m benchmarks.large_model --folder DIR     needs 6 GB of disk and 12 GB of memory

The model is written as a sparse file: five products of 10752 x 10752 in float32, 2.31 GB, of
which every 32nd row holds numbers. No protobuf can carry it, so whatever serialises a model on
the way fails here.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

SIDE, PRODUCTS, EVERY = 10752, 5, 32
_CHILD = """
import re, sys
from foldmark.cli.main import run
code = run(sys.argv[1:])
found = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())
print("peak", int(found[1]) // 1024, file=sys.stderr)
sys.exit(code)
"""


def write_model(folder: Path) -> Path:
    """Write the float model and its sparse file of weights."""
    draw = np.random.default_rng(0)
    size = SIDE * SIDE * 4
    stored, nodes, value = [], [], "x"
    with (folder / "weights.bin").open("wb") as file:
        for index in range(PRODUCTS):
            for row in range(0, SIDE, EVERY):
                file.seek(index * size + row * SIDE * 4)
                file.write((draw.standard_normal(SIDE) / 18).astype(np.float32).tobytes())
            tensor = TensorProto(
                name=f"w{index}", dims=[SIDE, SIDE], data_type=TensorProto.FLOAT,
                data_location=TensorProto.EXTERNAL,
            )  # fmt: skip
            place = {"location": "weights.bin", "offset": index * size, "length": size}
            for key, text in place.items():
                tensor.external_data.add(key=key, value=str(text))
            stored.append(tensor)
            made = "y" if index == PRODUCTS - 1 else f"h{index}"
            nodes.append(helper.make_node("MatMul", [value, f"w{index}"], [made], f"p{index}"))
            value = made
        file.truncate(PRODUCTS * size)
    graph = helper.make_graph(
        nodes, "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", SIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", SIDE])],
        stored,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "large.onnx")
    np.savez(folder / "d.npz", x=draw.standard_normal((16, SIDE)).astype(np.float32))
    return folder / "large.onnx"


def run(name: str, *arguments: str) -> bool:
    """Run a command in a process of its own and print what it took."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *arguments], check=False, capture_output=True, text=True
    )
    lines = done.stderr.strip().splitlines() or ["no message"]
    peak = lines[-1].removeprefix("peak ") if lines[-1].startswith("peak ") else "?"
    said = done.stdout.strip().splitlines()[0] if done.stdout.strip() else lines[0]
    print(
        f"| {name} | {done.returncode} | {time.perf_counter() - begin:.0f} | {peak} | {said[:90]} |"
    )
    sys.stdout.flush()
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        folder = Path(scratch)
        model, data, out = str(write_model(folder)), str(folder / "d.npz"), folder / "q.onnx"
        print("| command | exit | seconds | peak MB | said |\n|---|---:|---:|---:|---|")
        modes = {
            "static": ["--data", data],
            "weight-only 4": ["--mode", "weight-only"],
            "dynamic": ["--mode", "dynamic"],
            "float16": ["--mode", "float16"],
            "weight-only 8": ["--mode", "weight-only", "--bits", "8"],
        }
        for name, options in modes.items():
            if arguments.only not in name:
                continue
            run(f"quantize, {name}", "quantize", model, "-o", str(out), "--force", *options)
            if name == "static" and out.exists():
                run("verify, static", "verify", str(out), "--float", model, "--data", data)
                run("explain, static", "explain", model, str(out), "--data", data)
            out.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
