"""Compare two checkpoints of seven billion weights: python -m benchmarks.diff_large

Makes three models of the shape of Llama-2-7B in safetensors shards, as sparse files: bfloat16 with
query, key and value as they are; int8 per row with those three in one tensor; int4 in groups of
128, as compressed-tensors packs it. Stripes of rows in every weight are real (quantized from the
same random numbers), the rest are holes that take no room on disk: what is timed is opening,
aligning and sampling at that size, from the page cache. Prints the seconds, the most memory that
the process ever held, the weights matched, and the verdict.
"""

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from foldmark import diff

LAYERS, WIDTH, INNER, WORDS = 32, 4096, 11008, 32000
STRIPES, STRIPE, FIRST = 8, 24, 144
GROUP = 128


def shapes() -> Iterator[tuple[str, tuple[int, int]]]:
    """The matrices of the model under Hugging Face's names."""
    yield "model.embed_tokens", (WORDS, WIDTH)
    for layer in range(LAYERS):
        for name in "qkvo":
            yield f"model.layers.{layer}.self_attn.{name}_proj", (WIDTH, WIDTH)
        yield f"model.layers.{layer}.mlp.gate_proj", (INNER, WIDTH)
        yield f"model.layers.{layer}.mlp.up_proj", (INNER, WIDTH)
        yield f"model.layers.{layer}.mlp.down_proj", (WIDTH, INNER)
    yield "lm_head", (WORDS, WIDTH)


def stripes(rows: int) -> list[int]:
    """First rows of the stripes that are filled; the first one is wide enough to tell a rule."""
    starts = [int(r) for r in np.linspace(0, rows - STRIPE, STRIPES)]
    return [*range(0, FIRST, STRIPE), *starts[1:]]


def numbers(seed: int, columns: int) -> np.ndarray:
    """A stripe of weights, bfloat16 held as float32."""
    drawn = np.random.default_rng(seed).normal(0, 0.02, (STRIPE, columns))
    return drawn.astype(ml_dtypes.bfloat16).astype(np.float32)


def bfloat16(w: np.ndarray) -> dict[str, np.ndarray]:
    return {".weight": w.astype(ml_dtypes.bfloat16).view(np.uint16)}


def int8(w: np.ndarray) -> dict[str, np.ndarray]:
    scale = np.abs(w).max(1, keepdims=True) / np.float32(127)
    codes = np.clip(np.rint(w / scale), -127, 127).astype(np.int8)
    return {".weight": codes, ".weight_scale": scale.astype(np.float32)}


def int4(w: np.ndarray) -> dict[str, np.ndarray]:
    groups = w.reshape(len(w), -1, GROUP)
    scale = np.abs(groups).max(2) / np.float32(7.5)
    codes = np.clip(np.rint(groups / scale[:, :, None]), -8, 7).reshape(w.shape).astype(np.int64)
    fields = (codes + 8).reshape(len(w), -1, 8) << np.arange(0, 32, 4)
    packed = fields.sum(2).astype(np.uint32).view(np.int32)
    return {".weight_packed": packed, ".weight_scale": scale.astype(np.float32)}


TYPES = {"uint16": "BF16", "int8": "I8", "float32": "F32", "int32": "I32", "int64": "I64"}


def write(folder: Path, encode: Callable[[np.ndarray], dict[str, np.ndarray]], fused: bool) -> None:
    """Write one checkpoint in four shards with their index."""
    folder.mkdir()
    plan: list[tuple[str, tuple[int, ...], list[tuple[int, np.ndarray]]]] = []
    for seed, (name, shape) in enumerate(shapes()):
        encoded = [
            (first, encode(numbers(seed * 100 + k, shape[1])))
            for k, first in enumerate(stripes(shape[0]))
        ]
        for suffix, example in encoded[0][1].items():
            whole = (shape[0], *example.shape[1:])
            plan.append((name + suffix, whole, [(first, e[suffix]) for first, e in encoded]))
        if ".weight_packed" in encoded[0][1]:
            plan.append((f"{name}.weight_shape", (2,), [(0, np.array(shape, np.int64))]))
    if fused:
        plan = list(in_one(plan))
    index = {}
    for shard in range(4):
        file = f"model-{shard + 1:05}-of-00004.safetensors"
        part = plan[shard::4]
        header, offset = {}, 0
        for name, shape, pieces in part:
            kind = pieces[0][1].dtype
            nbytes = int(np.prod(shape)) * kind.itemsize
            header[name] = {
                "dtype": TYPES[kind.name],
                "shape": list(shape),
                "data_offsets": [offset, offset + nbytes],
            }
            offset += nbytes
            index[name] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            start = out.tell()
            out.truncate(start + offset)
            for name, shape, pieces in part:
                row = int(np.prod(shape[1:])) * pieces[0][1].dtype.itemsize
                for first, piece in pieces:
                    out.seek(start + header[name]["data_offsets"][0] + first * row)
                    out.write(np.ascontiguousarray(piece).tobytes())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def in_one(plan: list) -> Iterator[tuple]:
    """Put query, key and value of each layer into one tensor."""
    parts = {name: (shape, pieces) for name, shape, pieces in plan}
    for name, (shape, pieces) in parts.items():
        if ".q_proj" in name:
            joined, first = [], 0
            for letter in "qkv":
                own, stripes_of = parts[name.replace("q_proj", f"{letter}_proj")]
                joined += [(first + at, piece) for at, piece in stripes_of]
                first += own[0]
            yield name.replace("q_proj", "qkv_proj"), (first, *shape[1:]), joined
        elif ".k_proj" not in name and ".v_proj" not in name:
            yield name, shape, pieces


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, encode, fused in (
            ("float", bfloat16, False),
            ("int8", int8, True),
            ("int4", int4, False),
        ):
            write(folder / name, encode, fused)
        weights = sum(rows * columns for _, (rows, columns) in shapes())
        size = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for title, original in (("without the float model", None), ("with it", folder / "float")):
            began = time.perf_counter()
            found = diff(folder / "int8", folder / "int4", float_model=original)
            seconds = time.perf_counter() - began
            print(f"{weights / 1e9:.2f} billion weights, {size / 1e9:.1f} GB of files, {title}:")
            print(
                f"  {seconds:.1f} s; {len(found.found.tensors)} weights matched, "
                f"{len(found.found.left_only) + len(found.found.right_only)} left over"
            )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"most memory held: {peak / 1024:.0f} MB, of it {before / 1024:.0f} before the first")
        print(found.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
