"""Inspect a file of many gigabytes in little memory: python benchmarks/inspect_file.py [gigabytes]

Makes a sparse GGUF of the shape that a Q4_K_M model has (it takes no room on disk), inspects it
twice and prints GB/s of file and the most memory that the process ever held. The second figures
are of real bytes: a file of 1 GB of random codes, read from the page cache.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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


def report(name: str, path: Path) -> None:
    for run in ("first", "again"):
        command = [sys.executable, __file__, "--measure", str(path)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        got = json.loads(answer)
        print(
            f"{name:<16}{run:<7}{got['gigabytes']:>7.2f} GB{got['tensors']:>6} tensors"
            f"{got['seconds']:>8.2f} s{got['gigabytes'] / got['seconds']:>8.2f} GB/s"
            f"{got['processor_seconds']:>8.2f} s of processor time"
            f"{got['megabytes']:>7.0f} MB at most",
            flush=True,
        )


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]))
        return
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 16
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_model(path, int(1e9), filled=True)
        report("random codes", path)
        path.unlink()
        write_model(path, int(gigabytes * 1e9), filled=False)
        report("sparse", path)


if __name__ == "__main__":
    main()
