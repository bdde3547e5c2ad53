"""Damage small files of every format and read them: python -m benchmarks.fuzz [mutants] [format]

Each damaged file must end in an error of foldmark's own tree or a correct read, within a second
of processor time and within 500 MB on top of what the process holds before, and may open no file
outside its folder. A format runs in a process of its own,
so that a crash of the interpreter is seen too. Exit code 1 when anything else happened.
"""

import multiprocessing
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.formats.seeds import FORMATS, mutants, seed_files, write_files

from foldmark.compare.document import inspection_document
from foldmark.compare.inspection import inspect_artefact
from foldmark.errors import FoldmarkError
from foldmark.formats.opening import open_artefact

SECONDS = 1.0
MEMORY = 500 << 20


@dataclass
class Outcome:
    """What became of the mutants of one format."""

    read: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    peak: int = 0
    faults: list[str] = field(default_factory=list)


def read_fully(path: Path) -> None:
    artefact = open_artefact(path)
    try:
        inspection = inspect_artefact(artefact)
        if sum(inspection.account.values()) != artefact.size:
            raise AssertionError("the account of bytes does not sum to the file's size")
        inspection_document(inspection)
    finally:
        artefact.close()


def used_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Watch:
    """Notes every file that is opened outside a model's folder.

    Python's own files, temporary ones and what the system says of the machine are let pass.
    """

    def __init__(self, folder: str) -> None:
        own = (folder, sys.prefix, sys.base_prefix, str(Path.cwd()), tempfile.gettempdir() + "/tmp")
        self.allowed = (*map(os.path.realpath, own), "/proc", "/sys", "/dev")
        # A temporary file without a name is opened by the name of its folder.
        self.nameless = os.path.realpath(tempfile.gettempdir())
        self.outside: list[str] = []

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        """Take one of the interpreter's audit events."""
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            place = os.path.realpath(os.fsdecode(arguments[0]))
            if place != self.nameless and not place.startswith(self.allowed):
                self.outside.append(place)


def attack(name: str, count: int, answers: "multiprocessing.Queue[Outcome]") -> None:
    warnings.simplefilter("ignore")
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        seed = seed_files(name)
        main = write_files(Path(folder), seed)
        read_fully(main)  # imports and compiles what the format needs
        watch = Watch(folder)
        sys.addaudithook(watch)
        before = used_memory()
        written = seed
        for files in mutants(seed, count, seed=20267):
            for file, content in files.items():
                if written.get(file) != content:
                    (Path(folder) / file).write_bytes(content)
            written = files
            start = time.process_time()
            try:
                read_fully(main)
                outcome.read += 1
            except FoldmarkError as error:
                outcome.refused[error.code] += 1
                if not str(error).isprintable():
                    outcome.faults.append(f"unprintable message: {error!r}")
            except Exception:
                outcome.faults.append(traceback.format_exc())
            outcome.faults += [f"opened {place}" for place in watch.outside]
            watch.outside.clear()
            outcome.slowest = max(outcome.slowest, time.process_time() - start)
        outcome.peak = used_memory() - before
    answers.put(outcome)


def judge(name: str, count: int) -> bool:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=attack, args=(name, count, answers))
    process.start()
    outcome: Outcome | None = None
    while outcome is None and (process.is_alive() or not answers.empty()):
        try:
            outcome = answers.get(timeout=1)
        except Exception:
            continue
    process.join()
    if outcome is None:
        print(f"{name:<22} the process died with code {process.exitcode}")
        return False
    refused = " ".join(f"{code}:{n}" for code, n in sorted(outcome.refused.items()))
    print(
        f"{name:<22}{count:>8}{outcome.read:>8}{sum(outcome.refused.values()):>9}"
        f"{len(outcome.faults):>8}{outcome.slowest:>10.3f}{outcome.peak >> 20:>8}  {refused}",
        flush=True,
    )
    for fault in list(dict.fromkeys(outcome.faults))[:3]:
        print(fault)
    return not outcome.faults and outcome.slowest < SECONDS and outcome.peak < MEMORY


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    chosen = sys.argv[2:] or list(FORMATS)
    head = ("mutants", "read", "refused", "faults", "slowest s", "MB")
    print(
        f"{'format':<22}{head[0]:>8}{head[1]:>8}{head[2]:>9}{head[3]:>8}{head[4]:>10}{head[5]:>8}"
    )
    clean = [judge(name, count) for name in chosen]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
