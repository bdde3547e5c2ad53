"""Inspect files of gigabytes in little memory: python benchmarks/inspect_file.py [gigabytes]

    python benchmarks/inspect_file.py 16                    a sparse GGUF, and one of random codes
    python benchmarks/inspect_file.py 1 --format torch nf4  random codes in files of other formats
    python benchmarks/inspect_file.py --measure FILE        any model that is one file

The GGUF has the shape of a Q4_K_M model and takes no room on disk; the one of random codes has
1 GB. Each file is inspected as often as --times says, in a process of its own that imports foldmark
first; printed are GB/s of file from the page cache, seconds of processor time with the imports, and
the most memory that the process ever held. Other formats need 2 GB of memory to be written.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

# ggml type -> (type number, elements and bytes of a block, part of the file)
MIXTURE = {
    "Q4_K": (12, 256, 144, 0.70),
    "Q6_K": (14, 256, 210, 0.20),
    "Q8_0": (8, 32, 34, 0.08),
    "F16": (1, 1, 2, 0.02),
}
COLUMNS = 4096
ROWS = 16384
ALIGNMENT = 32


def text(words: str) -> bytes:
    return len(words).to_bytes(8, "little") + words.encode()


def write_model(path: Path, size: int, filled: bool) -> None:
    """Write a header for about `size` bytes of tensors; the tensors are holes, or random."""
    tensors = []
    for kind, (number, elements, nbytes, share) in MIXTURE.items():
        row = COLUMNS // elements * nbytes
        whole = int(size * share)
        while whole > 0:
            rows = min(ROWS, max(1, whole // row))
            tensors.append((f"{kind}.{len(tensors)}", number, rows, rows * row))
            whole -= rows * row
    header = b"GGUF" + (3).to_bytes(4, "little") + len(tensors).to_bytes(8, "little") + bytes(8)
    offset = 0
    for name, number, rows, nbytes in tensors:
        dims = COLUMNS.to_bytes(8, "little") + rows.to_bytes(8, "little")
        place = number.to_bytes(4, "little") + offset.to_bytes(8, "little")
        header += text(name) + (2).to_bytes(4, "little") + dims + place
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    start = -(-len(header) // ALIGNMENT) * ALIGNMENT
    with path.open("wb") as file:
        file.write(header.ljust(start, b"\0"))
        if filled:
            noise = random.Random(0).randbytes(1 << 24)
            for at in range(0, offset, len(noise)):
                file.write(noise[: offset - at])
        file.truncate(start + offset)


def measure(path: Path) -> None:
    """Inspect in this process and print what it took."""
    from foldmark.compare.inspection import inspect_artefact
    from foldmark.formats.opening import open_artefact

    start = time.perf_counter()
    artefact = open_artefact(path)
    inspection = inspect_artefact(artefact)
    seconds = time.perf_counter() - start
    usage = resource.getrusage(resource.RUSAGE_SELF)
    assert sum(inspection.account.values()) == artefact.size == path.stat().st_size
    peak = usage.ru_maxrss / 1024
    figures = {
        "tensors": len(inspection.reports),
        "gigabytes": artefact.size / 1e9,
        "seconds": seconds,
        "processor_seconds": usage.ru_utime + usage.ru_stime,
        "megabytes": peak,
    }
    print(json.dumps(figures))


def noise(nbytes: int) -> bytes:
    piece = random.Random(0).randbytes(1 << 24)
    return (piece * (nbytes // len(piece) + 1))[:nbytes]


def codes(size: int) -> dict[str, np.ndarray]:
    """Return int8 weights of about so many bytes, with a scale for each row."""
    rows = max(1, min(ROWS, size // COLUMNS))
    one = np.frombuffer(noise(rows * COLUMNS), np.int8).reshape(rows, COLUMNS)
    scale = np.linspace(0.01, 0.02, rows, dtype=np.float32)[:, None]
    arrays = {}
    for index in range(max(1, size // one.nbytes)):
        arrays |= {f"l{index}.weight": one, f"l{index}.weight_scale": scale}
    return arrays


def write_safetensors(path: Path, arrays: dict[str, np.ndarray]) -> None:
    names = {"int8": "I8", "uint8": "U8", "int32": "I32", "float32": "F32", "float16": "F16"}
    header, place = {}, 0
    for name, array in arrays.items():
        span = [place, place + array.nbytes]
        kind = names[array.dtype.name]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": span}
        place += array.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(array.data)


def int8_rows(path: Path, size: int) -> None:
    write_safetensors(path, codes(size))


def one_int8_tensor(path: Path, size: int) -> None:
    rows = size // COLUMNS
    weight = np.frombuffer(noise(rows * COLUMNS), np.int8).reshape(rows, COLUMNS)
    scale = np.linspace(0.01, 0.02, rows, dtype=np.float32)[:, None]
    write_safetensors(path, {"l.weight": weight, "l.weight_scale": scale})


def nf4(path: Path, size: int) -> None:
    rows = size * 16 // 9 // COLUMNS  # a byte holds two codes, and 64 codes have a scale
    shape, blocks = [rows, COLUMNS], rows * COLUMNS // 64
    state = json.dumps({"shape": shape, "blocksize": 64, "quant_type": "nf4"}).encode()
    packed = np.frombuffer(noise(rows * COLUMNS // 2), np.uint8)[:, None]
    arrays = {
        "l.weight": packed,
        "l.weight.absmax": np.linspace(0.1, 0.2, blocks, dtype=np.float32),
        "l.weight.quant_map": np.linspace(-1, 1, 16, dtype=np.float32),
        "l.weight.quant_state.bitsandbytes__nf4": np.frombuffer(state, np.uint8),
    }
    write_safetensors(path, arrays)


def gptq(path: Path, size: int) -> None:
    columns = size * 2 // COLUMNS // 128 * 128
    words = np.frombuffer(noise(columns * COLUMNS // 2), np.int32).reshape(-1, COLUMNS)
    groups = columns // 128
    arrays = {
        "l.qweight": words,
        "l.qzeros": np.zeros((groups, COLUMNS // 8), np.int32),
        "l.scales": np.full((groups, COLUMNS), 0.01, np.float16),
    }
    write_safetensors(path, arrays)


def float16(path: Path, size: int) -> None:
    one = np.frombuffer(noise(ROWS * COLUMNS * 2), np.float16).reshape(ROWS, COLUMNS)
    write_safetensors(path, {f"l{i}": one for i in range(max(1, size // one.nbytes))})


def torch_dict(path: Path, size: int) -> None:
    import torch

    torch.save({name: torch.from_numpy(array.copy()) for name, array in codes(size).items()}, path)


def npy(path: Path, size: int) -> None:
    with path.open("wb") as file:
        np.save(file, np.frombuffer(noise(size // 4 * 4), np.int32).view(np.float32))


def npy_in_columns(path: Path, size: int) -> None:
    rows = size // COLUMNS // 4
    array = np.frombuffer(noise(rows * COLUMNS * 4), np.float32).reshape(COLUMNS, rows).T
    with path.open("wb") as file:
        np.save(file, array)


def npz(path: Path, size: int) -> None:
    with path.open("wb") as file:
        np.savez(file, **codes(size))


def onnx_numbers(path: Path, kind: str, count: int, field: int, numbers: bytes) -> None:
    """Write a model of one tensor and what dequantizes it; raw_data is field 9, lists others."""
    from onnx import TensorProto, helper

    def holding(number: int, *payload: bytes) -> bytes:
        length, head = sum(map(len, payload)), bytearray([number << 3 | 2])
        while length >= 0x80:
            head.append(length & 0x7F | 0x80)
            length >>= 7
        return b"".join([bytes([*head, length]), *payload])

    number = getattr(TensorProto, kind)
    tensor = TensorProto(name="w", data_type=number, dims=[count]).SerializeToString()
    frame = helper.make_model(helper.make_graph([], "g", [], []))
    frame.ClearField("graph")
    initializer = holding(5, tensor, holding(field, numbers))
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.5]).SerializeToString()
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["y"]).SerializeToString()
    graph = (holding(1, node), holding(2, b"g"), initializer, holding(5, scale))
    path.write_bytes(frame.SerializeToString() + holding(7, *graph))


def onnx_bytes(path: Path, size: int) -> None:
    onnx_numbers(path, "FLOAT", size // 4, 9, noise(size // 4 * 4))


def onnx_lists(path: Path, size: int) -> None:
    onnx_numbers(path, "FLOAT", size // 4, 4, noise(size // 4 * 4))


def onnx_integers(path: Path, size: int) -> None:
    small = np.frombuffer(noise(size), np.uint8) & 0x7F  # a number below 128 takes one byte
    onnx_numbers(path, "INT8", size, 5, small.tobytes())


def onnx_halves(path: Path, size: int) -> None:
    pairs = np.frombuffer(noise(size // 2 * 2), np.uint8).reshape(-1, 2) & 0x7F
    onnx_numbers(path, "FLOAT16", len(pairs), 5, (pairs | np.uint8([0x80, 0])).tobytes())


# format -> who writes such a file of about so many bytes
WRITERS: dict[str, Callable[[Path, int], None]] = {
    "int8-rows": int8_rows,
    "one-tensor": one_int8_tensor,
    "nf4": nf4,
    "gptq": gptq,
    "float16": float16,
    "torch": torch_dict,
    "npy": npy,
    "npy-columns": npy_in_columns,
    "npz": npz,
    "onnx": onnx_bytes,
    "onnx-lists": onnx_lists,
    "onnx-integers": onnx_integers,
    "onnx-halves": onnx_halves,
}


def report(name: str, path: Path, times: int) -> None:
    for _ in range(times):
        command = [sys.executable, __file__, "--measure", str(path)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        got = json.loads(answer)
        print(
            f"{name:<14}{got['gigabytes']:>7.2f} GB{got['tensors']:>5} tensors"
            f"{got['seconds']:>7.2f} s{got['gigabytes'] / got['seconds']:>6.2f} GB/s"
            f"{got['processor_seconds']:>7.2f} s of processor"
            f"{got['megabytes']:>5.0f} MB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gigabytes", nargs="?", type=float, default=16)
    parser.add_argument("--format", nargs="+", choices=WRITERS, default=[])
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    if asked.measure is not None:
        measure(asked.measure)
        return
    size = int(asked.gigabytes * 1e9)
    if asked.write is not None:
        WRITERS[asked.format[0]](asked.write, size)
        return
    with tempfile.TemporaryDirectory() as folder:
        if not asked.format:
            path = Path(folder) / "model.gguf"
            write_model(path, int(1e9), filled=True)
            report("random codes", path, asked.times)
            path.unlink()
            write_model(path, size, filled=False)
            report("sparse", path, asked.times)
        for name in asked.format:
            path = Path(folder) / "model"
            # in a process of its own: the most memory that one held, its children begin with
            command = [sys.executable, __file__, str(asked.gigabytes), "--format", name]
            subprocess.run([*command, "--write", str(path)], check=True)
            report(name, path, asked.times)
            path.unlink()


if __name__ == "__main__":
    main()
